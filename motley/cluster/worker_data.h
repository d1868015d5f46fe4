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

// The private samples of this worker; null when it has none. Refuses what does not fit the job:
// another shape, other classes.
base::Result<std::shared_ptr<const data::Dataset>> OpenPrivate(const WorkerOptions& options,
                                                               const proto::Job& job);

// The samples that a worker is told to compute, prepared ahead of time.
//
// Thread safety: none.
class WorkerData {
 public:
  // Public samples from `own`, or, where that has no sets, from the coordinator. Private ones from
  // `secret`, which may be null, in an order of their own that `worker`'s name gives.
  static base::Result<std::unique_ptr<WorkerData>> Open(const WorkerOptions& options,
                                                        const proto::Job& job,
                                                        const data::DataPair& own,
                                                        std::shared_ptr<const data::Dataset> secret,
                                                        const std::string& worker,
                                                        const std::shared_ptr<Link>& link);

  // The samples of `part`, and begins to prepare those of `next`.
  base::Result<data::Batch> Take(
      const proto::Train::Part& part,
      const google::protobuf::RepeatedPtrField<proto::Train::Part>& next);

  const std::shared_ptr<const data::Dataset>& test() const { return sets_.test; }
  const data::Transform& test_transform() const { return test_transform_; }
  // Begins to fetch samples of the test set, if they have to be fetched.
  void PrefetchTest(const std::vector<data::SampleId>& ids);

 private:
  // What a loader was told to prepare: ranges of the two pools.
  struct Wanted {
    std::vector<data::Ticket> open, own;
    bool operator==(const Wanted&) const = default;
    bool empty() const { return open.empty() && own.empty(); }
  };
  // The orders of the last epochs of one pool.
  struct Orders {
    std::uint64_t seed = 0;
    std::int64_t size = 0;
    std::map<std::uint64_t, data::Permutation> epochs;
    const data::Permutation& Of(std::uint64_t epoch);
  };

  WorkerData(const WorkerOptions& options, const proto::Job& job, data::DataPair sets,
             std::shared_ptr<const data::Dataset> secret, const std::string& worker,
             data::Transform train_transform, data::Transform test_transform);
  void Submit(const Wanted& wanted);
  base::Result<Wanted> WantedOf(const proto::Train::Part& part) const;

  const std::int64_t batch_;  // no share is larger
  Orders open_, own_;
  const data::SampleId own_base_;  // of the ids of private samples
  const data::DataPair sets_;
  const data::Transform test_transform_;
  std::shared_ptr<RemoteDataset> remote_train_, remote_test_;
  std::deque<Wanted> submitted_;  // in the order of the loader
  data::Loader loader_;
};

}  // namespace motley::cluster

#endif  // MOTLEY_CLUSTER_WORKER_DATA_H_
