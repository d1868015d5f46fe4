#include "motley/cluster/shard_link.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "motley/cluster/link.h"
#include "motley/cluster/security.h"
#include "motley/cluster/service.h"

namespace motley::cluster {
namespace {

constexpr auto kConnectTime = std::chrono::seconds(5);
constexpr double kLinkSeconds = 1.0;
constexpr auto kKeepalive = std::chrono::seconds(20);
constexpr double kLeastPatience = 5.0, kPatienceBeats = 10.0;

}  // namespace

double ShardPatience(double heartbeat_seconds) {
  return std::max(kLeastPatience, kPatienceBeats * heartbeat_seconds);
}

base::Result<std::unique_ptr<ShardLink>> ShardLink::Open(const proto::Shards::Shard& shard,
                                                         const std::string& worker, Hooks hooks) {
  MOTLEY_RETURN_IF_ERROR(CheckUsable(shard.certificate()));
  const auto channel = OpenChannel(shard.address(), shard.certificate(), kKeepalive);
  if (!channel->WaitForConnected(std::chrono::system_clock::now() + kConnectTime)) {
    return base::Unavailable("{}, which holds a range of the model, cannot be reached at {}",
                             shard.host(), shard.address());
  }
  return std::unique_ptr<ShardLink>(new ShardLink(shard, worker, channel, std::move(hooks)));
}

ShardLink::ShardLink(proto::Shards::Shard shard, const std::string& worker,
                     const std::shared_ptr<grpc::Channel>& channel, Hooks hooks)
    : shard_(std::move(shard)), hooks_(std::move(hooks)), stub_(proto::Cluster::NewStub(channel)) {
  context_.AddMetadata(kWorker, worker);
  context_.AddMetadata(kCredential, shard_.key());
  stream_ = stub_->Exchange(&context_);
  reader_ = std::jthread([this] { Read(); });
  writer_ = std::jthread([this] { Write(); });
}

ShardLink::~ShardLink() {
  out_.Close();
  context_.TryCancel();
  reader_.join();
  writer_.join();
  (void)stream_->Finish();
}

void ShardLink::Read() {
  proto::Part part;
  base::Status status;
  while (status.ok() && stream_->Read(&part)) status = hooks_.take(part);
  if (out_.closed()) return;
  lost_ = true;
  hooks_.lost(status.ok() ? "the connection to " + shard_.host() + " is lost"
                          : shard_.host() + " sends nonsense: " + status.message());
}

void ShardLink::Write() {
  proto::Part part;
  while (!out_.closed()) {
    const auto item = out_.Pop(kLinkSeconds);
    if (!item) continue;
    Fill(*item, part);
    hooks_.sent(part);
    if (!stream_->Write(part)) break;
  }
}

}  // namespace motley::cluster
