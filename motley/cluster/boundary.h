#ifndef MOTLEY_CLUSTER_BOUNDARY_H_
#define MOTLEY_CLUSTER_BOUNDARY_H_

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "motley/base/status.h"
#include "motley/cluster/cluster.pb.h"
#include "motley/cluster/outbox.h"
#include "motley/cluster/part_to_send.h"
#include "motley/cluster/pieces.h"
#include "motley/engine/device.h"

namespace motley::cluster {

// A worker's side of a merged head: what its body puts out goes to the head server, and the
// gradients of it come back, when the batch of the whole group was there.
//
// Thread safety: all calls from any thread, but Begin while nobody crosses.
class Boundary {
 public:
  // `features`: of a sample, where it leaves the body. `out` outlives it.
  Boundary(std::int64_t features, Outbox<PartToSend>& out) : features_(features), out_(out) {}

  void Begin(const StepKey& key, std::int64_t samples);
  // Returns with the gradient; false when `cancel` becomes true, or what crosses is not finite.
  bool Cross(const engine::Crossing& crossing, const std::atomic<bool>& cancel);
  // What has come back. Refuses what was not asked for.
  base::Status Take(const proto::Part& part);
  // How long all lanes together have waited in this step, and whether all that crossed was finite.
  double wait_seconds() const;
  bool finite() const;

 private:
  const std::int64_t features_;
  Outbox<PartToSend>& out_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  StepKey key_;
  std::shared_ptr<std::vector<float>> sent_;  // of all lanes, in the order of the samples
  std::vector<float> gradient_;
  Pieces pieces_;             // of it that have come
  std::int64_t missing_ = 0;  // floats of it
  std::optional<double> wait_seconds_;
  bool finite_ = true;
};

}  // namespace motley::cluster

#endif  // MOTLEY_CLUSTER_BOUNDARY_H_
