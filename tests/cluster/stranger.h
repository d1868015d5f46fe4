#ifndef MOTLEY_TESTS_CLUSTER_STRANGER_H_
#define MOTLEY_TESTS_CLUSTER_STRANGER_H_

#include <grpcpp/create_channel.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/security/credentials.h>

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "motley/cluster/cluster.grpc.pb.h"
#include "motley/cluster/job.h"
#include "motley/cluster/service.h"
#include "tests/cluster/cluster.h"

namespace motley::cluster {

// Says to a coordinator whatever a test wants, by the same calls as a worker.
class Stranger {
 public:
  Stranger(const TestCluster& cluster, const JoinToken& token) : token_(token) {
    grpc::SslCredentialsOptions ssl;
    ssl.pem_root_certs = FetchCertificate(cluster.address(), token.fingerprint, 5.0).value();
    grpc::ChannelArguments arguments;
    arguments.SetSslTargetNameOverride(std::string(kCertificateName));
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    channel_ = grpc::CreateCustomChannel(cluster.address(), grpc::SslCredentials(ssl), arguments);
    stub_ = proto::Cluster::NewStub(channel_);
  }

  void Prepare(grpc::ClientContext& context, int seconds = 10) const {
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(seconds));
    context.AddMetadata(kTokenId, token_.id);
    context.AddMetadata(kTokenSecret, token_.secret);
    if (worker_.empty()) return;
    context.AddMetadata(kWorker, worker_);
    context.AddMetadata(kCredential, credential_);
  }

  grpc::Status Join(const std::string& name, std::uint32_t protocol = kProtocol,
                    const std::string& host = "", bool again = false) {
    grpc::ClientContext context;
    Prepare(context);
    proto::JoinRequest request;
    request.set_protocol(protocol);
    request.set_name(name);
    request.set_host(host);
    request.set_again(again);
    proto::JoinReply reply;
    const grpc::Status status = stub_->Join(&context, request, &reply);
    worker_ = reply.worker();
    credential_ = reply.credential();
    return status;
  }

  // Sends reports one after the other; how the coordinator ends the stream.
  grpc::Status Report(const std::vector<proto::Report>& reports) {
    grpc::ClientContext context;
    Prepare(context);
    const auto stream = stub_->Work(&context);
    for (const proto::Report& report : reports) stream->Write(report);
    proto::Order order;
    while (stream->Read(&order)) {
    }
    return stream->Finish();
  }

  // Says that it is done with whatever it is told, and sends no gradient; until it is sent away or
  // the run is over.
  // `answer` may write another report, and is true then.
  void Pretend(const std::function<void(const proto::Order&)>& before = {},
               const std::function<bool(const proto::Order&, proto::Report&)>& answer = {}) {
    grpc::ClientContext context;
    Prepare(context, 60);
    const auto stream = stub_->Work(&context);
    std::uint64_t sequence = 0;
    proto::Report ready;
    ready.set_sequence(++sequence);
    *ready.mutable_ready() = ready_;
    stream->Write(ready);
    proto::Order order;
    while (stream->Read(&order) && !order.has_stop()) {
      proto::Report report;
      report.set_sequence(++sequence);
      if (order.has_heartbeat() || order.has_abort()) {
        report.mutable_heartbeat();
      } else if (!answer || !answer(order, report)) {
        if (before) before(order);
        proto::Done& done = *report.mutable_done();
        done.set_generation(order.generation());
        done.set_step(order.step());
        done.set_finite(true);
        for (const proto::Range& range : order.train().part().open()) {
          done.set_samples(done.samples() + range.end() - range.begin());
        }
      }
      stream->Write(report);
    }
    context.TryCancel();
    (void)stream->Finish();
  }

  // Says of the first `models` that it has got them, and never again.
  void PretendWithModels(int models) {
    Pretend({}, [&models](const proto::Order& order, proto::Report& report) {
      if (!order.has_load() || models-- > 0) return false;
      report.mutable_heartbeat();
      return true;
    });
  }

  // Looks at the parts that come, until the connection ends. `open` is told how to send others.
  using Look = std::function<void(const proto::Part&)>;
  void ReadParts(const Look& look, const std::function<void(const Look& send)>& open = {}) {
    grpc::ClientContext context;
    Prepare(context, 60);
    const auto stream = stub_->Exchange(&context);
    if (open) open([&stream](const proto::Part& part) { stream->Write(part); });
    proto::Part part;
    while (stream->Read(&part)) look(part);
    (void)stream->Finish();
  }

  grpc::Status SendPart(const proto::Part& part) {
    grpc::ClientContext context;
    Prepare(context, 2);  // between two steps a part is not refused but passed over
    const auto stream = stub_->Exchange(&context);
    stream->Write(part);
    proto::Part ignored;
    while (stream->Read(&ignored)) {
    }
    return stream->Finish();
  }

  // Any bytes as a message of any call.
  grpc::Status SendBytes(const std::string& method, const std::string& bytes) {
    grpc::GenericStub generic(channel_);
    grpc::ClientContext context;
    Prepare(context);
    const grpc::Slice slice(bytes);
    const grpc::ByteBuffer request(&slice, 1);
    grpc::CompletionQueue queue;
    auto call = generic.PrepareCall(&context, "/motley.cluster.proto.Cluster/" + method, &queue);
    int tag = 0;
    const auto next = [&] {
      void* got = nullptr;
      bool ok = false;
      return queue.Next(&got, &ok) && ok;
    };
    call->StartCall(&tag);
    if (next()) {
      call->Write(request, &tag);
      if (next()) {
        call->WritesDone(&tag);
        next();
      }
      grpc::ByteBuffer reply;
      do call->Read(&reply, &tag);
      while (next());
    }
    grpc::Status status;
    call->Finish(&status, &tag);
    next();
    return status;
  }

  proto::Cluster::Stub& stub() { return *stub_; }
  std::string worker_, credential_;
  proto::Ready ready_;  // what it says of itself

 private:
  const JoinToken token_;
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<proto::Cluster::Stub> stub_;
};

}  // namespace motley::cluster

#endif  // MOTLEY_TESTS_CLUSTER_STRANGER_H_
