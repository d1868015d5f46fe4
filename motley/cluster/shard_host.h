#ifndef MOTLEY_CLUSTER_SHARD_HOST_H_
#define MOTLEY_CLUSTER_SHARD_HOST_H_

#include <grpcpp/server.h>

#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "motley/base/clock.h"
#include "motley/base/status.h"
#include "motley/cluster/cluster.pb.h"
#include "motley/cluster/incoming_model.h"
#include "motley/cluster/model_server.h"
#include "motley/cluster/part_to_send.h"
#include "motley/cluster/parts.h"
#include "motley/cluster/service.h"

namespace motley::cluster {

// One range of the model, served by a worker's process: sums what the members send, passes the sums
// on to the coordinator, applies what the coordinator commits, and sends the new weights back. It
// decides nothing: the coordinator orders every step, and has all that is needed to go on without
// it.
//
// Listens with TLS and a key pair of its own, which never leaves the process. Lets in whom the
// coordinator has named, by a key that each has for this shard only.
//
// Thread safety: Take, Host, Obey and the handlers from any thread; Host and Obey not at once.
class ShardHost final : public Handler {
 public:
  struct Hooks {
    std::function<void(PartToSend part)> send;  // to the coordinator
    std::function<void(const proto::Complaint& complaint)> complain;
    Service::OnSent on_sent;
  };

  // Members learn of a step by another connection than this host, and may be earlier: so long it
  // waits for it.
  static constexpr double kEarlySeconds = 10.0;

  // `parts` outlives the host.
  ShardHost(const Parts& parts, double heartbeat_seconds, Hooks hooks,
            double early_seconds = kEarlySeconds);
  ~ShardHost() override;

  // A part of the state of a range: weights (ARRAY_SHARD) or velocity.
  base::Status Take(const proto::Part& part);
  // Whether the state that an order brings is all here.
  bool Complete(const StepKey& key, const proto::Host& order);
  // Serves the range to the guests of this order, at a free port of `address`. kCancelled when the
  // state of another order is here by now.
  base::Result<proto::Hosting> Host(const StepKey& key, const proto::Host& order,
                                    const std::string& address);
  // The same without listening: to those who are connected.
  base::Status Serve(const StepKey& key, const proto::Host& order);
  // Serves nothing any more.
  void Close();
  // A step begins, is committed or given up. Refuses what cannot be.
  base::Status Obey(const StepKey& key, const proto::ShardStep& order);

  // Bytes since the last call.
  struct Bytes {
    std::int64_t gradient = 0, weights = 0;
  };
  Bytes TakeBytes();

  base::Result<SessionPtr> Authenticate(const Caller& caller) override;
  base::Status OnPart(const SessionPtr& session, proto::Part& part) override;
  void OnClosed(const SessionPtr& session, const std::string& reason) override;
  void OnRefused(const Caller& caller, const std::string& what) override;
  // A shard is no coordinator: these are refused.
  base::Result<proto::JoinReply> Join(const Caller& caller,
                                      const proto::JoinRequest& request) override;
  base::Status OnReport(const SessionPtr& session, const proto::Report& report) override;
  base::Status Samples(const proto::SamplesRequest& request,
                       const std::function<bool(const proto::SamplesReply&)>& send) override;
  base::Result<proto::RendezvousReply> Rendezvous(const SessionPtr& session,
                                                  const proto::RendezvousRequest& request) override;
  base::Result<proto::StatusReply> Status(const Caller& caller) override;

 private:
  // What is being made in a group.
  struct OpenStep {
    StepKey key;
    bool alone = false;
    std::vector<SessionPtr> readers;  // of the new model: who contributes
  };
  IncomingModel& Incoming(int range);  // requires mutex_
  base::Status Listen(const std::string& address);
  void Admit(const proto::Host& order);  // requires mutex_
  base::Status Begin(const StepKey& key, int group, const proto::ShardStep::Begin& begin);
  // Requires mutex_.
  ModelServer::Step MakeStep(const OpenStep& open, const proto::ShardStep::Begin& begin);
  base::Status Commit(const StepKey& key, int group);
  void NameDebtors(int group);
  // Waits until the contributor may send parts of this step: the model that they are for, and where
  // that begins; kInvalidInput when it never may, kCancelled when it is no guest any more.
  struct Place {
    std::shared_ptr<ModelServer> model;
    std::int64_t base = 0;
  };
  base::Result<Place> AwaitStep(const SessionPtr& session, const StepKey& key);

  const Parts& parts_;
  const Hooks hooks_;
  const double early_seconds_;
  const base::RealClock clock_{};
  Traffic traffic_;
  Bytes told_;
  Service service_;

  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<int, std::pair<std::unique_ptr<Parts>, std::unique_ptr<IncomingModel>>> incoming_;
  int range_ = 0;                       // 0: it serves none
  std::shared_ptr<ModelServer> model_;  // of this range
  std::map<std::string, SessionPtr> guests_;
  std::map<std::string, StepKey> begun_;  // the last step of each contributor
  std::map<int, OpenStep> open_;          // by group
  double next_complaint_ = 0.0;           // about strangers

  std::unique_ptr<Server> server_;
  Identity identity_;
  std::string address_;  // with the port
};

}  // namespace motley::cluster

#endif  // MOTLEY_CLUSTER_SHARD_HOST_H_
