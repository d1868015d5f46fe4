#ifndef MOTLEY_CLUSTER_JOB_H_
#define MOTLEY_CLUSTER_JOB_H_

#include <string>

#include "motley/base/status.h"
#include "motley/cluster/cluster.pb.h"
#include "motley/data/dataset.h"
#include "motley/data/transform.h"
#include "motley/graph/graph.h"
#include "motley/optim/sgd.h"

namespace motley::cluster {

// Both sides must speak the same one.
inline constexpr std::uint32_t kProtocol = 4;
// More than anybody needs.
inline constexpr int kMaxShards = 64;
// Of one message that a worker takes.
inline constexpr int kMaxMessageToWorker = 64 << 20;

// What a coordinator knows of its job beyond data and graph.
struct JobSource {
  std::string zoo;   // the name of the network in the zoo,
  std::string onnx;  // or the bytes of its file
  std::uint64_t seed = 1;
  std::int64_t bn_batch = 0;
  std::int64_t batch = 0;
  bool merged_head = false;
  int shards = 1;
  std::string data, test_data;  // as a worker may find its own copy
  int resize_height = 0, resize_width = 0;
  data::Transform train_transform;
};

proto::Job MakeJob(const JobSource& source, const graph::Graph& graph, const data::DataPair& data);

// Refuses a job that is too large for the one message in which it goes to a worker of another
// machine.
base::Status CheckTravels(const proto::Job& job);

// The network, on a worker. Refuses one that is not what the coordinator has.
base::Result<graph::Graph> BuildGraph(const proto::Job& job);

// The transform of training or of evaluation; refuses what does not fit the set.
base::Result<data::Transform> ToTransform(const proto::Job& job, bool training);

// The update rule, as it travels.
void Fill(const optim::SgdOptions& sgd, proto::Sgd& message);
optim::SgdOptions SgdOf(const proto::Sgd& message);

// Refuses a description of a dataset that cannot be one.
base::Status CheckSet(const proto::Set& set);

}  // namespace motley::cluster

#endif  // MOTLEY_CLUSTER_JOB_H_
