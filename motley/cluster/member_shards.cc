// A member and the shards of the model: those that it sends to, and the one that it may be.
#include <utility>

#include "motley/cluster/member.h"
#include "motley/run/update.h"

namespace motley::cluster {
namespace {

constexpr auto kShardLook = std::chrono::milliseconds(50);

}  // namespace

void Member::MakeHost() {
  auto host = std::make_unique<ShardHost>(
      *parts_, joined_.heartbeat_seconds(),
      ShardHost::Hooks{.send = [this](PartToSend part) { parts_out_.Push(std::move(part)); },
                       .complain =
                           [this](const proto::Complaint& complaint) {
                             proto::Report report;
                             *report.mutable_complaint() = complaint;
                             reports_.Push(std::move(report));
                           },
                       .on_sent = [this](const auto& message) { link_->Show(message); }});
  const std::lock_guard lock(mutex_);
  host_ = std::move(host);
}

base::Status Member::ObeyAsHost(const proto::Order& order) {
  ShardHost* host = nullptr;
  {
    const std::lock_guard lock(mutex_);
    host = host_.get();
  }
  if (host == nullptr) return base::InvalidInput("an order for a shard in a job without shards");
  return host->Obey({order.generation(), order.step()}, order.shard());
}

base::Status Member::Host(const proto::Order& order) {
  if (host_ == nullptr) return base::InvalidInput("a shard of a model that has none");
  const StepKey key{order.generation(), order.step()};
  {
    std::unique_lock lock(mutex_);
    while (!host_->Complete(key, order.host())) {
      if (cancel_ || lost_) return base::Cancelled("a newer generation has begun");
      changed_.wait_for(lock, kShardLook);
    }
  }
  auto hosting = [&]() -> base::Result<proto::Hosting> {
    MOTLEY_ASSIGN_OR_RETURN(const std::string address, OwnAddress());
    // An address with a zone means something on this machine only.
    if (address.find('%') != std::string::npos) {
      return base::Unavailable("others cannot reach {}", address);
    }
    return host_->Host(key, order.host(), address);
  }();
  if (!hosting.ok()) {
    if (hosting.status().code() == base::Code::kUnavailable) {
      // Only that it cannot listen: it can still compute.
      ReportHost(order.generation(), joined_.worker(), hosting.status());
      return base::Cancelled("{}", hosting.status().message());
    }
    return hosting.status();
  }
  ReportHosting(order, *hosting);
  return {};
}

void Member::ReportHosting(const proto::Order& order, const proto::Hosting& hosting) {
  proto::Report report;
  proto::Done& done = *report.mutable_done();
  done.set_generation(order.generation());
  done.set_step(order.step());
  done.set_finite(true);
  *done.mutable_hosting() = hosting;
  reports_.Push(std::move(report));
}

base::Result<std::unique_ptr<ShardLink>> Member::Reach(const proto::Shards::Shard& shard) {
  if (shard.range() < 1 || shard.range() >= parts_->ranges()) {
    return base::InvalidInput("range {} of {}", shard.range(), parts_->ranges());
  }
  return ShardLink::Open(
      shard, joined_.worker(),
      {.take = [this, range = shard.range()](
                   const proto::Part& part) { return TakeFromShard(range, part); },
       .lost =
           [this, host = shard.host()](const std::string& reason) {
             ReportHost(shards_, host, base::Unavailable("{}", reason));
           },
       .sent = [this](const auto& message) { link_->Show(message); }});
}

base::Status Member::Connect(const proto::Order& order) {
  // Those that are not wanted any more go first: that they are lost is no news of this generation.
  std::map<int, std::unique_ptr<ShardLink>> before;
  before.swap(links_);
  for (const proto::Shards::Shard& shard : order.shards().shards()) {
    const auto found = before.find(shard.range());
    if (found != before.end() && found->second->shard().key() == shard.key()) {
      links_.insert(before.extract(found));
    }
  }
  before.clear();
  shards_ = order.generation();
  bool hosts = false;
  for (const proto::Shards::Shard& shard : order.shards().shards()) {
    hosts = hosts || shard.host() == joined_.worker();
    base::Status status;
    if (const auto kept = links_.find(shard.range()); kept != links_.end()) {
      // It may have told so in the generation before, which nobody listens to any more.
      if (kept->second->lost()) status = base::Unavailable("lost {}", shard.host());
    } else {
      auto link = Reach(shard);
      status = link.ok() ? base::Status() : link.status();
      if (link.ok()) links_[shard.range()] = std::move(link).value();
    }
    if (status.ok()) continue;
    if (status.code() != base::Code::kUnavailable) return status;
    ReportHost(order.generation(), shard.host(), status);
    return base::Cancelled("{}", status.message());
  }
  if (!hosts && host_ != nullptr) host_->Close();
  ReportDone(order, {}, 0.0);
  return {};
}

void Member::ReportHost(std::uint64_t generation, const std::string& host,
                        const base::Status& status, bool silent) {
  proto::Report report;
  proto::Failed& failed = *report.mutable_failed();
  failed.set_generation(generation);
  failed.set_message(status.message());
  failed.set_group(true);
  failed.set_host(host);
  failed.set_silent(silent);
  reports_.Push(std::move(report));
}

bool Member::NameSilentHosts(const StepKey& key) {
  // As long as the coordinator's own range is not here, it may be the network of this machine.
  if (!incoming_->HasRange(key, 0)) return false;
  for (const auto& [range, link] : links_) {
    if (incoming_->HasRange(key, range)) continue;
    const std::string& host = link->shard().host();
    ReportHost(shards_, host,
               base::Unavailable("{} does not send its range of model {}", host, key.step),
               /*silent=*/true);
  }
  return true;
}

base::Status Member::TakeFromShard(int range, const proto::Part& part) {
  if (part.floats().size() % sizeof(float) != 0) return base::InvalidInput("a part of a number");
  const auto count = static_cast<std::int64_t>(part.floats().size() / sizeof(float));
  MOTLEY_ASSIGN_OR_RETURN(const int index, parts_->Find(part.offset(), count));
  if (part.array() != proto::ARRAY_MODEL || parts_->RangeOf(index) != range ||
      index >= parts_->parameter_parts()) {
    return base::InvalidInput("a part of the model that it does not hold");
  }
  if (!run::AllFinite(FloatsOf(part.floats()))) {
    return base::InvalidInput("weights that are not finite");
  }
  base::Status status;
  {
    const std::lock_guard lock(mutex_);
    // What comes later than the next model would make all that the others send look old.
    status = part.generation() > computing_ ? base::InvalidInput("a model of the future")
                                            : incoming_->Take(part);
  }
  changed_.notify_all();
  return status;
}

}  // namespace motley::cluster
