#ifndef MOTLEY_CLUSTER_REMOTE_DATASET_H_
#define MOTLEY_CLUSTER_REMOTE_DATASET_H_

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <stop_token>
#include <string>
#include <thread>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "motley/base/status.h"
#include "motley/cluster/cluster.pb.h"
#include "motley/data/dataset.h"

namespace motley::cluster {

// The coordinator's data, for a worker that has no copy: samples come ahead of time, as soon as it
// is known that they will be needed, and the last ones stay for the next epochs as far as
// `cache_bytes` reach.
//
// Thread safety: as Dataset; Prefetch from any thread.
class RemoteDataset final : public data::Dataset {
 public:
  // Asks for samples and hands over what comes.
  using Fetch =
      std::function<base::Status(const proto::SamplesRequest& request,
                                 const std::function<base::Status(proto::SamplesReply&)>& take)>;

  // Fetches the labels. `set` has been checked (CheckSet).
  static base::Result<std::shared_ptr<RemoteDataset>> Open(const proto::Set& set, bool test,
                                                           Fetch fetch, std::size_t cache_bytes);
  ~RemoteDataset() override;

  // Begins to fetch those that are not here.
  void Prefetch(const std::vector<data::SampleId>& ids);

  std::int64_t size() const override { return set_.size(); }
  int channels() const override { return set_.channels(); }
  int height() const override { return set_.height(); }
  int width() const override { return set_.width(); }
  const std::vector<std::string>& classes() const override { return classes_; }
  std::int32_t label(data::SampleId id) const override { return labels_[id]; }
  // Waits for a sample that is on its way; fetches one that nobody asked for.
  base::Status Decode(data::SampleId id, std::span<std::uint8_t> pixels) const override;
  std::string ContentHash() const override { return set_.sha256(); }

 private:
  RemoteDataset(const proto::Set& set, bool test, Fetch fetch, std::size_t cache_bytes);
  base::Status FetchLabels();
  void Work(const std::stop_token& stop) const;
  base::Status FetchPixels(const std::vector<data::SampleId>& ids) const;
  base::Status Keep(proto::SamplesReply& reply) const;
  void Want(const std::vector<data::SampleId>& ids) const;  // requires mutex_

  const proto::Set set_;
  const bool test_;
  const Fetch fetch_;
  const std::size_t cache_bytes_;
  std::vector<std::string> classes_;
  std::vector<std::int32_t> labels_;

  mutable std::mutex mutex_;
  mutable std::condition_variable_any changed_;
  mutable std::unordered_map<data::SampleId, std::string> here_;
  mutable std::deque<data::SampleId> order_;  // of arrival
  mutable std::unordered_set<data::SampleId> coming_;
  mutable std::deque<std::vector<data::SampleId>> wanted_;
  mutable std::int64_t arrived_ = 0;  // ever
  mutable base::Status failure_;
  std::jthread worker_;
};

}  // namespace motley::cluster

#endif  // MOTLEY_CLUSTER_REMOTE_DATASET_H_
