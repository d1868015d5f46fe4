#include "motley/cluster/link.h"

#include <grpcpp/create_channel.h>
#include <grpcpp/security/credentials.h>
#include <sys/socket.h>

#include <chrono>
#include <utility>

#include "motley/base/descriptor.h"
#include "motley/cluster/job.h"
#include "motley/cluster/resolve.h"
#include "motley/cluster/service.h"

namespace motley::cluster {
namespace {

constexpr double kCallSeconds = 10.0;
constexpr double kSamplesSeconds = 60.0;

void SetDeadline(grpc::ClientContext& context, double seconds) {
  context.set_deadline(std::chrono::system_clock::now() +
                       std::chrono::milliseconds(static_cast<std::int64_t>(seconds * 1000)));
}

base::Status FromGrpc(const grpc::Status& status) {
  switch (status.error_code()) {
    case grpc::StatusCode::OK:
      return {};
    case grpc::StatusCode::UNAUTHENTICATED:
    case grpc::StatusCode::INVALID_ARGUMENT:
      return base::InvalidInput("the coordinator refuses: {}", status.error_message());
    case grpc::StatusCode::UNIMPLEMENTED:
      return base::InvalidInput("this is no coordinator of motley, or of another version");
    case grpc::StatusCode::RESOURCE_EXHAUSTED:
      // It has other reasons, too, which pass.
      if (status.error_message().find("larger than max") != std::string::npos) {
        return base::InvalidInput("a message of the coordinator is too large: {}",
                                  status.error_message());
      }
      [[fallthrough]];
    default:
      return base::Unavailable("the coordinator cannot be reached: {}", status.error_message());
  }
}

// Of a worker that was let in: its credential ends when it is sent away, and it may join again.
base::Status FromMemberCall(const grpc::Status& status) {
  if (status.error_code() == grpc::StatusCode::UNAUTHENTICATED) {
    return base::Unavailable("the coordinator has sent this worker away");
  }
  return FromGrpc(status);
}

}  // namespace

bool IsLoopback(const std::string& address) {
  return address == "localhost" || address == "::1" || address.starts_with("127.");
}

std::shared_ptr<grpc::Channel> OpenChannel(const std::string& address,
                                           const std::string& certificate,
                                           std::chrono::milliseconds keepalive) {
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(kMaxMessageToWorker);
  // Its own connection, not one that it shares with another channel to the same server.
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 1000);
  if (keepalive.count() > 0) {
    const auto half = static_cast<int>(keepalive.count() / 2);
    arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, half);
    arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, half);
    arguments.SetInt(GRPC_ARG_HTTP2_MIN_SENT_PING_INTERVAL_WITHOUT_DATA_MS, half);
    arguments.SetInt(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);  // as many as there are
  }
  if (certificate.empty()) {
    return grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), arguments);
  }
  arguments.SetSslTargetNameOverride(std::string(kCertificateName));
  grpc::SslCredentialsOptions ssl;
  ssl.pem_root_certs = certificate;
  return grpc::CreateCustomChannel(address, grpc::SslCredentials(ssl), arguments);
}

// The context of a call that Hang ends.
class Link::Call {
 public:
  Call(Link& link, double seconds) : link_(link) {
    link_.Prepare(context);
    SetDeadline(context, seconds);
    const std::lock_guard lock(link_.mutex_);
    link_.running_.insert(&context);
    if (link_.hung_) context.TryCancel();
  }
  ~Call() {
    const std::lock_guard lock(link_.mutex_);
    link_.running_.erase(&context);
  }
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;

  grpc::ClientContext context;

 private:
  Link& link_;
};

void Link::Hang() {
  const std::lock_guard lock(mutex_);
  hung_ = true;
  for (grpc::ClientContext* context : running_) context->TryCancel();
}

// Gloo's rendezvous through the coordinator.
class Link::Store final : public RendezvousStore {
 public:
  // The thread that forms a group may outlive the membership.
  Store(std::shared_ptr<Link> link, std::uint64_t generation)
      : link_(std::move(link)), generation_(generation) {}

  base::Status Set(const std::string& key, const std::string& value) override {
    proto::RendezvousRequest request;
    request.set_set_key(key);
    request.set_set_value(value);
    auto reply = Ask(request, kCallSeconds);
    return reply.ok() ? base::Status() : std::move(reply).status();
  }

  base::Result<std::vector<std::string>> Wait(const std::vector<std::string>& keys,
                                              double seconds) override {
    proto::RendezvousRequest request;
    for (const std::string& key : keys) request.add_wait_keys(key);
    request.set_wait_seconds(seconds);
    MOTLEY_ASSIGN_OR_RETURN(const proto::RendezvousReply reply,
                            Ask(request, seconds + kCallSeconds));
    if (!reply.found() || reply.values_size() != static_cast<int>(keys.size())) {
      return base::Unavailable("the other members did not come within {:.1f} s", seconds);
    }
    return std::vector<std::string>(reply.values().begin(), reply.values().end());
  }

 private:
  base::Result<proto::RendezvousReply> Ask(proto::RendezvousRequest& request, double seconds) {
    request.set_generation(generation_);
    Call call(*link_, seconds);
    link_->Show(request);
    proto::RendezvousReply reply;
    MOTLEY_RETURN_IF_ERROR(
        FromMemberCall(link_->control().Rendezvous(&call.context, request, &reply)));
    return reply;
  }

  const std::shared_ptr<Link> link_;
  const std::uint64_t generation_;
};

Link::Link(const WorkerOptions& options, std::shared_ptr<grpc::Channel> control,
           std::shared_ptr<grpc::Channel> bulk)
    : token_(options.token),
      on_sent_(options.on_sent),
      control_(proto::Cluster::NewStub(std::move(control))),
      bulk_(proto::Cluster::NewStub(std::move(bulk))) {}

base::Result<std::shared_ptr<Link>> Link::Connect(const WorkerOptions& options) {
  if (options.channel != nullptr) {
    return std::shared_ptr<Link>(new Link(options, options.channel, options.channel));
  }
  std::string certificate;
  if (!options.token.fingerprint.empty()) {
    MOTLEY_ASSIGN_OR_RETURN(certificate, FetchCertificate(options.coordinator,
                                                          options.token.fingerprint, kCallSeconds));
  }
  return std::shared_ptr<Link>(new Link(options, OpenChannel(options.coordinator, certificate),
                                        OpenChannel(options.coordinator, certificate)));
}

void Link::Show(const google::protobuf::MessageLite& message) const {
  if (on_sent_) on_sent_(message.SerializeAsString());
}

void Link::Show(std::span<const float> floats) const {
  if (!on_sent_) return;
  const auto bytes = std::as_bytes(floats);
  on_sent_({reinterpret_cast<const char*>(bytes.data()), bytes.size()});
}

base::Result<proto::JoinReply> Link::Join(const proto::JoinRequest& request) {
  Show(request);
  grpc::ClientContext context;
  SetDeadline(context, kCallSeconds);
  context.AddMetadata(kTokenId, token_.id);
  context.AddMetadata(kTokenSecret, token_.secret);
  proto::JoinReply reply;
  MOTLEY_RETURN_IF_ERROR(FromGrpc(control_->Join(&context, request, &reply)));
  worker_ = reply.worker();
  credential_ = reply.credential();
  return reply;
}

base::Result<proto::StatusReply> Link::Status() {
  grpc::ClientContext context;
  SetDeadline(context, kCallSeconds);
  context.AddMetadata(kTokenId, token_.id);
  context.AddMetadata(kTokenSecret, token_.secret);
  proto::StatusReply reply;
  MOTLEY_RETURN_IF_ERROR(FromGrpc(control_->Status(&context, {}, &reply)));
  return reply;
}

void Link::Prepare(grpc::ClientContext& context) const {
  context.AddMetadata(kWorker, worker_);
  context.AddMetadata(kCredential, credential_);
}

base::Status Link::Samples(const proto::SamplesRequest& request,
                           const std::function<base::Status(proto::SamplesReply&)>& take) {
  Call call(*this, kSamplesSeconds);
  Show(request);
  const auto reader = bulk_->Samples(&call.context, request);
  proto::SamplesReply reply;
  while (reader->Read(&reply)) {
    if (auto status = take(reply); !status.ok()) {
      call.context.TryCancel();
      (void)reader->Finish();
      return status;
    }
  }
  return FromMemberCall(reader->Finish());
}

std::shared_ptr<RendezvousStore> Link::MakeStore(std::uint64_t generation) {
  return std::make_shared<Store>(shared_from_this(), generation);
}

base::Result<std::string> AddressTowards(const std::string& coordinator) {
  const std::size_t colon = coordinator.rfind(':');
  const std::string port = coordinator.substr(colon + 1);
  std::string host = coordinator.substr(0, colon);
  if (host.size() > 2 && host.front() == '[') host = host.substr(1, host.size() - 2);  // IPv6
  MOTLEY_ASSIGN_OR_RETURN(const std::vector<Endpoint> found, Resolve(host, port, kCallSeconds));
  // Connecting a datagram socket sends nothing, and tells which way packets would go.
  std::string address;
  const base::Descriptor descriptor(
      ::socket(found[0].address.ss_family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  Endpoint own{.size = sizeof(sockaddr_storage)};
  void* const own_memory = &own.address;
  if (descriptor.get() >= 0 && ::connect(descriptor.get(), found[0].get(), found[0].size) == 0 &&
      ::getsockname(descriptor.get(), static_cast<sockaddr*>(own_memory), &own.size) == 0) {
    address = own.Number();
  }
  if (address.empty()) return base::Unavailable("there is no way from here to {}", coordinator);
  return address;
}

}  // namespace motley::cluster
