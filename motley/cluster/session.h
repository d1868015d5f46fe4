#ifndef MOTLEY_CLUSTER_SESSION_H_
#define MOTLEY_CLUSTER_SESSION_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

#include "motley/cluster/cluster.pb.h"
#include "motley/cluster/outbox.h"
#include "motley/cluster/part_to_send.h"
#include "motley/plan/speed_curve.h"

namespace grpc {
class ServerContext;
}

namespace motley::cluster {

// A worker that was let in, from then until it is gone. It never comes back: the same machine that
// joins again gets a new session.
//
// Thread safety: the constant members and the functions from any thread; what the coordinator's
// thread keeps here, from that thread.
class Session {
 public:
  const std::string name, credential, peer, host, device;
  const int rank;
  const double joined;  // on the clock

  Session(const proto::JoinRequest& request, std::string its_name, std::string its_credential,
          std::string its_peer, double now)
      : name(std::move(its_name)),
        credential(std::move(its_credential)),
        peer(std::move(its_peer)),
        host(request.host()),
        device(request.device()),
        rank(request.rank()),
        joined(now),
        last_seen(now) {}

  Outbox<proto::Order> orders;
  Outbox<PartToSend> parts;

  std::atomic<double> last_seen;       // on the clock
  std::atomic<double> delivered{0.0};  // on the clock: when the last part of a gradient came
  std::atomic<bool> connected{false};  // it has reported
  std::atomic<bool> refused{false};    // what it sent made no sense
  std::atomic<int> queued{0};          // reports that nobody has looked at yet; one of them
  std::atomic<bool> pressed{false};    // tells of its pressure,
  std::atomic<double> pressure{0.0};   // which was this in the end
  std::atomic<int> group{-1};          // that it works in; -1: none yet
  std::atomic<int> range{0};           // of the model that it holds; 0: none
  // For `motley status`.
  std::atomic<std::int64_t> share{0}, samples{0};
  std::atomic<double> rate{0.0};
  std::atomic<const char*> state{"joining"};

  std::atomic<int> samples_calls{0};  // that are under way

  // A stream of this worker begins, unless there is one of its kind already, or it is gone.
  bool Attach(bool work, grpc::ServerContext* call);
  void Detach(bool work);
  // Ends both streams, wherever they wait. The first reason stands.
  void Close(const std::string& reason);
  bool closed() const { return orders.closed(); }
  std::string reason() const;

  // Of the coordinator's thread.
  bool ready = false, leaving = false, told = false;
  bool unfit = false;               // to hold a range: others do not reach it
  std::int64_t version = -1;        // of the model that it has, or that is on its way to it,
  std::int64_t committed = 0;       // and samples in the last update of that
  StepKey has_head;                 // the order for which the weights of the head went there
  StepKey ordered;                  // the last order,
  std::optional<proto::Done> done;  // what it has answered, and when,
  double answered = 0.0;
  bool broken = false;                     // or that its group cannot,
  int claims = 0;                          // and how often it was the first to say so
  proto::Ready said;                       // when it was ready
  std::optional<plan::SpeedCurve> curve;   // of its probe, or else of its first step
  double pace = 1.0;                       // how many times that its steps take
  double tested = 0.0;                     // seconds per sample of its last test; 0: none yet
  int empty = 0;                           // how often its time was doubled, because it did nothing
  double load_began = 0.0, loaded = 0.0;   // when the model went there
  double accounted = 0.0;                  // until when,
  double joules = 0.0, joules_busy = 0.0;  // and how much of what it has measured
  std::uint64_t last_sequence = 0;         // of the thread that reads reports

 private:
  mutable std::mutex mutex_;
  grpc::ServerContext* calls_[2] = {nullptr, nullptr};
  bool closed_ = false;
  std::string reason_;
};

using SessionPtr = std::shared_ptr<Session>;

}  // namespace motley::cluster

#endif  // MOTLEY_CLUSTER_SESSION_H_
