// Who is a member: joining, leaving, forming a group, and where the model is.
#include <algorithm>
#include <utility>

#include "motley/cluster/coordinator_impl.h"
#include "motley/cluster/gloo_reducer.h"

namespace motley::cluster {
namespace {

constexpr double kFormSeconds = 15.0;
// Nothing comes of a model that is being handed over.
constexpr double kStandstillSeconds = 10.0;
constexpr int kMaxFailedGroups = 3;

std::optional<plan::SpeedCurve> CurveOf(const proto::Ready& ready) {
  std::vector<plan::Timing> timings;
  for (const proto::Timing& timing : ready.probe()) {
    timings.push_back({timing.samples(), timing.seconds()});
  }
  auto curve = plan::FitCurve(timings);
  if (!curve.ok()) return std::nullopt;
  if (ready.cap() > 0) curve->cap = ready.cap();
  return *curve;
}

}  // namespace

base::Status Coordinator::Impl::Gather() {
  while (true) {
    Drain();
    RemoveGone();
    if (Interrupted()) return base::Cancelled("interrupted");
    std::vector<SessionPtr> joiners = Joiners();
    LoadAhead(joiners);
    const std::size_t wanted = started_ ? 1 : static_cast<std::size_t>(options_.min_workers);
    if (members_.size() + joiners.size() < wanted) {
      if (!waiting_told_) {
        const std::size_t missing = wanted - members_.size() - joiners.size();
        desk_.Event("waiting",
                    fmt::format("waiting for {} {}", missing, missing == 1 ? "worker" : "workers"),
                    {});
      }
      waiting_told_ = true;
      desk_.WaitForNews(kLookSeconds);
      continue;
    }
    waiting_told_ = false;
    if (!joiners.empty()) {
      if (model_step_ != step_) MOTLEY_RETURN_IF_ERROR(FetchState());
      if (!Admit(joiners)) continue;
    }
    if (!AnyBusy() && HostsHaveChanged()) DropShards();
    if (!AnyBusy() && !Grouped() && !Regroup()) continue;
    if (!AnyBusy() && !ShardsFormed() && !FormShards()) continue;
    if (options_.gloo && !formed_ && !FormGroup()) continue;
    started_ = true;
    return {};
  }
}

void Coordinator::Impl::RemoveGone() {
  if (ShardsBroken()) {
    for (auto& [number, group] : groups_) {
      if (group.busy) Abandon(number, group);
    }
    DropShards();
  }
  for (auto& [number, group] : groups_) {
    const auto gone = [](const SessionPtr& member) { return member->closed(); };
    if (group.busy && std::any_of(group.members.begin(), group.members.end(), gone)) {
      Abandon(number, group);
    }
  }
  // Who leaves finishes what its group is at, or all groups when it holds a range of the model.
  const auto busy = [this](const SessionPtr& session) {
    if (session->range > 0 && AnyBusy()) return true;
    const auto found = groups_.find(session->group);
    return found != groups_.end() && found->second.busy;
  };
  // By Gloo the members have the model: the last one leaves it here.
  const auto ends = [](const SessionPtr& member) { return member->leaving || member->closed(); };
  const auto has_it = [](const SessionPtr& member) { return !member->closed(); };
  if (model_step_ != step_ && !AnyBusy() && std::all_of(members_.begin(), members_.end(), ends) &&
      std::any_of(members_.begin(), members_.end(), has_it)) {
    if (const auto fetched = FetchState(); !fetched.ok()) {
      desk_.Event("waiting", fetched.message(), {});
    }
  }
  for (const SessionPtr& session : desk_.sessions()) {
    if (!session->leaving || session->told || busy(session)) continue;
    SendStop(session, "left");
    session->told = true;
  }
  std::vector<SessionPtr> staying, going;
  for (const SessionPtr& member : members_) {
    const bool goes = !busy(member) && (member->closed() || member->leaving);
    (goes ? going : staying).push_back(member);
  }
  members_ = std::move(staying);
  for (const SessionPtr& member : going) {
    member->share = 0;
    if (const auto found = groups_.find(member->group); found != groups_.end()) {
      std::erase(found->second.members, member);
      NextGeneration(found->second);
      if (found->second.members.empty()) {
        Discard(found->first);
        groups_.erase(found);
      }
    }
    formed_ = false;
    shards_formed_ = false;
    Tell(plan::DeviceLost{member->name, member->leaving ? "left" : member->reason()});
  }
}

std::vector<SessionPtr> Coordinator::Impl::Joiners() const {
  if (suspects_ && !members_.empty()) return {};
  std::vector<SessionPtr> joiners;
  for (const SessionPtr& session : desk_.sessions()) {
    const bool member = std::find(members_.begin(), members_.end(), session) != members_.end();
    if (session->ready && !session->leaving && !session->closed() && !member &&
        !shard_record_.Barred(clock_.Now(), session->name) &&
        !conduct_.Barred(clock_.Now(), session->name)) {
      joiners.push_back(session);
    }
  }
  return joiners;
}

void Coordinator::Impl::LoadAhead(std::vector<SessionPtr>& joiners) {
  std::erase_if(joiners, [this](const SessionPtr& session) {
    if (session->load_began == 0.0) {
      if (members_.empty()) return false;  // nobody is held up
      SendLoad(session);
      return true;
    }
    if (session->done) return false;
    const double seconds = clock_.Now() - session->load_began;
    if (session->broken || seconds > kLoadSeconds) {
      SendAway(session, fmt::format("the model was not there after {:.0f} s", seconds));
    }
    return true;
  });
}

void Coordinator::Impl::SendLoad(const SessionPtr& session) {
  proto::Order order;
  order.set_generation(++generation_);
  order.set_step(step_);
  order.mutable_load();
  Send(session, std::move(order));
  if (session->load_began == 0.0) session->load_began = clock_.Now();
  session->version = model_step_;
  SendModel(session, {generation_, step_}, /*whole=*/true);
  CheckTaken(session);
}

bool Coordinator::Impl::Admit(const std::vector<SessionPtr>& joiners) {
  // Who has got the model once gets it again about as fast. Everybody waits for that.
  double seconds = 0.0;
  for (const SessionPtr& session : joiners) {
    const double once = session->loaded - session->load_began;
    const double again = 1.0 + std::max(2.0 * options_.heartbeat_seconds, 3.0 * once);
    seconds = std::max(seconds, session->loaded > 0.0 ? again : kLoadSeconds);
  }
  Refresh(joiners, std::min(seconds, kLoadSeconds));
  for (const SessionPtr& session : joiners) {
    if (session->closed() || session->version != step_) continue;
    members_.push_back(session);
    session->accounted = clock_.Now();
    session->curve = CurveOf(session->said);
    // What its meter counted before, while it was probed and others were waited for, is not the
    // job's.
    if (session->done) session->joules = session->done->joules();
    session->state = "working";
    shards_formed_ = false;
    Tell(Describe(session));
    desk_.Event(
        "joined",
        fmt::format("{} joined from {} ({}); {} {} now", session->name, session->peer,
                    session->device, members_.size(), members_.size() == 1 ? "works" : "work"),
        {{"worker", session->name}, {"peer", session->peer}, {"device", session->device}});
  }
  // By rank of a launcher, then in the order of joining: the order in which gradients are summed.
  std::stable_sort(members_.begin(), members_.end(), [](const auto& a, const auto& b) {
    return static_cast<unsigned>(a->rank) < static_cast<unsigned>(b->rank);
  });
  return !members_.empty();
}

bool Coordinator::Impl::Refresh(const std::vector<SessionPtr>& sessions, double seconds) {
  const double deadline = clock_.Now() + seconds;
  std::vector<SessionPtr> waiting;
  for (const SessionPtr& session : sessions) {
    if (session->closed() || session->version == step_) continue;
    SendLoad(session);
    waiting.push_back(session);
  }
  // Whom it reaches late is closed by then, or sent away.
  while (Await(waiting, std::max(0.0, deadline - clock_.Now())) != Outcome::kDone) {
    std::erase_if(waiting, [](const SessionPtr& session) {
      if (session->broken) session->version = -1;
      return session->closed() || session->broken;
    });
  }
  const auto has = [this](const SessionPtr& session) {
    return session->version == step_ && !session->closed();
  };
  return std::all_of(sessions.begin(), sessions.end(), has);
}

void Coordinator::Impl::SendModel(const SessionPtr& session, const StepKey& key, bool whole) {
  const auto push = [&](proto::Array array, const ModelArray& floats, int parts) {
    for (int i = 0; i < parts; ++i) {
      if (!whole && HostOf(i) != nullptr) continue;  // which sends it
      const Parts::Part& part = model_.parts()[i];
      session->parts.Push({key, array, part.offset, part.size, floats});
    }
  };
  push(proto::ARRAY_MODEL, model_.model(), model_.parts().count());
  if (!options_.gloo) return;
  push(proto::ARRAY_VELOCITY, std::make_shared<const std::vector<float>>(model_.velocity()),
       model_.parts().parameter_parts());
}

void Coordinator::Impl::CheckTaken(const SessionPtr& session) {
  // Who has said that it is done had the model of that step, so not more than two wait for it.
  // Every part keeps its whole model in memory.
  const int most = 3 * model_.parts().count() + model_.parts().parameter_parts();
  if (session->parts.size() > static_cast<std::size_t>(most))
    SendAway(session, "it does not take what is sent to it");
}

std::vector<int> Coordinator::Impl::PlannedGroups() const {
  std::vector<int> planned(members_.size(), 0);
  if (options_.gloo) return planned;
  std::map<int, std::int64_t> samples;  // of those who are here
  const auto share_of = [this](const SessionPtr& member) {
    const auto found =
        std::find_if(plan_.shares.begin(), plan_.shares.end(),
                     [&](const plan::Share& share) { return share.device == member->name; });
    return found == plan_.shares.end() ? plan::Share{member->name} : *found;
  };
  for (const SessionPtr& member : members_) {
    const plan::Share share = share_of(member);
    if (share.samples > 0) samples[share.group] += share.samples;
  }
  for (std::size_t i = 0; i < members_.size() && !samples.empty(); ++i) {
    // Who would be in a group without work waits in one that has some.
    const int wanted = share_of(members_[i]).group;
    planned[i] = samples.contains(wanted) ? wanted : samples.begin()->first;
  }
  return planned;
}

bool Coordinator::Impl::Grouped() const {
  const std::vector<int> planned = PlannedGroups();
  for (std::size_t i = 0; i < members_.size(); ++i) {
    if (members_[i]->group != planned[i]) return false;
  }
  return true;
}

bool Coordinator::Impl::Regroup() {
  for (const auto& [number, group] : groups_) Discard(number);
  groups_.clear();
  if (!options_.gloo && !Refresh(members_, kLoadSeconds)) return false;
  const std::vector<int> planned = PlannedGroups();
  for (std::size_t i = 0; i < members_.size(); ++i) {
    Group& group = groups_[planned[i]];
    members_[i]->group = planned[i];
    group.members.push_back(members_[i]);
    group.version = step_;
  }
  formed_ = false;
  NextGenerations();
  return true;
}

plan::DeviceJoined Coordinator::Impl::Describe(const SessionPtr& session) const {
  const proto::Ready& ready = session->said;
  plan::DeviceJoined joined{.device = session->name, .curve = session->curve};
  // The model has just gone there: the gradient comes back the same way, and a new model follows.
  // What is sent while the device still computes is not waited for, so this is an upper bound.
  joined.communication_seconds = 2.0 * std::max(0.0, session->loaded - session->load_began);
  if (ready.has_power()) joined.power = {ready.watts_idle(), ready.watts_busy()};
  joined.private_samples = ready.private_samples();
  joined.can_host = ready.can_host();
  joined.here_only = ready.here_only();
  return joined;
}

std::vector<run::PrivatePool> Coordinator::Impl::KnownPools() const {
  std::vector<run::PrivatePool> pools = pools_.pools();
  for (const SessionPtr& member : members_) {
    const proto::Ready& ready = member->said;
    const auto found = std::find_if(pools.begin(), pools.end(), [&](const run::PrivatePool& pool) {
      return pool.device == member->name;
    });
    if (found != pools.end()) pools.erase(found);
    if (ready.private_samples() > 0) {
      pools.push_back({member->name, ready.private_samples(), ready.private_sha256()});
    }
  }
  return pools;
}

bool Coordinator::Impl::FormGroup() {
  if (failed_groups_ >= kMaxFailedGroups) {
    // Some of them do not reach each other, though all reach us, or one only says so: most likely
    // the one that was the first to say it most often. Any order of going comes to an end: a group
    // of one forms itself.
    const auto claims = [](const SessionPtr& a, const SessionPtr& b) {
      return a->claims < b->claims;
    };
    SendAway(*std::max_element(members_.rbegin(), members_.rend(), claims),
             "its group fails again and again; see whether all members reach each other");
    ForgetClaims();
    return false;
  }
  Group& group = groups_.at(0);
  NextGeneration(group);
  proto::Order order = NewOrder(group);
  for (const SessionPtr& member : members_) order.mutable_form()->add_members(member->name);
  for (std::size_t i = 0; i < members_.size(); ++i) {
    order.mutable_form()->set_rank(static_cast<int>(i));
    Send(members_[i], order);
  }
  const double began = clock_.Now();
  std::vector<SessionPtr> waiting = members_;
  formed_ = true;
  while (Await(waiting, std::max(0.0, began + kFormSeconds - clock_.Now())) != Outcome::kDone) {
    formed_ = false;
    const auto gone = [](const SessionPtr& member) { return member->closed(); };
    // Who has waited for another in vain says so after this time. Then all of them do soon, and who
    // does not is the one they have waited for.
    if (std::any_of(waiting.begin(), waiting.end(), gone) ||
        clock_.Now() < began + GlooOptions().form_seconds) {
      break;
    }
    std::erase_if(waiting, [](const SessionPtr& member) { return member->broken; });
  }
  if (!formed_) NextGeneration(group);
  return formed_;
}

void Coordinator::Impl::ForgetClaims() {
  failed_groups_ = 0;
  for (const SessionPtr& member : members_) member->claims = 0;
}

bool Coordinator::Impl::AwaitUpload(const SessionPtr& member) {
  const double deadline = clock_.Now() + kLoadSeconds;
  std::int64_t missing = desk_.MissingOfUpload();
  while (true) {
    const auto outcome =
        Await({member}, kStandstillSeconds, [this] { return desk_.MissingOfUpload() == 0; });
    if (outcome == Outcome::kDone) return true;
    // To say that it is done is not enough: all of it must come, and something all the time.
    const std::int64_t before = std::exchange(missing, desk_.MissingOfUpload());
    if (member->closed() || member->broken || missing == before || clock_.Now() > deadline) {
      return false;
    }
  }
}

base::Status Coordinator::Impl::FetchState() {
  for (const SessionPtr& member : std::vector<SessionPtr>(members_)) {
    if (member->closed()) continue;
    Group& group = groups_.at(member->group);
    desk_.ExpectUpload({group.generation, step_}, member->name);
    proto::Order order = NewOrder(group);
    order.mutable_save();
    Send(member, std::move(order));
    const bool complete = AwaitUpload(member);
    Desk::Upload upload = desk_.TakeUpload();
    if (complete) {
      model_.Replace(std::move(upload.model), std::move(upload.velocity));
      model_step_ = step_;
      return {};
    }
    SendAway(member, "it was to hand over the model, and does not");
    NextGeneration(group);
  }
  Drain();  // so that the log tells why they are gone
  return base::Unavailable("all workers that had the model of step {} are gone", step_);
}

}  // namespace motley::cluster
