// A coordinator and whatever a member may tell it: one kind of report, or parts, as the program is
// called, or any, in all ways of bringing gradients together. In between the member does what it is
// told, so that steps, evaluations and the forming of groups and shards are reached.
#include <grpcpp/channel.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <ctime>
#include <deque>
#include <filesystem>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "motley/base/clock.h"
#include "motley/cluster/cluster.grpc.pb.h"
#include "motley/cluster/coordinator.h"
#include "motley/cluster/job.h"
#include "motley/cluster/link.h"
#include "motley/cluster/parts.h"
#include "motley/cluster/service.h"
#include "motley/run/loop.h"
#include "tests/fuzz/small_world.h"

namespace {

using namespace motley;
using namespace motley::cluster;
using Element = Elements::Element;

// A member that is told nothing goes on with the next message of the input after so long.
constexpr auto kPatience = std::chrono::milliseconds(30);

struct World {
  World() : graph(SmallGraph()), sets{SmallSet(), SmallSet()} {
    std::string name = (std::filesystem::temp_directory_path() / "motley-fuzz-XXXXXX").string();
    if (::mkdtemp(name.data()) == nullptr) std::abort();
    tokens = std::make_unique<TokenStore>(std::filesystem::path(name) / "tokens.json",
                                          [] { return std::int64_t{std::time(nullptr)}; });
    token = tokens->Issue(365 * 86400, "").value();
  }
  const graph::Graph graph;
  const data::DataPair sets;
  std::unique_ptr<TokenStore> tokens;
  JoinToken token;
  const base::RealClock clock{};
};

std::string kind;  // of reports, or "part"; empty: any

// Gives all members the same, and lets them hold the ranges.
class OnePlan final : public plan::Controller {
 public:
  OnePlan(std::int64_t batch, int shards) : batch_(batch), shards_(shards) {}
  std::optional<plan::Plan> OnEvent(const plan::Event& event) override {
    const auto* joined = std::get_if<plan::DeviceJoined>(&event);
    if (joined == nullptr) return std::nullopt;
    plan::Plan plan;
    plan.shares.push_back({joined->device, batch_, 0});
    if (shards_ > 1) plan.hosts = {joined->device};
    return plan;
  }

 private:
  const std::int64_t batch_;
  const int shards_;
};

// The member, in threads of its own: reads orders, and answers them as the input says.
class Player {
 public:
  Player(const std::shared_ptr<grpc::Channel>& channel, const World& world, const JobKind& job,
         Elements elements, std::atomic<bool>& interrupt)
      : stub_(proto::Cluster::NewStub(channel)),
        world_(world),
        job_(job),
        trained_(job.merged_head ? graph::Split(world.graph).value().body : world.graph),
        parts_(trained_.parameter_count(), trained_.buffer_count(), job.shards),
        elements_(elements),
        interrupt_(interrupt) {
    thread_ = std::jthread([this] { Run(); });
  }

 private:
  void Run() {
    if (Join()) {
      work_ = stub_->Work(&work_context_);
      exchange_ = stub_->Exchange(&exchange_context_);
      {
        const std::jthread orders([this] { ReadOrders(); });
        const std::jthread models([this] {
          proto::Part ignored;
          while (exchange_->Read(&ignored)) {
          }
        });
        proto::Report ready;
        ready.mutable_ready()->set_can_host(true);
        Tell(ready);
        Play();
        work_context_.TryCancel();
        exchange_context_.TryCancel();
      }
      (void)work_->Finish();
      (void)exchange_->Finish();
    }
    interrupt_ = true;
  }

  bool Join() {
    grpc::ClientContext context;
    context.AddMetadata(kTokenId, world_.token.id);
    context.AddMetadata(kTokenSecret, world_.token.secret);
    proto::JoinRequest request;
    request.set_protocol(kProtocol);
    request.set_name("member");
    proto::JoinReply reply;
    if (!stub_->Join(&context, request, &reply).ok()) return false;
    for (grpc::ClientContext* stream : {&work_context_, &exchange_context_}) {
      stream->AddMetadata(kWorker, reply.worker());
      stream->AddMetadata(kCredential, reply.credential());
    }
    return true;
  }

  void ReadOrders() {
    proto::Order order;
    while (work_->Read(&order)) {
      if (order.has_heartbeat()) continue;
      {
        const std::lock_guard lock(mutex_);
        orders_.push_back(order);
      }
      changed_.notify_all();
    }
    {
      const std::lock_guard lock(mutex_);
      ended_ = true;
    }
    changed_.notify_all();
  }

  void Play() {
    while (const auto element = elements_.Next()) {
      proto::Order order;
      {
        std::unique_lock lock(mutex_);
        changed_.wait_for(lock, kPatience, [this] { return ended_ || !orders_.empty(); });
        if (ended_) return;
        if (!orders_.empty()) {
          order = std::move(orders_.front());
          orders_.pop_front();
        }
      }
      Answer(order, *element);
    }
  }

  void Answer(const proto::Order& order, const Element& element) {
    const bool fits = element.kind % 2 == 0;  // the order that it answers
    if (kind == "part") {
      SendPart(order, element.bytes, fits);
    } else if (auto report = Parse<proto::Report>(kind, element.bytes)) {
      if (fits && report->has_done()) {
        report->mutable_done()->set_generation(order.generation());
        report->mutable_done()->set_step(order.step());
      }
      if (fits && report->has_failed())
        report->mutable_failed()->set_generation(order.generation());
      if (element.kind % 8 < 6) DoAsTold(order, /*say_so=*/element.kind % 8 < 4);
      if (!element.bytes.empty()) Tell(*report);
      return;
    }
    DoAsTold(order, /*say_so=*/true);
  }

  void SendPart(const proto::Order& order, const std::string& bytes, bool fits) {
    auto part = Parse<proto::Part>("", bytes);
    if (!part || bytes.empty()) return;
    if (fits) {
      part->set_generation(order.generation());
      part->set_step(order.step());
    }
    exchange_->Write(*part);
  }

  void DoAsTold(const proto::Order& order, bool say_so) {
    proto::Report report;
    proto::Done& done = *report.mutable_done();
    done.set_generation(order.generation());
    done.set_step(order.step());
    done.set_finite(true);
    switch (order.kind_case()) {
      case proto::Order::kTrain:
        for (const proto::Range& range : order.train().part().open()) {
          done.set_samples(done.samples() + range.end() - range.begin());
        }
        if (job_.merged_head) {
          const std::int64_t features = trained_.num_classes();
          Send(order, proto::ARRAY_ACTIVATIONS, 0, done.samples() * features, 0);
        }
        if (!job_.gloo) SendGradient(order, done.samples());
        break;
      case proto::Order::kEvaluate:
        done.set_samples(order.evaluate().end() - order.evaluate().begin());
        break;
      case proto::Order::kSave:
        for (int i = 0; i < parts_.count(); ++i) {
          Send(order, proto::ARRAY_MODEL, parts_[i].offset, parts_[i].size, 0);
          if (i >= parts_.parameter_parts()) continue;
          Send(order, proto::ARRAY_VELOCITY, parts_[i].offset, parts_[i].size, 0);
        }
        break;
      case proto::Order::kHost:
        done.mutable_hosting()->set_address("127.0.0.1:1");
        break;
      case proto::Order::kLoad:
      case proto::Order::kForm:
      case proto::Order::kShards:
        break;
      default:
        return;  // nothing to answer
    }
    if (say_so) Tell(report);
  }

  void SendGradient(const proto::Order& order, std::int64_t samples) {
    for (int i = 0; i < parts_.count(); ++i) {
      const bool held = parts_.RangeOf(i) > 0;  // by this member, which sends the sum of it
      Send(order, held ? proto::ARRAY_SUM : proto::ARRAY_UPDATE, parts_[i].offset, parts_[i].size,
           samples);
    }
  }

  void Send(const proto::Order& order, proto::Array array, std::int64_t offset, std::int64_t count,
            std::int64_t samples) {
    proto::Part part;
    part.set_generation(order.generation());
    part.set_step(order.step());
    part.set_array(array);
    part.set_offset(offset);
    part.set_samples(samples);
    part.set_floats(std::string(static_cast<std::size_t>(count) * sizeof(float), '\0'));
    if (array == proto::ARRAY_SUM) part.add_norms()->set_samples(samples);
    exchange_->Write(part);
  }

  void Tell(proto::Report report) {
    if (report.sequence() == 0) report.set_sequence(sequence_ + 1);
    sequence_ = report.sequence();
    work_->Write(report);
  }

  const std::unique_ptr<proto::Cluster::Stub> stub_;
  const World& world_;
  const JobKind job_;
  const graph::Graph trained_;
  const Parts parts_;
  Elements elements_;
  std::atomic<bool>& interrupt_;
  grpc::ClientContext work_context_, exchange_context_;
  std::unique_ptr<grpc::ClientReaderWriter<proto::Report, proto::Order>> work_;
  std::unique_ptr<grpc::ClientReaderWriter<proto::Part, proto::Part>> exchange_;
  std::uint64_t sequence_ = 0;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<proto::Order> orders_;
  bool ended_ = false;
  std::jthread thread_;
};

}  // namespace

extern "C" int LLVMFuzzerInitialize(int*, char*** arguments) {
  kind = KindOf((*arguments)[0], "coordinator");
  if (!kind.empty() && kind != "part" && !HasKind<proto::Report>(kind)) std::abort();
  return 0;
}

// A byte for the kind of job; then a byte for how to send it, two for the length, and the message.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static World world;
  if (size == 0) return 0;
  const JobKind kind_of_job = JobKind::Of(data[0]);
  constexpr std::int64_t kBatch = 2;
  const proto::Job job = MakeJob(
      {.batch = kBatch, .merged_head = kind_of_job.merged_head, .shards = kind_of_job.shards},
      world.graph, world.sets);
  run::TrainState state =
      run::Trainer::Fresh(graph::InitialModel(world.graph, 1), *world.sets.train);
  run::TrainOptions train;
  train.batch = kBatch;
  train.epochs = 3;
  OnePlan plan(kBatch, kind_of_job.shards);
  CoordinatorOptions options;
  // A socket, because gRPC within a process passes memory between threads by locks that
  // ThreadSanitizer does not see.
  options.listen = "127.0.0.1:0";
  options.tls = false;
  options.tokens = world.tokens.get();
  options.gloo = kind_of_job.gloo;
  options.head_threads = 1;
  std::atomic<bool> interrupt{false};
  CoordinatorHooks hooks;
  hooks.interrupt = &interrupt;
  auto coordinator =
      Coordinator::Start(options, job, world.graph, world.sets, state, plan, world.clock, hooks)
          .value();
  const Player player(
      OpenChannel("127.0.0.1:" + std::to_string(coordinator->port()), /*certificate=*/""), world,
      kind_of_job, Elements(data + 1, size - 1), interrupt);
  run::Trainer::Hooks run_hooks;
  run_hooks.interrupt = &interrupt;
  (void)run::Loop(train, *coordinator, world.clock, run_hooks, std::move(state)).Run();
  coordinator = nullptr;  // which ends the streams of the player
  return 0;
}
