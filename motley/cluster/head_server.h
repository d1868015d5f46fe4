#ifndef MOTLEY_CLUSTER_HEAD_SERVER_H_
#define MOTLEY_CLUSTER_HEAD_SERVER_H_

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "motley/base/status.h"
#include "motley/cluster/model_server.h"
#include "motley/cluster/pieces.h"
#include "motley/data/batch.h"
#include "motley/engine/device.h"
#include "motley/optim/sgd.h"

namespace motley::cluster {

// The head of the net (graph::Split), forward and backward, for all groups. What their bodies put
// out comes here, and the gradients of it go back. The batch of a group is computed when all of it
// is here, one group at a time, with the weights of that moment, and the update follows at once:
// the head is never stale.
//
// Thread safety: Add from any thread, the rest from one.
class HeadServer {
 public:
  struct Step {
    StepKey key;
    std::vector<ModelServer::Step::Contributor> contributors;
    // Labels and ids of all samples, in the order of the contributors; the images are what comes.
    data::Batch batch;
    optim::SgdOptions sgd;
    // What goes back to one contributor: [its samples][features]. From the head's thread.
    std::function<void(const std::string& contributor, const ModelArray& gradient)> on_gradient;
    std::function<void()> on_complete;  // from this thread, too
  };
  struct Outcome {
    double loss_sum = 0.0;
    std::int64_t correct = 0;
    double seconds = 0.0;    // of computing
    std::string not_finite;  // what is not; empty when all is well
  };

  // `device` computes the head.
  HeadServer(std::unique_ptr<engine::Device> device, std::vector<float> weights,
             std::vector<float> velocity, std::uint64_t seed, int update_threads);
  ~HeadServer();

  // Opens a step of this group. Requires that it has none.
  void Begin(int group, Step step);
  // Some of what a contributor's body has put out, from float `offset` of its own samples on. False
  // for a step that is over, as is normal after a failure; kInvalidInput for what it may not send.
  base::Result<bool> Add(const std::string& contributor, const StepKey& key, std::int64_t offset,
                         const std::string& floats);
  // Whether it has sent all of its samples; true of somebody who has none.
  bool HasAll(const std::string& contributor) const;
  // Once the group's batch is computed. An error is the device's.
  std::optional<base::Result<Outcome>> outcome(int group) const;
  // The step counts.
  void Commit(int group);
  // Forgets the open step of this group, if it has one. Its update is taken back, unless another
  // group's step has been begun since: then it stays.
  void Discard(int group);

  struct State {
    std::vector<float> weights, velocity;
  };
  // With the updates of open steps that are computed.
  State state() const;

 private:
  struct Open {
    Step step;
    std::vector<std::int64_t> first, missing;  // by contributor: sample, floats
    std::vector<Pieces> pieces;                // that have come, by contributor
    std::int64_t missing_in_all = 0;
    std::atomic<bool> cancel{false};
    std::optional<base::Result<Outcome>> outcome;
  };

  void Work(const std::stop_token& stop);
  // The gradient of what has come in goes to `input_gradient`.
  base::Result<Outcome> Compute(Open& open, std::vector<float>& input_gradient);
  void Answer(const Open& open, const std::vector<float>& gradient) const;
  // Require mutex_.
  Open* StepOf(const std::string& contributor, std::size_t& index) const;

  const std::unique_ptr<engine::Device> device_;
  const std::int64_t features_;
  const std::uint64_t seed_;
  const int update_threads_;

  mutable std::mutex mutex_;
  std::condition_variable_any changed_;
  std::map<int, std::shared_ptr<Open>> open_;  // by group
  std::uint64_t last_generation_ = 0;
  std::deque<std::shared_ptr<Open>> queue_;
  // Of the head's thread while it computes. Otherwise, with the mutex, `last_` may be taken back:
  // the step whose update made the present out of the previous.
  State present_, previous_;
  const Open* last_ = nullptr;

  std::vector<float> gradient_;
  std::jthread thread_;
};

}  // namespace motley::cluster

#endif  // MOTLEY_CLUSTER_HEAD_SERVER_H_
