// A model that is cut into ranges: who holds them, and what they are told.
#include <algorithm>
#include <utility>

#include "motley/cluster/coordinator_impl.h"
#include "motley/cluster/job.h"
#include "motley/cluster/shard_link.h"

namespace motley::cluster {
namespace {

constexpr double kConnectMembersSeconds = 30.0, kAnswerSeconds = 1.0;
// Who has lost the same host as somebody else tells it at about the same time.
constexpr double kTellSeconds = 0.5;

}  // namespace

base::Status CheckShards(int shards, const graph::Graph& graph, bool gloo, bool merged_head) {
  const auto refuse = [](const std::string& why, const std::string& fix) {
    return base::InvalidInput("{}", why).WithFix(fix);
  };
  if (shards == 1) return {};
  if (gloo) {
    return refuse("members that sum gradients by themselves have no server to cut",
                  "leave cluster.shards or cluster.trusted_network out");
  }
  if (merged_head) {
    return refuse("most of what shards would share out is in the head, which one process computes",
                  "leave cluster.shards or cluster.merged_head out");
  }
  if (shards < 1 || shards > kMaxShards || shards > graph.parameter_count()) {
    return refuse(
        fmt::format("{} shards of {} parameters", shards, graph.parameter_count()),
        fmt::format("at most {}", std::min<std::int64_t>(kMaxShards, graph.parameter_count())));
  }
  return {};
}

std::vector<SessionPtr> Coordinator::Impl::WantedHosts() const {
  std::vector<SessionPtr> wanted(static_cast<std::size_t>(job_.shards()));
  const std::size_t ranges = std::min(wanted.size(), plan_.hosts.size() + 1);
  for (std::size_t range = 1; range < ranges; ++range) {
    for (const SessionPtr& member : members_) {
      const bool fit = member->said.can_host() && !member->unfit && !member->leaving &&
                       !member->closed() && member->name == plan_.hosts[range - 1];
      const bool taken = std::find(wanted.begin(), wanted.end(), member) != wanted.end();
      if (fit && !taken) wanted[range] = member;
    }
  }
  return wanted;
}

bool Coordinator::Impl::HostsHaveChanged() const {
  if (ranges_.empty()) return false;
  const std::vector<SessionPtr> wanted = WantedHosts();
  for (std::size_t range = 1; range < ranges_.size(); ++range) {
    if (ranges_[range].host != nullptr && ranges_[range].host != wanted[range]) return true;
  }
  return false;
}

bool Coordinator::Impl::ShardsFormed() const {
  if (job_.shards() == 1) return true;
  if (!shards_formed_ || ShardsBroken()) return false;
  const std::vector<SessionPtr> wanted = WantedHosts();
  for (std::size_t range = 1; range < ranges_.size(); ++range) {
    if (ranges_[range].host != wanted[range]) return false;
  }
  return true;
}

bool Coordinator::Impl::ShardsBroken() const {
  return clock_.Now() >= shards_break_ ||
         std::any_of(ranges_.begin(), ranges_.end(), [](const Range& range) {
           return range.host != nullptr && range.host->closed();
         });
}

void Coordinator::Impl::DropShards() {
  for (const Range& range : ranges_) {
    if (range.host != nullptr) range.host->range = 0;
  }
  ranges_.clear();
  shards_formed_ = false;
  shards_break_ = kNever;
  shards_generation_ = 0;
  for (const SessionPtr& member : members_) {
    member->version = -1;
    member->group = -1;
  }
  JudgeShards();
}

void Coordinator::Impl::JudgeShards() {
  std::map<std::string, SessionPtr> here;
  std::vector<std::string> names;
  for (const SessionPtr& member : members_) {
    if (member->closed()) continue;
    here[member->name] = member;
    names.push_back(member->name);
  }
  const ShardRecord::Verdict verdict = shard_record_.Judge(clock_.Now(), names);
  for (const std::string& name : verdict.members) {
    desk_.SendAway(
        here[name],
        "it does not reach hosts of the model that others reach: let it connect to them, "
        "or leave cluster.shards out; it is not used for ten minutes");
  }
  for (const std::string& name : verdict.hosts) {
    if (std::exchange(here[name]->unfit, true)) continue;
    const std::string reason =
        "members do not reach it or get nothing from it, or it alone complains of them";
    desk_.Event("unfit_host",
                fmt::format("{} holds no range of the model any more: {}", name, reason),
                {{"worker", name}});
    Tell(plan::HostUnfit{name, reason});
  }
}

// --- Forming ------------------------------------------------------------------------------------

bool Coordinator::Impl::FormShards() {
  shards_generation_ = 0;  // what failed before is not what fails now
  shards_formed_ = FillRanges() && ConnectMembers();
  // When everybody is here, somebody does not reach somebody.
  const auto gone = [](const SessionPtr& member) { return member->closed(); };
  if (!shards_formed_ && std::none_of(members_.begin(), members_.end(), gone)) {
    shards_break_ = std::min(shards_break_, clock_.Now() + kTellSeconds);
    for (; !ShardsBroken(); Drain()) desk_.WaitForNews(kLookSeconds);
  }
  return shards_formed_;
}

bool Coordinator::Impl::FillRanges() {
  const std::vector<SessionPtr> wanted = WantedHosts();
  ranges_.resize(wanted.size());
  std::vector<SessionPtr> hosts;
  for (std::size_t i = 1; i < ranges_.size(); ++i) {
    Range& range = ranges_[i];
    if (range.host != wanted[i]) range = {wanted[i], false, {}, {}};
    if (range.host == nullptr) continue;
    const proto::Order order = HostOrder(i);
    Send(range.host, order);
    if (!range.filled) SendRange(range.host, static_cast<int>(i), {generation_, step_});
    hosts.push_back(range.host);
  }
  if (Await(hosts, kLoadSeconds) != Outcome::kDone) return false;
  for (std::size_t i = 1; i < ranges_.size(); ++i) {
    if (ranges_[i].host != nullptr && !TakeHosting(i)) return false;
  }
  return true;
}

proto::Order Coordinator::Impl::HostOrder(std::size_t number) {
  Range& range = ranges_[number];
  proto::Order order;
  order.set_generation(++generation_);
  order.set_step(step_);
  proto::Host& host = *order.mutable_host();
  host.set_range(static_cast<int>(number));
  host.set_fresh(!range.filled);
  const auto before = std::exchange(range.keys, {});
  for (const SessionPtr& member : members_) {
    const auto found = before.find(member->name);
    const bool known = found != before.end() && found->second.first == member;
    range.keys[member->name] = {member, known ? found->second.second : RandomHex(32)};
    proto::Host::Guest& guest = *host.add_guests();
    guest.set_name(member->name);
    guest.set_key(range.keys[member->name].second);
  }
  return order;
}

bool Coordinator::Impl::TakeHosting(std::size_t number) {
  Range& range = ranges_[number];
  range.hosting = range.host->done->hosting();
  if (range.hosting.address().empty() || !CheckUsable(range.hosting.certificate()).ok()) {
    SendAway(range.host, "it was to hold a range of the model, and says not where");
    return false;
  }
  if (std::exchange(range.filled, true)) return true;
  range.host->range = static_cast<int>(number);
  desk_.Event("host",
              fmt::format("{} holds range {} of {} of the model, at {}", range.host->name,
                          number + 1, ranges_.size(), range.hosting.address()),
              {{"worker", range.host->name},
               {"range", std::to_string(number)},
               {"address", range.hosting.address()}});
  return true;
}

bool Coordinator::Impl::ConnectMembers() {
  shards_generation_ = ++generation_;
  for (const SessionPtr& member : members_) {
    proto::Order order;
    order.set_generation(shards_generation_);
    order.set_step(step_);
    proto::Shards& shards = *order.mutable_shards();
    for (std::size_t i = 1; i < ranges_.size(); ++i) {
      const Range& range = ranges_[i];
      if (range.host == nullptr) continue;
      proto::Shards::Shard& shard = *shards.add_shards();
      shard.set_range(static_cast<int>(i));
      shard.set_host(range.host->name);
      shard.set_address(range.hosting.address());
      shard.set_certificate(range.hosting.certificate());
      shard.set_key(range.keys.at(member->name).second);
    }
    Send(member, std::move(order));
  }
  return Await(members_, kConnectMembersSeconds) == Outcome::kDone;
}

void Coordinator::Impl::SendRange(const SessionPtr& host, int range, const StepKey& key) {
  const Parts& parts = model_.parts();
  const Parts::Part& whole = parts.range(range);
  const auto begin = model_.velocity().begin() + whole.offset;
  const ModelArray velocity = std::make_shared<const std::vector<float>>(begin, begin + whole.size);
  for (int i = 0; i < parts.parameter_parts(); ++i) {
    if (parts.RangeOf(i) != range) continue;
    host->parts.Push({key, proto::ARRAY_SHARD, parts[i].offset, parts[i].size, model_.model()});
    host->parts.Push({key, proto::ARRAY_VELOCITY, parts[i].offset - whole.offset, parts[i].size,
                      velocity, 0, whole.offset});
  }
}

// --- Steps --------------------------------------------------------------------------------------

SessionPtr Coordinator::Impl::HostOf(int part) const {
  const auto range = static_cast<std::size_t>(model_.parts().RangeOf(part));
  return range < ranges_.size() ? ranges_[range].host : nullptr;
}

std::vector<std::string> Coordinator::Impl::HostNames() const {
  std::vector<std::string> names;
  for (const Range& range : ranges_) {
    names.push_back(range.host == nullptr ? "" : range.host->name);
  }
  return names;
}

void Coordinator::Impl::TellHosts(const proto::Order& order) {
  for (const Range& range : ranges_) {
    // Not by Send: the host may be computing, and this is no order to its device.
    if (range.host != nullptr) range.host->orders.Push(order);
  }
}

void Coordinator::Impl::BeginAtShards(int number, const Group& group,
                                      const ModelServer::Step& step) {
  if (ranges_.empty()) return;
  proto::Order order = NewOrder(group);
  order.mutable_shard()->set_group(number);
  proto::ShardStep::Begin& begin = *order.mutable_shard()->mutable_begin();
  begin.set_samples(step.samples);
  begin.set_alone(group.alone);
  Fill(step.sgd, *begin.mutable_sgd());
  for (const ModelServer::Step::Contributor& contributor : step.contributors) {
    proto::ShardStep::Contributor& one = *begin.add_contributors();
    one.set_name(contributor.name);
    one.set_samples(contributor.samples);
  }
  TellHosts(order);
}

void Coordinator::Impl::CommitAtShards(int number, const StepKey& key) {
  proto::Order order;
  order.set_generation(key.generation);
  order.set_step(key.step);
  order.mutable_shard()->set_group(number);
  order.mutable_shard()->mutable_commit();
  TellHosts(order);
}

void Coordinator::Impl::DiscardAtShards(int number) {
  proto::Order order;
  order.mutable_shard()->set_group(number);
  order.mutable_shard()->mutable_discard();
  TellHosts(order);
}

bool Coordinator::Impl::CheckSums(int number, const Group& group) {
  if (ranges_.empty()) return true;
  const std::string who = model_.Contradicting(number);
  for (const SessionPtr& member : group.members) {
    if (member->name == who) SendAway(member, "it tells each shard another number of samples");
  }
  return who.empty();
}

bool Coordinator::Impl::AskHosts(int number, Group& group) {
  if (ranges_.empty() || std::exchange(group.asked, true)) return false;
  group.limit = clock_.Now() + kAnswerSeconds + 2.0 * options_.heartbeat_seconds;
  proto::Order order;
  order.mutable_shard()->set_group(number);
  order.mutable_shard()->mutable_ask();
  TellHosts(order);
  return true;
}

bool Coordinator::Impl::HearOfHosts(Group& group) {
  const auto held = [](const Range& range) { return range.host != nullptr; };
  const auto at_work = [](const SessionPtr& member) { return !member->done; };
  if (std::none_of(ranges_.begin(), ranges_.end(), held) ||
      std::none_of(group.members.begin(), group.members.end(), at_work) ||
      std::exchange(group.heard, true)) {
    return false;
  }
  group.limit = clock_.Now() + ShardPatience(options_.heartbeat_seconds) + kAnswerSeconds +
                2.0 * options_.heartbeat_seconds;
  return true;
}

void Coordinator::Impl::SendSlowHostsAway(int number, const Group& group) {
  if (ranges_.empty()) return;
  const std::vector<std::string> owing = model_.Owing(number);
  for (const Range& range : ranges_) {
    if (range.host == nullptr) continue;
    if (std::find(owing.begin(), owing.end(), range.host->name) == owing.end()) continue;
    SendAway(range.host, fmt::format("alive, but its range of the model was not there after "
                                     "{:.0f} s",
                                     clock_.Now() - group.began));
  }
}

// --- What hosts and members report --------------------------------------------------------------

void Coordinator::Impl::TakeShardFailure(const SessionPtr& session, const proto::Failed& failed) {
  const bool now = !ranges_.empty() && (failed.generation() == shards_generation_ ||
                                        failed.generation() == session->ordered.generation);
  if (!now) return;  // hosts hang up when an attempt is over
  const auto named = [&](const Range& range) {
    return range.host != nullptr && range.host->name == failed.host();
  };
  if (std::none_of(ranges_.begin(), ranges_.end(), named)) {
    SendAway(session, "it failed, and names nobody who holds a range: " + failed.message());
    return;
  }
  session->broken = true;
  shards_break_ = std::min(shards_break_, clock_.Now() + kTellSeconds);
  if (!shard_record_.Add(
          {clock_.Now(), failed.generation(), session->name, failed.host(), failed.silent()})) {
    return;
  }
  desk_.Event("shard_failed", fmt::format("{}: {}", session->name, failed.message()),
              {{"worker", session->name}, {"host", failed.host()}});
}

void Coordinator::Impl::TakeComplaint(const SessionPtr& session,
                                      const proto::Complaint& complaint) {
  if (session->range == 0) return;
  const std::string where = fmt::format("at the shard of {}: ", session->name);
  if (complaint.member().empty()) {
    desk_.OnRefused({complaint.peer(), {}}, where + complaint.what());
    return;
  }
  for (const SessionPtr& member : members_) {
    if (member->name != complaint.member() || member->closed()) continue;
    desk_.OnRefused({member->peer, {}}, where + member->name + ": " + complaint.what());
    shard_record_.Complain(clock_.Now(), session->name, member->name);
    if (shard_record_.Doubtful(session->name)) {
      shards_break_ = clock_.Now();  // and the host is judged
    } else if (shard_record_.Confirmed(member->name)) {
      SendAway(member, where + complaint.what());
    } else {
      desk_.SendAway(member, where + complaint.what());  // it may be the host's fault
    }
    return;
  }
}

}  // namespace motley::cluster
