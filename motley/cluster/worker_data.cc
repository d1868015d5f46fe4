#include "motley/cluster/worker_data.h"

#include <algorithm>
#include <utility>

#include "motley/cluster/job.h"
#include "motley/data/memory_dataset.h"
#include "motley/data/open.h"
#include "motley/data/pooled_dataset.h"

namespace motley::cluster {
namespace {

// Of samples that came from the coordinator, for each set.
constexpr std::size_t kCacheBytes = std::size_t{256} << 20;
// More than a coordinator names ahead.
constexpr std::size_t kMaxAhead = 4;

bool Same(const data::Dataset& set, const proto::Set& wanted) {
  return set.size() == wanted.size() && set.ContentHash() == wanted.sha256();
}

}  // namespace

data::DataPair FindOwnCopy(const WorkerOptions& options, const proto::Job& job) {
  const bool given = !options.data.empty();
  const std::string& name = given ? options.data : job.data();
  if (name.empty()) return {};
  const auto note = [&](const std::string& why) {
    if (options.on_note) options.on_note(why);
  };
  auto opened = data::Open(name, given ? "" : job.test_data(),
                           {.cache = options.data_cache,
                            .resize_height = job.resize_height(),
                            .resize_width = job.resize_width(),
                            .fetch = false});
  if (!opened.ok()) {
    if (given) note("no own copy of the data: " + opened.status().message());
    return {};
  }
  if (!Same(*opened->train, job.train()) || !Same(*opened->test, job.test())) {
    note(
        fmt::format("'{}' is here, but not what the job trains on: samples come from the "
                    "coordinator",
                    name));
    return {};
  }
  return std::move(opened).value();
}

base::Result<std::shared_ptr<const data::Dataset>> OpenPrivate(const WorkerOptions& options,
                                                               const proto::Job& job) {
  if (options.private_data.empty()) return std::shared_ptr<const data::Dataset>();
  MOTLEY_RETURN_IF_ERROR(CheckSet(job.train()));
  data::MemoryDataset::Parts none;
  none.shape = {job.train().channels(), job.train().height(), job.train().width()};
  none.classes.assign(job.train().classes().begin(), job.train().classes().end());
  return data::OpenLike(options.private_data, data::MemoryDataset(std::move(none)),
                        {.cache = options.data_cache,
                         .resize_height = job.resize_height(),
                         .resize_width = job.resize_width(),
                         .fetch = false,
                         .train_place = options.private_place});
}

WorkerData::WorkerData(const WorkerOptions& options, const proto::Job& job, data::DataPair sets,
                       std::shared_ptr<const data::Dataset> secret, const std::string& worker,
                       data::Transform train_transform, data::Transform test_transform)
    : batch_(job.batch()),
      open_{job.seed(), sets.train->size(), {}},
      own_{data::PrivateSeed(job.seed(), worker), secret == nullptr ? 0 : secret->size(), {}},
      own_base_(data::FirstPrivateId(worker)),
      sets_(std::move(sets)),
      test_transform_(std::move(test_transform)),
      loader_(
          secret == nullptr ? sets_.train
                            : std::make_shared<data::PooledDataset>(sets_.train, std::move(secret)),
          std::move(train_transform), {.threads = options.loader_threads, .seed = job.seed()}) {}

base::Result<std::unique_ptr<WorkerData>> WorkerData::Open(
    const WorkerOptions& options, const proto::Job& job, const data::DataPair& own,
    std::shared_ptr<const data::Dataset> secret, const std::string& worker,
    const std::shared_ptr<Link>& link) {
  MOTLEY_RETURN_IF_ERROR(CheckSet(job.train()));
  MOTLEY_RETURN_IF_ERROR(CheckSet(job.test()));
  data::DataPair sets = own;
  std::shared_ptr<RemoteDataset> remote_train, remote_test;
  if (sets.train == nullptr) {
    const auto fetch = [link](const proto::SamplesRequest& request,
                              const std::function<base::Status(proto::SamplesReply&)>& take) {
      return link->Samples(request, take);
    };
    MOTLEY_ASSIGN_OR_RETURN(remote_train,
                            RemoteDataset::Open(job.train(), /*test=*/false, fetch, kCacheBytes));
    MOTLEY_ASSIGN_OR_RETURN(remote_test,
                            RemoteDataset::Open(job.test(), /*test=*/true, fetch, kCacheBytes));
    sets = {remote_train, remote_test};
  }
  MOTLEY_ASSIGN_OR_RETURN(const data::Transform train, ToTransform(job, /*training=*/true));
  MOTLEY_ASSIGN_OR_RETURN(const data::Transform test, ToTransform(job, /*training=*/false));
  MOTLEY_RETURN_IF_ERROR(train.Check(*sets.train).In("the coordinator's job"));
  MOTLEY_RETURN_IF_ERROR(test.Check(*sets.test).In("the coordinator's job"));
  std::unique_ptr<WorkerData> data(
      new WorkerData(options, job, sets, std::move(secret), worker, train, test));
  data->remote_train_ = std::move(remote_train);
  data->remote_test_ = std::move(remote_test);
  return data;
}

base::Result<WorkerData::Wanted> WorkerData::WantedOf(const proto::Train::Part& part) const {
  Wanted wanted;
  std::int64_t samples = 0;
  const auto take = [&](const auto& ranges, std::int64_t size,
                        std::vector<data::Ticket>& tickets) -> base::Status {
    for (const proto::Range& range : ranges) {
      if (range.begin() < 0 || range.begin() > range.end() || range.end() > size) {
        return base::InvalidInput("samples {} to {} of an epoch of {}", range.begin(), range.end(),
                                  size);
      }
      samples += range.end() - range.begin();
      if (samples > batch_) return base::InvalidInput("a share beyond the batch of {}", batch_);
      if (range.end() > range.begin()) {
        tickets.push_back({range.epoch(), range.begin(), range.end()});
      }
    }
    return {};
  };
  MOTLEY_RETURN_IF_ERROR(take(part.open(), open_.size, wanted.open));
  MOTLEY_RETURN_IF_ERROR(take(part.own(), own_.size, wanted.own));
  return wanted;
}

const data::Permutation& WorkerData::Orders::Of(std::uint64_t epoch) {
  const auto found = epochs.find(epoch);
  if (found != epochs.end()) return found->second;
  if (epochs.size() > 1) epochs.erase(epochs.begin());
  return epochs.emplace(epoch, data::Permutation(size, seed, epoch)).first->second;
}

void WorkerData::Submit(const Wanted& wanted) {
  std::vector<data::SampleId> ids;
  std::uint64_t epoch = 0;
  for (const data::Ticket& ticket : wanted.open) {
    const std::vector<data::SampleId> some = open_.Of(ticket.epoch).Ids(ticket);
    ids.insert(ids.end(), some.begin(), some.end());
    epoch = ticket.epoch;
  }
  if (remote_train_ != nullptr) remote_train_->Prefetch(ids);
  for (const data::Ticket& ticket : wanted.own) {
    for (const data::SampleId id : own_.Of(ticket.epoch).Ids(ticket)) ids.push_back(own_base_ + id);
    epoch = ticket.epoch;
  }
  loader_.Submit(std::move(ids), epoch);
  submitted_.push_back(wanted);
}

base::Result<data::Batch> WorkerData::Take(
    const proto::Train::Part& part,
    const google::protobuf::RepeatedPtrField<proto::Train::Part>& next) {
  MOTLEY_ASSIGN_OR_RETURN(const Wanted wanted, WantedOf(part));
  if (wanted.empty()) return data::Batch{};
  // What was prepared and is not wanted, because the shares have changed, is passed over.
  const bool prepared = std::find(submitted_.begin(), submitted_.end(), wanted) != submitted_.end();
  while (!submitted_.empty() && !(prepared && submitted_.front() == wanted)) {
    MOTLEY_ASSIGN_OR_RETURN(const data::Batch unwanted, loader_.Next());
    submitted_.pop_front();
  }
  if (submitted_.empty()) Submit(wanted);
  for (const proto::Train::Part& later : next) {
    MOTLEY_ASSIGN_OR_RETURN(const Wanted ahead, WantedOf(later));
    const bool known = std::find(submitted_.begin(), submitted_.end(), ahead) != submitted_.end();
    if (!ahead.empty() && !known && submitted_.size() < kMaxAhead) Submit(ahead);
  }
  MOTLEY_ASSIGN_OR_RETURN(data::Batch batch, loader_.Next());
  submitted_.pop_front();
  return batch;
}

void WorkerData::PrefetchTest(const std::vector<data::SampleId>& ids) {
  if (remote_test_ != nullptr) remote_test_->Prefetch(ids);
}

}  // namespace motley::cluster
