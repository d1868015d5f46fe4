#ifndef MOTLEY_CLUSTER_LINK_H_
#define MOTLEY_CLUSTER_LINK_H_

#include <grpcpp/channel.h>
#include <grpcpp/client_context.h>

#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <span>
#include <string>
#include <string_view>

#include "motley/base/status.h"
#include "motley/cluster/cluster.grpc.pb.h"
#include "motley/cluster/gloo_reducer.h"
#include "motley/cluster/worker.h"

namespace motley::cluster {

// A worker's connections to its coordinator: one for control, one for bulk, so that a heartbeat
// never waits behind megabytes of gradients.
//
// Thread safety: all calls from any thread.
class Link : public std::enable_shared_from_this<Link> {
 public:
  // Checks the server's certificate against the token. kInvalidInput: it is another server.
  static base::Result<std::shared_ptr<Link>> Connect(const WorkerOptions& options);

  // kInvalidInput when the coordinator does not let us in, kUnavailable when it cannot be reached.
  base::Result<proto::JoinReply> Join(const proto::JoinRequest& request);
  base::Result<proto::StatusReply> Status();

  // For streams; the context carries the credential that Join brought.
  void Prepare(grpc::ClientContext& context) const;
  // To WorkerOptions::on_sent: before every message, those of streams included.
  void Show(const google::protobuf::MessageLite& message) const;
  // The same for what goes to other workers without being a message.
  void Show(std::span<const float> floats) const;
  proto::Cluster::Stub& control() { return *control_; }
  proto::Cluster::Stub& bulk() { return *bulk_; }

  // Public samples; `take` gets each message and may refuse.
  base::Status Samples(const proto::SamplesRequest& request,
                       const std::function<base::Status(proto::SamplesReply&)>& take);

  std::shared_ptr<RendezvousStore> MakeStore(std::uint64_t generation);

  // The connection is lost: ends Samples and the calls of stores, wherever they wait, with
  // kUnavailable, and so all that begin later. Streams are their owner's.
  void Hang();

 private:
  Link(const WorkerOptions& options, std::shared_ptr<grpc::Channel> control,
       std::shared_ptr<grpc::Channel> bulk);
  class Store;
  class Call;

  const JoinToken token_;
  const std::function<void(std::string_view bytes)> on_sent_;
  const std::unique_ptr<proto::Cluster::Stub> control_, bulk_;
  std::string worker_, credential_;

  std::mutex mutex_;
  bool hung_ = false;
  std::set<grpc::ClientContext*> running_;
};

// A connection of its own to a server that has this certificate (PEM), and no other; without one:
// unencrypted. With `keepalive`, where the streams have no heartbeats of their own, a connection
// that has become silent is lost after so long.
std::shared_ptr<grpc::Channel> OpenChannel(const std::string& address,
                                           const std::string& certificate,
                                           std::chrono::milliseconds keepalive = {});

// Of no use to other machines.
bool IsLoopback(const std::string& address);

// The address that this machine has towards `coordinator` (HOST:PORT).
base::Result<std::string> AddressTowards(const std::string& coordinator);

}  // namespace motley::cluster

#endif  // MOTLEY_CLUSTER_LINK_H_
