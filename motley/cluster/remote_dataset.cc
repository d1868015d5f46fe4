#include "motley/cluster/remote_dataset.h"

#include <algorithm>
#include <chrono>
#include <utility>

namespace motley::cluster {
namespace {

// That nothing comes.
constexpr auto kWait = std::chrono::seconds(60);
// Of one request: the coordinator takes no more at once, and each has a deadline of its own, that
// the slowest network should keep.
constexpr std::size_t kRequestSamples = 4096, kRequestBytes = std::size_t{16} << 20;

}  // namespace

RemoteDataset::RemoteDataset(const proto::Set& set, bool test, Fetch fetch, std::size_t cache_bytes)
    : set_(set),
      test_(test),
      fetch_(std::move(fetch)),
      cache_bytes_(cache_bytes),
      classes_(set.classes().begin(), set.classes().end()) {}

RemoteDataset::~RemoteDataset() = default;

base::Result<std::shared_ptr<RemoteDataset>> RemoteDataset::Open(const proto::Set& set, bool test,
                                                                 Fetch fetch,
                                                                 std::size_t cache_bytes) {
  std::shared_ptr<RemoteDataset> dataset(
      new RemoteDataset(set, test, std::move(fetch), cache_bytes));
  MOTLEY_RETURN_IF_ERROR(dataset->FetchLabels());
  dataset->worker_ =
      std::jthread([raw = dataset.get()](const std::stop_token& stop) { raw->Work(stop); });
  return dataset;
}

base::Status RemoteDataset::FetchLabels() {
  proto::SamplesRequest request;
  request.set_test(test_);
  const auto take = [this](proto::SamplesReply& reply) -> base::Status {
    for (const std::int32_t label : reply.labels()) {
      if (label < 0 || label >= set_.classes_size()) return base::InvalidInput("label {}", label);
      labels_.push_back(label);
    }
    const bool fits = static_cast<std::int64_t>(labels_.size()) <= set_.size();
    return fits ? base::Status() : base::InvalidInput("more labels than samples");
  };
  MOTLEY_RETURN_IF_ERROR(fetch_(request, take));
  if (static_cast<std::int64_t>(labels_.size()) == set_.size()) return {};
  return base::InvalidInput("{} labels for {} samples", labels_.size(), set_.size());
}

void RemoteDataset::Prefetch(const std::vector<data::SampleId>& ids) {
  const std::lock_guard lock(mutex_);
  Want(ids);
}

void RemoteDataset::Want(const std::vector<data::SampleId>& ids) const {
  std::vector<data::SampleId> missing;
  for (const data::SampleId id : ids) {
    if (here_.contains(id) || coming_.contains(id)) continue;
    coming_.insert(id);
    missing.push_back(id);
  }
  if (missing.empty()) return;
  const auto bytes = static_cast<std::size_t>(pixels_per_sample());
  const std::size_t most = std::clamp<std::size_t>(kRequestBytes / bytes, 1, kRequestSamples);
  for (std::size_t begin = 0; begin < missing.size(); begin += most) {
    const auto first = missing.begin() + static_cast<std::ptrdiff_t>(begin);
    const std::size_t count = std::min(most, missing.size() - begin);
    wanted_.emplace_back(first, first + static_cast<std::ptrdiff_t>(count));
  }
  changed_.notify_all();
}

void RemoteDataset::Work(const std::stop_token& stop) const {
  while (true) {
    std::vector<data::SampleId> ids;
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, stop, [this] { return !wanted_.empty(); });
      if (stop.stop_requested()) return;
      ids = std::move(wanted_.front());
      wanted_.pop_front();
    }
    base::Status status = FetchPixels(ids);
    const std::lock_guard lock(mutex_);
    for (const data::SampleId id : ids) {
      const bool missing = coming_.erase(id) > 0;
      if (missing && status.ok()) status = base::InvalidInput("sample {} was not sent", id);
    }
    if (!status.ok()) failure_ = std::move(status);
    changed_.notify_all();
  }
}

base::Status RemoteDataset::FetchPixels(const std::vector<data::SampleId>& ids) const {
  proto::SamplesRequest request;
  request.set_test(test_);
  request.mutable_ids()->Add(ids.begin(), ids.end());
  return fetch_(request, [this](proto::SamplesReply& reply) { return Keep(reply); });
}

base::Status RemoteDataset::Keep(proto::SamplesReply& reply) const {
  const auto bytes = static_cast<std::size_t>(pixels_per_sample());
  if (reply.pixels().size() != bytes * static_cast<std::size_t>(reply.ids_size())) {
    return base::InvalidInput("{} bytes for {} samples", reply.pixels().size(), reply.ids_size());
  }
  const std::lock_guard lock(mutex_);
  for (int i = 0; i < reply.ids_size(); ++i) {
    const data::SampleId id = reply.ids(i);
    if (coming_.erase(id) == 0) {
      return base::InvalidInput("sample {}, which nobody asked for", id);
    }
    if (!here_.emplace(id, reply.pixels().substr(static_cast<std::size_t>(i) * bytes, bytes))
             .second) {
      continue;
    }
    order_.push_back(id);
    ++arrived_;
    if (order_.size() * bytes > cache_bytes_ && order_.size() > 1) {
      here_.erase(order_.front());
      order_.pop_front();
    }
  }
  changed_.notify_all();
  return {};
}

base::Status RemoteDataset::Decode(data::SampleId id, std::span<std::uint8_t> pixels) const {
  std::unique_lock lock(mutex_);
  auto deadline = std::chrono::steady_clock::now() + kWait;
  std::int64_t arrived = arrived_;
  while (true) {
    const auto found = here_.find(id);
    if (found != here_.end()) {
      std::copy(found->second.begin(), found->second.end(), pixels.begin());
      return {};
    }
    if (!failure_.ok()) return failure_;
    Want({id});
    // Those that were wanted before it come before it.
    if (std::exchange(arrived, arrived_) != arrived_) {
      deadline = std::chrono::steady_clock::now() + kWait;
    }
    if (changed_.wait_until(lock, deadline) == std::cv_status::timeout) {
      return base::Unavailable("sample {} did not come from the coordinator within {} s", id,
                               kWait.count());
    }
  }
}

}  // namespace motley::cluster
