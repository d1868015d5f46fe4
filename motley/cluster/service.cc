#include "motley/cluster/service.h"

#include <grpcpp/resource_quota.h>
#include <grpcpp/security/server_credentials.h>
#include <grpcpp/server_builder.h>
#include <grpcpp/support/server_interceptor.h>

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>

#include "motley/data/pooled_dataset.h"
#include "motley/run/memory.h"

namespace motley::cluster {
namespace {

// A part of 1 MB and its header; reports are far smaller. gRPC ends a call with a message beyond
// its own limit and tells nobody, so that one is higher: what comes between is refused here.
constexpr int kMaxMessageBytes = 2 << 20, kMaxReadBytes = 4 << 20;
// Members ask a shard every ten seconds whether it is still there (ShardLink).
constexpr int kPingMilliseconds = 5000;
// Strangers are done with their handshake by then, and do not stay without a call; members have two
// for as long as they are there.
constexpr int kHandshakeMilliseconds = 10000, kIdleMilliseconds = 60000;
// For what has been received and not been looked at yet, which strangers could fill with the begins
// of messages: a part of a gradient for each of a few hundred workers, or a quarter of what is
// free.
constexpr double kLeastReceiveBytes = 512e6, kMostReceiveBytes = 16e9;
// A thread for each call that is being answered: two streams of each worker, and some for others.
constexpr int kMaxThreads = 2 * 4096 + 256;
// A worker asks for samples of two sets, once at a time. Who does not read what it has asked for
// keeps a thread until its deadline.
constexpr int kMaxSamplesCalls = 4;
constexpr auto kLongestSamples = std::chrono::minutes(5);

Caller CallerOf(const grpc::ServerContext& context) {
  // A channel inside of this process has no address.
  Caller caller{context.peer() == "unknown" ? "this process" : context.peer(), {}};
  for (const auto& [key, value] : context.client_metadata()) {
    caller.metadata.emplace(std::string(key.data(), key.size()),
                            std::string(value.data(), value.size()));
  }
  return caller;
}

grpc::StatusCode CodeOf(base::Code code) {
  switch (code) {
    case base::Code::kOk:
      return grpc::StatusCode::OK;
    case base::Code::kInvalidInput:
      return grpc::StatusCode::INVALID_ARGUMENT;
    case base::Code::kNotFound:
      return grpc::StatusCode::UNAUTHENTICATED;
    case base::Code::kUnavailable:
      return grpc::StatusCode::UNAVAILABLE;
    case base::Code::kCancelled:
      return grpc::StatusCode::CANCELLED;
    case base::Code::kInternal:
      return grpc::StatusCode::INTERNAL;
  }
  return grpc::StatusCode::INTERNAL;
}

grpc::Status ToGrpc(const base::Status& status) {
  return status.ok() ? grpc::Status::OK : grpc::Status(CodeOf(status.code()), status.message());
}

std::int64_t ByteSize(const google::protobuf::MessageLite& message) {
  return static_cast<std::int64_t>(message.ByteSizeLong());
}

// Tells of calls whose only message cannot be read: gRPC answers them itself.
class UnreadableCalls final : public grpc::experimental::ServerInterceptorFactoryInterface {
 public:
  explicit UnreadableCalls(Service& service) : service_(service) {}

  grpc::experimental::Interceptor* CreateServerInterceptor(
      grpc::experimental::ServerRpcInfo* info) override {
    using Type = grpc::experimental::ServerRpcInfo::Type;
    if (info->type() == Type::BIDI_STREAMING) return nullptr;  // reads its messages itself
    return new Listener(service_, *info);
  }

 private:
  class Listener final : public grpc::experimental::Interceptor {
   public:
    Listener(Service& service, grpc::experimental::ServerRpcInfo& info)
        : service_(service), info_(info) {}
    void Intercept(grpc::experimental::InterceptorBatchMethods* methods) override {
      using Point = grpc::experimental::InterceptionHookPoints;
      if (methods->QueryInterceptionHookPoint(Point::PRE_SEND_STATUS) &&
          methods->GetSendStatus().error_code() == grpc::StatusCode::INTERNAL) {
        service_.OnRefused(info_.server_context()->peer(),
                           fmt::format("{}: a message that cannot be read", info_.method()));
      }
      methods->Proceed();
    }

   private:
    Service& service_;
    grpc::experimental::ServerRpcInfo& info_;
  };

  Service& service_;
};

base::Status CheckSize(const google::protobuf::MessageLite& message) {
  const std::int64_t bytes = ByteSize(message);
  return bytes <= kMaxMessageBytes ? base::Status()
                                   : base::InvalidInput("a message of {} bytes", bytes);
}

// How a stream ended whose last message was well: members cancel theirs, and a connection that is
// lost cancels them as well, which may show a moment later.
base::Status EndOf(const grpc::ServerContext& context, const Session& session) {
  for (int i = 0; i < 20; ++i) {
    if (context.IsCancelled() || session.closed()) return {};
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return base::InvalidInput("a message that cannot be read, or the end of its stream");
}

}  // namespace

grpc::Status Service::Refuse(const Caller& caller, const std::string& call,
                             const base::Status& status) {
  // Who may not come in at all was logged with the reason, which the caller is not told.
  if (status.code() != base::Code::kNotFound) {
    handler_.OnRefused(caller, call + ": " + status.message());
  }
  return ToGrpc(status);
}

grpc::Status Service::Join(grpc::ServerContext* context, const proto::JoinRequest* request,
                           proto::JoinReply* reply) {
  const Caller caller = CallerOf(*context);
  if (auto size = CheckSize(*request); !size.ok()) return Refuse(caller, "join", size);
  auto joined = handler_.Join(caller, *request);
  if (!joined.ok()) return Refuse(caller, "join", joined.status());
  *reply = std::move(joined).value();
  traffic_.Control(ByteSize(*request) + ByteSize(*reply));
  return grpc::Status::OK;
}

base::Result<SessionPtr> Service::Enter(const Caller& caller, grpc::ServerContext* context,
                                        bool work) {
  MOTLEY_ASSIGN_OR_RETURN(SessionPtr session, handler_.Authenticate(caller));
  if (!session->Attach(work, context)) {
    return base::InvalidInput("worker '{}' is here already, or gone", session->name);
  }
  return session;
}

grpc::Status Service::Leave(const Caller& caller, const SessionPtr& session, bool work,
                            const base::Status& status) {
  session->Detach(work);
  if (!status.ok()) handler_.OnRefused(caller, session->name + ": " + status.message());
  handler_.OnClosed(session, status.ok() ? "connection lost" : status.message());
  return ToGrpc(status);
}

grpc::Status Service::Work(grpc::ServerContext* context,
                           grpc::ServerReaderWriter<proto::Order, proto::Report>* stream) {
  const Caller caller = CallerOf(*context);
  auto entered = Enter(caller, context, /*work=*/true);
  if (!entered.ok()) return Refuse(caller, "work", entered.status());
  const SessionPtr session = std::move(entered).value();
  std::jthread writer([&] {
    proto::Order heartbeat;
    heartbeat.mutable_heartbeat();
    while (!session->closed()) {
      const auto order = session->orders.Pop(heartbeat_seconds_);
      if (session->closed()) break;
      const proto::Order& message = order ? *order : heartbeat;
      if (!stream->Write(message)) break;
      traffic_.Control(ByteSize(message));
    }
  });
  proto::Report report;
  base::Status status;
  while (status.ok() && stream->Read(&report)) {
    traffic_.Control(ByteSize(report));
    status = CheckSize(report);
    if (status.ok()) status = handler_.OnReport(session, report);
  }
  if (status.ok()) status = EndOf(*context, *session);
  session->Close(status.ok() ? "connection lost" : status.message());
  writer.join();
  return Leave(caller, session, /*work=*/true, status);
}

void Service::Count(const proto::Part& part) {
  const std::int64_t bytes = ByteSize(part);
  switch (part.array()) {
    case proto::ARRAY_UPDATE:
    case proto::ARRAY_SUM:
      return traffic_.Gradient(bytes);
    case proto::ARRAY_ACTIVATIONS:
      return traffic_.Activations(bytes);
    default:
      return traffic_.Weights(bytes);
  }
}

grpc::Status Service::Exchange(grpc::ServerContext* context,
                               grpc::ServerReaderWriter<proto::Part, proto::Part>* stream) {
  const Caller caller = CallerOf(*context);
  auto entered = Enter(caller, context, /*work=*/false);
  if (!entered.ok()) return Refuse(caller, "exchange", entered.status());
  const SessionPtr session = std::move(entered).value();
  stream->SendInitialMetadata();  // who waits for it knows that it was let in
  std::jthread writer([&] {
    proto::Part part;
    while (!session->closed()) {
      const auto item = session->parts.Pop(heartbeat_seconds_);
      if (!item) continue;
      Fill(*item, part);
      if (on_sent_) on_sent_(part);
      if (!stream->Write(part)) break;
      Count(part);
    }
  });
  proto::Part part;
  base::Status status;
  while (status.ok() && stream->Read(&part)) {
    Count(part);
    status = CheckSize(part);
    if (status.ok()) status = handler_.OnPart(session, part);
  }
  if (status.ok()) status = EndOf(*context, *session);
  session->Close(status.ok() ? "connection lost" : status.message());
  writer.join();
  return Leave(caller, session, /*work=*/false, status);
}

grpc::Status Service::Samples(grpc::ServerContext* context, const proto::SamplesRequest* request,
                              grpc::ServerWriter<proto::SamplesReply>* writer) {
  const Caller caller = CallerOf(*context);
  const auto session = handler_.Authenticate(caller);
  if (!session.ok()) return Refuse(caller, "samples", session.status());
  if (auto size = CheckSize(*request); !size.ok()) return Refuse(caller, "samples", size);
  traffic_.Control(ByteSize(*request));
  Session& reader = **session;
  if (context->deadline() > std::chrono::system_clock::now() + kLongestSamples) {
    return Refuse(caller, "samples", base::InvalidInput("a call without a deadline"));
  }
  base::Status status;
  if (++reader.samples_calls > kMaxSamplesCalls) {
    status = base::InvalidInput("more than {} calls at once", kMaxSamplesCalls);
  } else {
    status = handler_.Samples(*request, [&](const proto::SamplesReply& reply) {
      const bool own = std::any_of(reply.ids().begin(), reply.ids().end(), data::IsPrivate);
      own ? traffic_.PrivateData(ByteSize(reply)) : traffic_.PublicData(ByteSize(reply));
      return !reader.closed() && writer->Write(reply);
    });
  }
  --reader.samples_calls;
  // That nobody listens any more is no offence.
  if (status.ok() || status.code() == base::Code::kCancelled) return ToGrpc(status);
  return Refuse(caller, "samples", status);
}

grpc::Status Service::Rendezvous(grpc::ServerContext* context,
                                 const proto::RendezvousRequest* request,
                                 proto::RendezvousReply* reply) {
  const Caller caller = CallerOf(*context);
  const auto session = handler_.Authenticate(caller);
  if (!session.ok()) return Refuse(caller, "rendezvous", session.status());
  if (auto size = CheckSize(*request); !size.ok()) return Refuse(caller, "rendezvous", size);
  auto found = handler_.Rendezvous(*session, *request);
  if (!found.ok()) return Refuse(caller, "rendezvous", found.status());
  *reply = std::move(found).value();
  traffic_.Control(ByteSize(*request) + ByteSize(*reply));
  return grpc::Status::OK;
}

grpc::Status Service::Status(grpc::ServerContext* context, const proto::StatusRequest*,
                             proto::StatusReply* reply) {
  const Caller caller = CallerOf(*context);
  auto status = handler_.Status(caller);
  if (!status.ok()) return Refuse(caller, "status", status.status());
  *reply = std::move(status).value();
  return grpc::Status::OK;
}

base::Result<std::unique_ptr<Server>> Server::Start(Service& service, const std::string& listen,
                                                    const Identity* identity) {
  std::unique_ptr<Server> server(new Server);
  grpc::ServerBuilder builder;
  std::shared_ptr<grpc::experimental::ExternalConnectionAcceptor> acceptor;
  if (!listen.empty()) {
    MOTLEY_ASSIGN_OR_RETURN(server->doorman_, Doorman::Listen(listen, identity != nullptr));
    std::shared_ptr<grpc::ServerCredentials> credentials = grpc::InsecureServerCredentials();
    if (identity != nullptr) {
      grpc::SslServerCredentialsOptions ssl(GRPC_SSL_DONT_REQUEST_CLIENT_CERTIFICATE);
      ssl.pem_key_cert_pairs.push_back({identity->key_pem, identity->certificate_pem});
      credentials = grpc::SslServerCredentials(ssl);
    }
    using From = grpc::ServerBuilder::experimental_type::ExternalConnectionType;
    acceptor = builder.experimental().AddExternalConnectionAcceptor(From::FROM_FD, credentials);
  }
  builder.RegisterService(&service);
  builder.SetMaxReceiveMessageSize(kMaxReadBytes);
  builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, 32);
  builder.AddChannelArgument(GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS, kHandshakeMilliseconds);
  builder.AddChannelArgument(GRPC_ARG_MAX_CONNECTION_IDLE_MS, kIdleMilliseconds);
  grpc::ResourceQuota quota("motley");
  quota.Resize(static_cast<std::size_t>(
      std::clamp(run::FreeBytes("/") / 4, kLeastReceiveBytes, kMostReceiveBytes)));
  quota.SetMaxThreads(kMaxThreads);
  builder.SetResourceQuota(quota);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS,
                             kPingMilliseconds);
  std::vector<std::unique_ptr<grpc::experimental::ServerInterceptorFactoryInterface>> listeners;
  listeners.push_back(std::make_unique<UnreadableCalls>(service));
  builder.experimental().SetInterceptorCreators(std::move(listeners));
  server->grpc_ = builder.BuildAndStart();
  if (server->grpc_ == nullptr) return base::Internal("gRPC does not start");
  if (acceptor != nullptr) {
    server->doorman_->Open(
        [acceptor](base::Descriptor connection) {
          grpc::experimental::ExternalConnectionAcceptor::NewConnectionParameters parameters;
          parameters.fd = connection.Release();
          acceptor->HandleNewConnection(&parameters);
        },
        [&service](const std::string& peer, const std::string& what) {
          service.OnRefused(peer, what);
        });
  }
  return server;
}

std::shared_ptr<grpc::Channel> Server::InProcessChannel() {
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(-1);  // of our own: a job with a large network, among others
  return grpc_->InProcessChannel(arguments);
}

void Server::Shutdown(double seconds) {
  doorman_ = nullptr;
  grpc_->Shutdown(std::chrono::system_clock::now() +
                  std::chrono::milliseconds(static_cast<std::int64_t>(1e3 * seconds)));
  grpc_->Wait();
}

}  // namespace motley::cluster
