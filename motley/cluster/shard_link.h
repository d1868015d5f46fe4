#ifndef MOTLEY_CLUSTER_SHARD_LINK_H_
#define MOTLEY_CLUSTER_SHARD_LINK_H_

#include <grpcpp/channel.h>
#include <grpcpp/client_context.h>

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "motley/base/status.h"
#include "motley/cluster/cluster.grpc.pb.h"
#include "motley/cluster/outbox.h"
#include "motley/cluster/part_to_send.h"

namespace motley::cluster {

// How long a member waits for a part of its model before it names the hosts that keep it waiting:
// much longer than a part takes, also behind a slow network.
double ShardPatience(double heartbeat_seconds);

// A member's connection to the host of one range of the model: gradients there, weights back.
//
// Thread safety: all calls from any thread.
class ShardLink {
 public:
  struct Hooks {
    std::function<base::Status(const proto::Part& part)> take;  // what comes; may refuse
    // The connection is lost; not called once the link is being destroyed.
    std::function<void(const std::string& reason)> lost;
    std::function<void(const google::protobuf::MessageLite& message)> sent;  // before it goes out
  };

  // Trusts the certificate that the coordinator has handed out, and no other. kUnavailable when the
  // host cannot be reached within some seconds.
  static base::Result<std::unique_ptr<ShardLink>> Open(const proto::Shards::Shard& shard,
                                                       const std::string& worker, Hooks hooks);
  ~ShardLink();

  const proto::Shards::Shard& shard() const { return shard_; }
  bool lost() const { return lost_; }
  void Send(PartToSend part) { out_.Push(std::move(part)); }

 private:
  ShardLink(proto::Shards::Shard shard, const std::string& worker,
            const std::shared_ptr<grpc::Channel>& channel, Hooks hooks);
  void Read();
  void Write();

  const proto::Shards::Shard shard_;
  const Hooks hooks_;
  const std::unique_ptr<proto::Cluster::Stub> stub_;
  grpc::ClientContext context_;
  std::unique_ptr<grpc::ClientReaderWriter<proto::Part, proto::Part>> stream_;
  Outbox<PartToSend> out_;
  std::atomic<bool> lost_{false};
  std::jthread reader_, writer_;
};

}  // namespace motley::cluster

#endif  // MOTLEY_CLUSTER_SHARD_LINK_H_
