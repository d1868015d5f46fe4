#ifndef MOTLEY_CLUSTER_SERVICE_H_
#define MOTLEY_CLUSTER_SERVICE_H_

#include <grpcpp/server.h>

#include <functional>
#include <map>
#include <memory>
#include <string>

#include "motley/base/status.h"
#include "motley/cluster/cluster.grpc.pb.h"
#include "motley/cluster/doorman.h"
#include "motley/cluster/security.h"
#include "motley/cluster/session.h"
#include "motley/cluster/traffic.h"

namespace motley::cluster {

// Who calls, as the transport knows it.
struct Caller {
  std::string peer;
  std::map<std::string, std::string> metadata;
};

// What arrives at a coordinator, or at the host of a shard, after the bytes became messages.
// Nothing in a message has been checked. A failure refuses the call, or ends the stream and with it
// the session; what the caller is told of it is the message.
//
// Thread safety: all calls from any thread.
class Handler {
 public:
  virtual ~Handler() = default;
  virtual base::Result<proto::JoinReply> Join(const Caller& caller,
                                              const proto::JoinRequest& request) = 0;
  // The session that the caller's credential belongs to.
  virtual base::Result<SessionPtr> Authenticate(const Caller& caller) = 0;
  virtual base::Status OnReport(const SessionPtr& session, const proto::Report& report) = 0;
  virtual base::Status OnPart(const SessionPtr& session, proto::Part& part) = 0;
  // One of the session's streams has ended.
  virtual void OnClosed(const SessionPtr& session, const std::string& reason) = 0;
  // `send` is false when nobody listens any more.
  virtual base::Status Samples(const proto::SamplesRequest& request,
                               const std::function<bool(const proto::SamplesReply&)>& send) = 0;
  virtual base::Result<proto::RendezvousReply> Rendezvous(
      const SessionPtr& session, const proto::RendezvousRequest& request) = 0;
  virtual base::Result<proto::StatusReply> Status(const Caller& caller) = 0;
  // Something was refused, for the log.
  virtual void OnRefused(const Caller& caller, const std::string& what) = 0;
};

// gRPC's side of a coordinator or of a shard: threads, streams, credentials; decides nothing. Two
// threads for each stream of a worker: one reads, one writes.
class Service final : public proto::Cluster::Service {
 public:
  using OnSent = std::function<void(const google::protobuf::MessageLite& message)>;

  // Both outlive the service. `on_sent` sees every part before it goes out.
  Service(Handler& handler, Traffic& traffic, double heartbeat_seconds, OnSent on_sent = {})
      : handler_(handler),
        traffic_(traffic),
        heartbeat_seconds_(heartbeat_seconds),
        on_sent_(std::move(on_sent)) {}

  grpc::Status Join(grpc::ServerContext* context, const proto::JoinRequest* request,
                    proto::JoinReply* reply) override;
  grpc::Status Work(grpc::ServerContext* context,
                    grpc::ServerReaderWriter<proto::Order, proto::Report>* stream) override;
  grpc::Status Exchange(grpc::ServerContext* context,
                        grpc::ServerReaderWriter<proto::Part, proto::Part>* stream) override;
  grpc::Status Samples(grpc::ServerContext* context, const proto::SamplesRequest* request,
                       grpc::ServerWriter<proto::SamplesReply>* writer) override;
  grpc::Status Rendezvous(grpc::ServerContext* context, const proto::RendezvousRequest* request,
                          proto::RendezvousReply* reply) override;
  grpc::Status Status(grpc::ServerContext* context, const proto::StatusRequest* request,
                      proto::StatusReply* reply) override;

  // Something came that was no call, or none that could be read.
  void OnRefused(const std::string& peer, const std::string& what) {
    handler_.OnRefused({peer, {}}, what);
  }

 private:
  base::Result<SessionPtr> Enter(const Caller& caller, grpc::ServerContext* context, bool work);
  grpc::Status Leave(const Caller& caller, const SessionPtr& session, bool work,
                     const base::Status& status);
  grpc::Status Refuse(const Caller& caller, const std::string& call, const base::Status& status);
  void Count(const proto::Part& part);

  Handler& handler_;
  Traffic& traffic_;
  const double heartbeat_seconds_;
  const OnSent on_sent_;
};

// gRPC's server, and who lets connections in to it.
class Server {
 public:
  // Begins to listen (HOST:PORT; empty: for channels of this process only), with TLS if there is an
  // identity. The service outlives the server.
  static base::Result<std::unique_ptr<Server>> Start(Service& service, const std::string& listen,
                                                     const Identity* identity);
  // Ends calls that are under way after so long.
  void Shutdown(double seconds);

  int port() const { return doorman_ == nullptr ? 0 : doorman_->port(); }
  std::shared_ptr<grpc::Channel> InProcessChannel();

 private:
  Server() = default;
  std::unique_ptr<grpc::Server> grpc_;
  std::unique_ptr<Doorman> doorman_;  // ends first
};

// The metadata of a call.
inline constexpr char kTokenId[] = "motley-token-id";
inline constexpr char kTokenSecret[] = "motley-token-secret";
inline constexpr char kWorker[] = "motley-worker";
inline constexpr char kCredential[] = "motley-credential";

}  // namespace motley::cluster

#endif  // MOTLEY_CLUSTER_SERVICE_H_
