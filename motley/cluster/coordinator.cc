#include "motley/cluster/coordinator.h"

#include <utility>

#include "motley/cluster/coordinator_impl.h"
#include "motley/engine/native/native_device.h"

namespace motley::cluster {

base::Status Coordinator::Impl::Listen() {
  auto server =
      Server::Start(service_, options_.listen, options_.tls ? &options_.identity : nullptr);
  if (server.ok()) {
    server_ = std::move(server).value();
    port_ = server_->port();
    return {};
  }
  return base::Unavailable("cannot listen on {}: {}", options_.listen, server.status().message())
      .WithFix(
          "another program may have the port, or the address is not of this machine: choose "
          "another with --listen");
}

std::shared_ptr<grpc::Channel> Coordinator::Impl::InProcessChannel() {
  return server_->InProcessChannel();
}

void Coordinator::Impl::Stop(const std::string& reason) {
  if (server_ == nullptr) return;
  constexpr double kGoodbyeSeconds = 3.0;
  for (const SessionPtr& session : desk_.sessions()) {
    SendStop(session, reason);
  }
  const double deadline = clock_.Now() + kGoodbyeSeconds;
  while (!desk_.sessions().empty() && clock_.Now() < deadline) {
    desk_.TakeNews();
    desk_.WaitForNews(0.01);
  }
  Close();
}

void Coordinator::Impl::Close() {
  if (server_ == nullptr) return;
  desk_.BeginGeneration(0, {});  // no call waits for a group any more
  server_->Shutdown(0.2);
  server_ = nullptr;
}

Coordinator::Coordinator(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Coordinator::~Coordinator() = default;

base::Result<std::unique_ptr<Coordinator>> Coordinator::Start(
    const CoordinatorOptions& options, const proto::Job& job, graph::Graph graph,
    const data::DataPair& data, run::TrainState& state, plan::Controller& controller,
    const base::Clock& clock, const CoordinatorHooks& hooks) {
  MOTLEY_CHECK(options.tokens != nullptr, "a coordinator without tokens");
  MOTLEY_ASSIGN_OR_RETURN(data::Ledger ledger,
                          data::Ledger::Restore(state.epoch, state.epoch_size, state.committed));
  std::int64_t secret = 0;
  for (const run::PrivatePool& pool : state.private_pools) secret += pool.size;
  if (state.epoch_size - secret != data.train->size()) {
    return base::InvalidInput("the checkpoint is of {} public samples, and the training set has {}",
                              state.epoch_size - secret, data.train->size())
        .WithFix("resume with the same data, or start a new run from the exported weights");
  }
  MOTLEY_RETURN_IF_ERROR(CheckShards(job.shards(), graph, options.gloo, job.merged_head()));
  run::Pools pools(std::move(ledger), data.train->size(), state.private_pools);
  std::optional<MergedHead> merged;
  if (job.merged_head()) {
    auto split = SplitForMergedHead(graph, job.bn_batch(), options.gloo);
    if (!split.ok()) return std::move(split).status().In("the merged head");
    graph::Halves halves = std::move(split).value();
    engine::DeviceOptions device;
    device.threads = options.head_threads;
    MOTLEY_ASSIGN_OR_RETURN(auto head,
                            engine::native::MakeNativeDevice(
                                std::make_shared<const graph::Graph>(halves.head), device));
    merged = {std::move(halves), std::move(head)};
  }
  auto impl = std::make_unique<Impl>(options, job, std::move(graph), std::move(merged), data, state,
                                     std::move(pools), controller, clock, hooks);
  MOTLEY_RETURN_IF_ERROR(impl->Listen());
  return std::unique_ptr<Coordinator>(new Coordinator(std::move(impl)));
}

int Coordinator::port() const { return impl_->port(); }
std::shared_ptr<grpc::Channel> Coordinator::InProcessChannel() { return impl_->InProcessChannel(); }
const graph::Graph& Coordinator::graph() const { return impl_->graph(); }
std::string Coordinator::kind() const { return "cluster"; }
std::int64_t Coordinator::test_samples() const { return impl_->test_samples(); }
const data::Ledger& Coordinator::ledger() const { return impl_->ledger(); }
void Coordinator::StartNextEpoch() { impl_->StartNextEpoch(); }
base::Result<run::Update> Coordinator::Step(const optim::SgdOptions& sgd) {
  return impl_->Step(sgd);
}
base::Result<run::Evaluation> Coordinator::Evaluate() { return impl_->Evaluate(); }
base::Status Coordinator::Capture(run::TrainState& state) { return impl_->Capture(state); }
void Coordinator::End() { impl_->End(); }
void Coordinator::Stop(const std::string& reason) { impl_->Stop(reason); }
telemetry::BytesSent Coordinator::traffic() const { return impl_->traffic(); }
std::vector<MemberTotal> Coordinator::totals() const { return impl_->totals(); }
int Coordinator::groups() const { return impl_->groups(); }

}  // namespace motley::cluster
