#include "motley/cluster/service.h"

#include <grpcpp/resource_quota.h>
#include <grpcpp/security/server_credentials.h>
#include <grpcpp/server_builder.h>

#include <algorithm>
#include <thread>
#include <utility>

#include "motley/data/pooled_dataset.h"

namespace motley::cluster {
namespace {

// A part of 1 MB and its header; reports are far smaller.
constexpr int kMaxMessageBytes = 2 << 20;
// Members ask a shard every ten seconds whether it is still there (ShardLink).
constexpr int kPingMilliseconds = 5000;

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
    status = handler_.OnReport(session, report);
  }
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
    status = handler_.OnPart(session, part);
  }
  session->Close(status.ok() ? "connection lost" : status.message());
  writer.join();
  return Leave(caller, session, /*work=*/false, status);
}

grpc::Status Service::Samples(grpc::ServerContext* context, const proto::SamplesRequest* request,
                              grpc::ServerWriter<proto::SamplesReply>* writer) {
  const Caller caller = CallerOf(*context);
  const auto session = handler_.Authenticate(caller);
  if (!session.ok()) return Refuse(caller, "samples", session.status());
  traffic_.Control(ByteSize(*request));
  const base::Status status = handler_.Samples(*request, [&](const proto::SamplesReply& reply) {
    const bool own = std::any_of(reply.ids().begin(), reply.ids().end(), data::IsPrivate);
    own ? traffic_.PrivateData(ByteSize(reply)) : traffic_.PublicData(ByteSize(reply));
    return writer->Write(reply);
  });
  return status.ok() ? grpc::Status::OK : Refuse(caller, "samples", status);
}

grpc::Status Service::Rendezvous(grpc::ServerContext* context,
                                 const proto::RendezvousRequest* request,
                                 proto::RendezvousReply* reply) {
  const Caller caller = CallerOf(*context);
  const auto session = handler_.Authenticate(caller);
  if (!session.ok()) return Refuse(caller, "rendezvous", session.status());
  auto found = handler_.Rendezvous(*request);
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

std::unique_ptr<grpc::Server> StartServer(Service& service, const std::string& listen,
                                          const Identity* identity, int* port) {
  grpc::ServerBuilder builder;
  if (!listen.empty()) {
    std::shared_ptr<grpc::ServerCredentials> credentials = grpc::InsecureServerCredentials();
    if (identity != nullptr) {
      grpc::SslServerCredentialsOptions ssl(GRPC_SSL_DONT_REQUEST_CLIENT_CERTIFICATE);
      ssl.pem_key_cert_pairs.push_back({identity->key_pem, identity->certificate_pem});
      credentials = grpc::SslServerCredentials(ssl);
    }
    builder.AddListeningPort(listen, credentials, port);
  }
  builder.RegisterService(&service);
  builder.SetMaxReceiveMessageSize(kMaxMessageBytes);
  // Without this a second coordinator could share the port and steal every other connection.
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
  builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, 32);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS,
                             kPingMilliseconds);
  return builder.BuildAndStart();
}

}  // namespace motley::cluster
