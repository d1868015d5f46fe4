#ifndef MOTLEY_CLUSTER_INCOMING_MODEL_H_
#define MOTLEY_CLUSTER_INCOMING_MODEL_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "motley/base/status.h"
#include "motley/cluster/cluster.pb.h"
#include "motley/cluster/model_server.h"
#include "motley/cluster/parts.h"

namespace motley::cluster {

// A state of the model as it arrives in parts: weights and statistics and, where wanted, the
// velocity. Parts of a newer generation or step supersede what came before; older ones are passed
// over.
//
// Thread safety: none.
class IncomingModel {
 public:
  // `parts` outlives it.
  IncomingModel(const Parts& parts, bool with_velocity, proto::Array array = proto::ARRAY_MODEL);

  // Refuses what is no part of such a state.
  base::Status Take(const proto::Part& part);
  // Whether the whole state of `key` is here.
  bool Complete(const StepKey& key) const { return key_ == key && missing_ == 0; }
  // Its parts that are not; -1 when none is.
  std::int64_t Missing(const StepKey& key) const { return key_ == key ? missing_ : -1; }

  // Whether all of its weights and statistics are here that belong to this range.
  bool HasRange(const StepKey& key, int range) const;

  std::vector<float>& model() { return model_; }
  std::vector<float>& velocity() { return velocity_; }

 private:
  const Parts& parts_;
  const bool with_velocity_;
  const proto::Array array_;
  std::optional<StepKey> key_;  // none: nothing has come
  std::vector<float> model_, velocity_;
  std::vector<bool> seen_;    // by part; the velocity's after the model's
  std::int64_t missing_ = 0;  // parts
};

}  // namespace motley::cluster

#endif  // MOTLEY_CLUSTER_INCOMING_MODEL_H_
