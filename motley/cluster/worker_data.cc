#include "motley/cluster/worker_data.h"

#include <algorithm>
#include <utility>

#include "motley/cluster/job.h"
#include "motley/data/open.h"

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

WorkerData::WorkerData(const WorkerOptions& options, const proto::Job& job, data::DataPair sets,
                       data::Transform train_transform, data::Transform test_transform)
    : seed_(job.seed()),
      sets_(std::move(sets)),
      test_transform_(std::move(test_transform)),
      loader_(sets_.train, std::move(train_transform),
              {.threads = options.loader_threads, .seed = job.seed()}) {}

base::Result<std::unique_ptr<WorkerData>> WorkerData::Open(const WorkerOptions& options,
                                                           const proto::Job& job,
                                                           const data::DataPair& own,
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
  std::unique_ptr<WorkerData> data(new WorkerData(options, job, sets, train, test));
  data->remote_train_ = std::move(remote_train);
  data->remote_test_ = std::move(remote_test);
  return data;
}

base::Result<data::Ticket> WorkerData::TicketOf(const proto::Range& range) const {
  const bool fits =
      range.begin() >= 0 && range.begin() <= range.end() && range.end() <= sets_.train->size();
  if (fits) return data::Ticket{range.epoch(), range.begin(), range.end()};
  return base::InvalidInput("samples {} to {} of an epoch of {}", range.begin(), range.end(),
                            sets_.train->size());
}

const data::Permutation& WorkerData::Order(std::uint64_t epoch) {
  const auto found = orders_.find(epoch);
  if (found != orders_.end()) return found->second;
  if (orders_.size() > 1) orders_.erase(orders_.begin());
  return orders_.emplace(epoch, data::Permutation(sets_.train->size(), seed_, epoch)).first->second;
}

base::Status WorkerData::Submit(const data::Ticket& ticket) {
  std::vector<data::SampleId> ids = Order(ticket.epoch).Ids(ticket);
  if (remote_train_ != nullptr) remote_train_->Prefetch(ids);
  loader_.Submit(std::move(ids), ticket.epoch);
  submitted_.push_back(ticket);
  return {};
}

base::Result<data::Batch> WorkerData::Take(
    const proto::Range& range, const google::protobuf::RepeatedPtrField<proto::Range>& next) {
  MOTLEY_ASSIGN_OR_RETURN(const data::Ticket ticket, TicketOf(range));
  if (ticket.size() == 0) return data::Batch{};
  // What was prepared and is not wanted, because the shares have changed, is passed over.
  const bool prepared = std::find(submitted_.begin(), submitted_.end(), ticket) != submitted_.end();
  while (!submitted_.empty() && !(prepared && submitted_.front() == ticket)) {
    MOTLEY_ASSIGN_OR_RETURN(const data::Batch unwanted, loader_.Next());
    submitted_.pop_front();
  }
  if (submitted_.empty()) MOTLEY_RETURN_IF_ERROR(Submit(ticket));
  for (const proto::Range& later : next) {
    MOTLEY_ASSIGN_OR_RETURN(const data::Ticket ahead, TicketOf(later));
    const bool known = std::find(submitted_.begin(), submitted_.end(), ahead) != submitted_.end();
    if (ahead.size() > 0 && !known && submitted_.size() < kMaxAhead) {
      MOTLEY_RETURN_IF_ERROR(Submit(ahead));
    }
  }
  MOTLEY_ASSIGN_OR_RETURN(data::Batch batch, loader_.Next());
  submitted_.pop_front();
  return batch;
}

void WorkerData::PrefetchTest(const std::vector<data::SampleId>& ids) {
  if (remote_test_ != nullptr) remote_test_->Prefetch(ids);
}

}  // namespace motley::cluster
