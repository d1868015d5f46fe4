#include "motley/cluster/worker.h"

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>

#include "motley/base/clock.h"
#include "motley/cluster/job.h"
#include "motley/cluster/link.h"
#include "motley/cluster/member.h"
#include "motley/engine/native/native_device.h"

namespace motley::cluster {
namespace {

constexpr double kFirstPause = 0.1, kLongestPause = 2.0;
// Longer than a coordinator needs to miss a worker whose connection broke without a word.
constexpr int kMostRefusals = 8;

// What a worker remembers from one membership to the next.
struct Standing {
  std::string name;  // asked for again: what the coordinator knows of it goes by that
  bool again = false;
  bool was_member = false;  // in the last attempt to join
  int refusals = 0;         // since it was one
};

proto::JoinRequest RequestOf(const WorkerOptions& options, const Standing& standing) {
  proto::JoinRequest request;
  request.set_protocol(kProtocol);
  request.set_name(standing.name);
  request.set_host(options.host);
  request.set_rank(options.rank);
  request.set_again(standing.again);
  const int threads =
      options.device.threads > 0 ? options.device.threads : engine::native::UsableCores();
  request.set_device(options.device_name.empty() ? fmt::format("native, {} {}", threads,
                                                               threads == 1 ? "thread" : "threads")
                                                 : options.device_name);
  return request;
}

bool Asked(const std::atomic<bool>* leave) { return leave != nullptr && leave->load(); }

// One membership: joins and works until it ends.
base::Result<WorkerReport> JoinOnce(const WorkerOptions& options, Workshop& workshop,
                                    const std::atomic<bool>* leave, Standing& standing) {
  MOTLEY_ASSIGN_OR_RETURN(const std::shared_ptr<Link> link, Link::Connect(options));
  ++standing.refusals;
  MOTLEY_ASSIGN_OR_RETURN(const proto::JoinReply joined, link->Join(RequestOf(options, standing)));
  standing = {.name = joined.worker(), .again = true, .was_member = true};
  if (options.on_note) {
    options.on_note(options.channel != nullptr
                        ? fmt::format("joined as {}", joined.worker())
                        : fmt::format("joined {} as {}", options.coordinator, joined.worker()));
  }
  return Member(options, link, joined, workshop, leave).Run();
}

}  // namespace

base::Result<WorkerReport> RunWorker(const WorkerOptions& options, const std::atomic<bool>* leave) {
  const base::RealClock clock;
  Workshop workshop;
  double give_up = clock.Now() + options.retry_seconds;
  double pause = kFirstPause;
  Standing standing{.name = options.name};
  while (true) {
    standing.was_member = false;
    auto ended = JoinOnce(options, workshop, leave, standing);
    if (ended.ok() || ended.status().code() != base::Code::kUnavailable) return ended;
    standing.again = true;
    // A coordinator that was started anew may have given the name to somebody else.
    if (standing.refusals > kMostRefusals) standing.name = options.name;
    if (standing.was_member) {
      give_up = clock.Now() + options.retry_seconds;
      pause = kFirstPause;
    }
    if (Asked(leave)) return WorkerReport{WorkerReport::End::kLeft, "left", 0};
    if (clock.Now() + pause > give_up) {
      return base::Unavailable("{}: gave up after {:.0f} s: {}", options.coordinator,
                               options.retry_seconds, ended.status().message())
          .WithFix(
              "see whether the coordinator runs and can be reached from here; then join again");
    }
    if (options.on_note && pause == kFirstPause) {
      options.on_note(
          fmt::format("{}; trying for {:.0f} s", ended.status().message(), give_up - clock.Now()));
    }
    std::this_thread::sleep_for(std::chrono::duration<double>(pause));
    pause = std::min(kLongestPause, 2 * pause);
  }
}

base::Result<proto::StatusReply> GetStatus(const std::string& coordinator, const JoinToken& token) {
  WorkerOptions options;
  options.coordinator = coordinator;
  options.token = token;
  MOTLEY_ASSIGN_OR_RETURN(const std::shared_ptr<Link> link, Link::Connect(options));
  return link->Status();
}

}  // namespace motley::cluster
