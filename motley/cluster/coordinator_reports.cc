// What members report, and waiting for it.
#include <algorithm>
#include <utility>

#include "motley/cluster/coordinator_impl.h"

namespace motley::cluster {

Coordinator::Impl::Outcome Coordinator::Impl::Await(const std::vector<SessionPtr>& who,
                                                    double seconds,
                                                    const std::function<bool()>& complete,
                                                    bool interruptible) {
  const double deadline = clock_.Now() + seconds;
  while (true) {
    Drain();
    const auto gone = [](const SessionPtr& session) {
      return session->closed() || session->broken;
    };
    if (std::any_of(who.begin(), who.end(), gone)) return Outcome::kBroken;
    const auto done = [](const SessionPtr& session) { return session->done.has_value(); };
    const bool all_done = std::all_of(who.begin(), who.end(), done);
    if (all_done && (!complete || complete())) return Outcome::kDone;
    if (interruptible && Interrupted()) return Outcome::kInterrupted;
    if (clock_.Now() > deadline) {
      for (const SessionPtr& session : who) {
        if (!session->done) {
          SendAway(session, fmt::format("alive, but not finished after {:.0f} s", seconds));
        }
      }
      return Outcome::kBroken;
    }
    desk_.WaitForNews(kLookSeconds);
  }
}

void Coordinator::Impl::Drain() {
  // Not what comes meanwhile: who reports fast enough would keep us here.
  for (Desk::Item& item : desk_.TakeNews()) Take(std::move(item));
}

void Coordinator::Impl::Take(Desk::Item item) {
  const SessionPtr& session = item.session;
  if (item.closed) {
    if (session->refused) Strike(*session);
    TellLost(session);
    return;
  }
  switch (item.report.kind_case()) {
    case proto::Report::kReady:
      if (session->ready || (head_ != nullptr && item.report.ready().private_samples() > 0)) {
        SendAway(session, session->ready ? "it was ready before"
                                         : "it has private samples, and the job a merged head");
        break;
      }
      session->ready = true;
      session->said = item.report.ready();
      session->state = "ready";
      break;
    case proto::Report::kLeave:
      session->leaving = true;
      session->state = "leaving";
      break;
    case proto::Report::kDone:
      // What was sent was sent, also for an attempt that is given up.
      traffic_.Gradient(item.report.done().group_bytes());
      traffic_.Weights(item.report.done().weight_bytes());
      if (StepKey{item.report.done().generation(), item.report.done().step()} == session->ordered) {
        session->done = item.report.done();
        session->answered = clock_.Now();
        if (session->loaded == 0.0) session->loaded = clock_.Now();
      }
      break;
    case proto::Report::kHeartbeat:
      session->pressed = false;
      Tell(plan::DevicePressed{session->name, session->pressure});
      break;
    case proto::Report::kComplaint:
      TakeComplaint(session, item.report.complaint());
      break;
    case proto::Report::kFailed:
      if (item.report.failed().group() && job_.shards() > 1) {
        TakeShardFailure(session, item.report.failed());
      } else if (!item.report.failed().group() || !options_.gloo) {
        SendAway(session, "it failed: " + item.report.failed().message());
      } else if (item.report.failed().generation() == session->ordered.generation) {
        TakeGroupFailure(session);
      }
      break;
    default:
      break;
  }
}

void Coordinator::Impl::TakeGroupFailure(const SessionPtr& session) {
  session->broken = true;
  // When somebody is gone, others are right to say so.
  const auto gone = [](const SessionPtr& member) { return member->closed(); };
  if (std::any_of(members_.begin(), members_.end(), gone)) return;
  // Who is not the first may say so because of who was.
  if (std::exchange(claimed_, session->ordered.generation) == session->ordered.generation) return;
  ++session->claims;
  ++failed_groups_;
}

double Coordinator::Impl::Strike(const Session& session) {
  if (session.load_began == 0.0) return 0.0;  // nobody was held up by it
  return conduct_.Strike(clock_.Now(), session.name);
}

void Coordinator::Impl::SendAway(const SessionPtr& session, const std::string& reason) {
  const double seconds = session->closed() ? 0.0 : Strike(*session);
  const std::string bar =
      fmt::format("; as it is not the first time, it is not used for {:.0f} s", seconds);
  desk_.SendAway(session, seconds > 0.0 ? reason + bar : reason);
}

void Coordinator::Impl::TellLost(const SessionPtr& session) {
  const bool left = session->leaving;
  const auto others = std::count_if(
      members_.begin(), members_.end(),
      [&](const SessionPtr& member) { return member != session && !member->closed(); });
  const std::string message = left ? fmt::format("{} left; {} go on", session->name, others)
                                   : fmt::format("{} ({}) is lost: {}; {} go on", session->name,
                                                 session->peer, session->reason(), others);
  const std::vector<std::pair<std::string, std::string>> fields = {
      {"worker", session->name}, {"peer", session->peer}, {"reason", session->reason()}};
  if (session->accounted > 0.0) {
    desk_.Event(left ? "left" : "lost", message, fields);
  } else {
    desk_.EventOfStranger(left ? "left" : "lost", message, fields);  // never a member
  }
}

bool Coordinator::Impl::Interrupted() const {
  return hooks_.interrupt != nullptr && hooks_.interrupt->load();
}

}  // namespace motley::cluster
