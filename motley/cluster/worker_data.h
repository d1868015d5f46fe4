#ifndef MOTLEY_CLUSTER_WORKER_DATA_H_
#define MOTLEY_CLUSTER_WORKER_DATA_H_

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <vector>

#include "motley/base/status.h"
#include "motley/cluster/cluster.pb.h"
#include "motley/cluster/link.h"
#include "motley/cluster/remote_dataset.h"
#include "motley/cluster/worker.h"
#include "motley/data/ledger.h"
#include "motley/data/loader.h"
#include "motley/data/transform.h"

namespace motley::cluster {

// A worker's own copy of the job's data, if it has one with the same content; notes why not.
data::DataPair FindOwnCopy(const WorkerOptions& options, const proto::Job& job);

// The samples that a worker is told to compute, prepared ahead of time.
//
// Thread safety: none.
class WorkerData {
 public:
  // From `own`, or, where that has no sets, from the coordinator.
  static base::Result<std::unique_ptr<WorkerData>> Open(const WorkerOptions& options,
                                                        const proto::Job& job,
                                                        const data::DataPair& own,
                                                        const std::shared_ptr<Link>& link);

  // The samples of `range`, and begins to prepare those of `next`.
  base::Result<data::Batch> Take(const proto::Range& range,
                                 const google::protobuf::RepeatedPtrField<proto::Range>& next);

  const std::shared_ptr<const data::Dataset>& test() const { return sets_.test; }
  const data::Transform& test_transform() const { return test_transform_; }
  // Begins to fetch samples of the test set, if they have to be fetched.
  void PrefetchTest(const std::vector<data::SampleId>& ids);

 private:
  WorkerData(const WorkerOptions& options, const proto::Job& job, data::DataPair sets,
             data::Transform train_transform, data::Transform test_transform);
  base::Status Submit(const data::Ticket& ticket);
  base::Result<data::Ticket> TicketOf(const proto::Range& range) const;
  const data::Permutation& Order(std::uint64_t epoch);

  const std::uint64_t seed_;
  const data::DataPair sets_;
  const data::Transform test_transform_;
  std::shared_ptr<RemoteDataset> remote_train_, remote_test_;
  std::map<std::uint64_t, data::Permutation> orders_;  // of the last epochs
  std::deque<data::Ticket> submitted_;                 // in the order of the loader
  data::Loader loader_;
};

}  // namespace motley::cluster

#endif  // MOTLEY_CLUSTER_WORKER_DATA_H_
