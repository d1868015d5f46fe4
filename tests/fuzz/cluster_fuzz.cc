// Sequences of messages to the handlers behind the network: those of the coordinator's front desk,
// those with which a worker takes what a coordinator sends, and those of a worker that holds a
// range of the model. Of one kind of message, as the program is called, or of all.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "motley/base/clock.h"
#include "motley/cluster/boundary.h"
#include "motley/cluster/desk.h"
#include "motley/cluster/head_server.h"
#include "motley/cluster/incoming_model.h"
#include "motley/cluster/job.h"
#include "motley/cluster/remote_dataset.h"
#include "motley/cluster/shard_host.h"
#include "motley/cluster/worker_data.h"
#include "motley/engine/native/native_device.h"
#include "motley/graph/graph.h"
#include "tests/fuzz/small_world.h"

namespace {

using namespace motley;
using namespace motley::cluster;

// All that lives as long as the process.
struct World {
  World()
      : data{SmallSet(), SmallSet()},
        graph(SmallGraph()),
        head(std::make_shared<const graph::Graph>(graph::Split(graph).value().head)),
        job(MakeJob({.batch = 3}, graph, data)) {
    device.threads = 1;
    device.kernel_choices =
        engine::native::MakeNativeDevice(head, device).value()->kernel_choices();
    std::string name = (std::filesystem::temp_directory_path() / "motley-fuzz-XXXXXX").string();
    if (::mkdtemp(name.data()) == nullptr) std::abort();
    tokens = std::make_unique<TokenStore>(std::filesystem::path(name) / "tokens.json",
                                          [] { return std::int64_t{std::time(nullptr)}; });
    token = tokens->Issue(365 * 86400, "").value();
    options.tokens = tokens.get();
    options.heartbeat_seconds = 3600;
    options.gloo = true;  // for the rendezvous
  }
  const data::DataPair data;
  const graph::Graph graph;
  const std::shared_ptr<const graph::Graph> head;
  engine::DeviceOptions device;  // with kernels that need not be measured for every sequence
  std::unique_ptr<TokenStore> tokens;
  JoinToken token;
  CoordinatorOptions options;
  const base::RealClock clock{};
  const CoordinatorHooks hooks;
  const proto::Job job;
};

// One coordinator's desk with a step in progress, one worker's end of a stream, and one shard.
class Sequence {
 public:
  explicit Sequence(World& world)
      : model_(world.graph, std::vector<float>(size(world.graph.parameter_count())),
               std::vector<float>(size(world.graph.parameter_count())),
               std::vector<float>(size(world.graph.buffer_count()))),
        head_(engine::native::MakeNativeDevice(world.head, world.device).value(),
              std::vector<float>(size(world.head->parameter_count())),
              std::vector<float>(size(world.head->parameter_count())), /*seed=*/1,
              /*update_threads=*/1),
        desk_(world.options, world.job, world.data, model_, &head_, world.clock, world.hooks),
        incoming_(model_.parts(), /*with_velocity=*/true),
        boundary_(graph::Count(world.head->input_shape()), parts_out_),
        world_(world),
        caller_{"fuzz", {{kTokenId, world.token.id}, {kTokenSecret, world.token.secret}}},
        halves_(world.graph.parameter_count(), world.graph.buffer_count(), /*ranges=*/2) {
    proto::JoinRequest request;
    request.set_protocol(kProtocol);
    request.set_name("first");
    Enter(desk_.Join(caller_, request).value());
    desk_.BeginGeneration(1, {session_});
    desk_.ExpectUpload({1, 1}, "first");
    model_.Begin(0, {.key = {1, 1},
                     .contributors = {{"first", 3}},
                     .samples = 3,
                     .sgd = {},
                     .on_part = {},
                     .on_complete = {}});
    HeadServer::Step step{.key = {1, 1}, .contributors = {{"first", 3}}};
    step.batch.labels = {0, 1, 1};
    step.batch.ids = {0, 1, 2};
    step.on_gradient = [](const std::string&, const ModelArray&) {};
    head_.Begin(0, std::move(step));
    boundary_.Begin({1, 1}, 3);
    FillShard();
  }

  struct Kind {
    const char* name;
    void (Sequence::*take)(const std::string& bytes);
  };
  static const std::vector<Kind>& Kinds() {
    static const std::vector<Kind> kinds = {{"join", &Sequence::TakeJoin},
                                            {"report", &Sequence::TakeReport},
                                            {"part", &Sequence::TakePart},
                                            {"samples_request", &Sequence::TakeSamplesRequest},
                                            {"rendezvous", &Sequence::TakeRendezvous},
                                            {"status", &Sequence::TakeStatus},
                                            {"model", &Sequence::TakeModel},
                                            {"join_reply", &Sequence::TakeJoinReply},
                                            {"samples_reply", &Sequence::TakeSamplesReply},
                                            {"activations", &Sequence::TakeActivations},
                                            {"train", &Sequence::TakeTrain},
                                            {"shard_state", &Sequence::TakeShardState},
                                            {"shard_order", &Sequence::TakeShardOrder},
                                            {"shard_part", &Sequence::TakeShardPart}};
    return kinds;
  }

  void Send(std::size_t kind, const std::string& bytes) {
    (this->*Kinds()[kind % Kinds().size()].take)(bytes);
  }

 private:
  void TakeJoin(const std::string& bytes) {
    With<proto::JoinRequest>(bytes, [&](auto& request) {
      auto joined = desk_.Join(caller_, request);
      if (joined.ok()) Enter(*joined);
    });
  }
  void TakeReport(const std::string& bytes) {
    With<proto::Report>(bytes, [&](auto& report) {
      // Else almost all would be refused as repeated.
      if (report.sequence() == 0) report.set_sequence(session_->last_sequence + 1);
      if (!desk_.OnReport(session_, report).ok()) desk_.OnClosed(session_, "refused");
    });
  }
  void TakePart(const std::string& bytes) {
    With<proto::Part>(bytes, [&](auto& part) { (void)desk_.OnPart(session_, part); });
  }
  void TakeSamplesRequest(const std::string& bytes) {
    With<proto::SamplesRequest>(bytes, [&](auto& request) {
      (void)desk_.Samples(request, [](const proto::SamplesReply&) { return true; });
    });
  }
  void TakeRendezvous(const std::string& bytes) {
    With<proto::RendezvousRequest>(bytes, [&](auto& request) {
      if (request.wait_seconds() > 0.0) request.set_wait_seconds(0.0);  // the fuzzer has no time
      (void)desk_.Rendezvous(session_, request);
    });
  }
  void TakeStatus(const std::string& bytes) {
    With<proto::StatusRequest>(bytes, [&](auto&) { (void)desk_.Status(caller_); });
  }
  void TakeModel(const std::string& bytes) {
    With<proto::Part>(bytes, [&](auto& part) { (void)incoming_.Take(part); });
  }
  void TakeJoinReply(const std::string& bytes) {
    With<proto::JoinReply>(bytes, [&](auto& reply) { TakeJob(reply.job()); });
  }
  void TakeSamplesReply(const std::string& bytes) {
    With<proto::SamplesReply>(bytes, [&](auto& reply) { TakeSamples(reply); });
  }
  void TakeActivations(const std::string& bytes) {
    With<proto::Part>(bytes, [&](auto& part) { (void)boundary_.Take(part); });
  }
  void TakeTrain(const std::string& bytes) {
    With<proto::Order>(bytes, [&](auto& order) { TakeOrder(order.train()); });
  }
  void TakeShardState(const std::string& bytes) {
    With<proto::Part>(bytes, [&](auto& part) { (void)shard_.Take(part); });
  }
  void TakeShardOrder(const std::string& bytes) {
    With<proto::Order>(bytes, [&](auto& order) { ObeyAsHost(order); });
  }
  void TakeShardPart(const std::string& bytes) {
    With<proto::Part>(bytes, [&](auto& part) { (void)shard_.OnPart(guest_, part); });
  }

  static std::size_t size(std::int64_t n) { return static_cast<std::size_t>(n); }

  template <typename Message, typename Use>
  void With(const std::string& bytes, Use use) {
    Message message;
    if (message.ParseFromString(bytes)) use(message);
  }

  void Enter(const proto::JoinReply& joined) {
    Caller worker = caller_;
    worker.metadata.emplace(kWorker, joined.worker());
    worker.metadata.emplace(kCredential, joined.credential());
    session_ = desk_.Authenticate(worker).value();
  }

  void TakeJob(const proto::Job& job) {
    const auto transform = ToTransform(job, /*training=*/true);
    if (!CheckSet(job.train()).ok() || !CheckSet(job.test()).ok() || !transform.ok()) return;
    if (job.onnx().empty()) (void)BuildGraph(job);  // ONNX has a fuzzer of its own
  }

  // What a worker reads of an order but numbers that it only compares.
  void TakeOrder(const proto::Train& train) {
    if (worker_ == nullptr) {
      const WorkerOptions options;
      worker_ =
          WorkerData::Open(options, world_.job, world_.data, nullptr, "first", nullptr).value();
    }
    (void)worker_->Take(train.part(), train.next());
  }

  // The second half of the model, with one guest and a step in progress.
  void FillShard() {
    const Parts::Part& range = halves_.range(1);
    const std::vector<float> zeros(size(range.size));
    for (const auto array : {proto::ARRAY_SHARD, proto::ARRAY_VELOCITY}) {
      proto::Part part;
      part.set_generation(1);
      part.set_step(1);
      part.set_array(array);
      part.set_offset(range.offset);
      part.set_floats(std::string(BytesOf(zeros)));
      if (!shard_.Take(part).ok()) std::abort();
    }
    proto::Order order;
    order.set_generation(1);
    order.set_step(1);
    order.mutable_host()->set_range(1);
    order.mutable_host()->set_fresh(true);
    proto::Host::Guest& guest = *order.mutable_host()->add_guests();
    guest.set_name("first");
    guest.set_key("key");
    ObeyAsHost(order);
    proto::ShardStep::Begin& begin = *order.mutable_shard()->mutable_begin();
    begin.set_samples(3);
    begin.set_alone(true);
    begin.add_contributors()->set_name("first");
    begin.mutable_contributors(0)->set_samples(3);
    ObeyAsHost(order);
    if (guest_ == nullptr) std::abort();
  }

  void ObeyAsHost(const proto::Order& order) {
    const StepKey key{order.generation(), order.step()};
    if (order.has_shard()) (void)shard_.Obey(key, order.shard());
    if (!order.has_host() || !shard_.Serve(key, order.host()).ok()) return;
    for (const proto::Host::Guest& guest : order.host().guests()) {
      const auto entered =
          shard_.Authenticate({"fuzz", {{kWorker, guest.name()}, {kCredential, guest.key()}}});
      if (entered.ok()) guest_ = *entered;
    }
  }

  void TakeSamples(proto::SamplesReply& reply) {
    proto::Set set;
    set.set_size(2);
    set.set_channels(1);
    set.set_height(4);
    set.set_width(4);
    set.add_classes("a");
    const auto remote = RemoteDataset::Open(
        set, /*test=*/false,
        [&](const proto::SamplesRequest&, const auto& take) { return take(reply); }, 64);
    if (!remote.ok()) return;
    std::uint8_t pixels[16];
    (void)(*remote)->Decode(1, pixels);
  }

  ModelServer model_;
  HeadServer head_;
  Desk desk_;
  IncomingModel incoming_;
  Outbox<PartToSend> parts_out_;
  Boundary boundary_;
  World& world_;
  std::unique_ptr<WorkerData> worker_;
  const Caller caller_;
  SessionPtr session_;
  const Parts halves_;
  ShardHost shard_{
      halves_,
      /*heartbeat_seconds=*/3600.0,
      {.send = [](const PartToSend&) {}, .complain = [](const proto::Complaint&) {}, .on_sent = {}},
      /*early_seconds=*/-1.0};  // the fuzzer has no time
  SessionPtr guest_;
};

}  // namespace

// The kind that the program is called after; none: all.
static std::optional<std::size_t> only;  // set before the first input

extern "C" int LLVMFuzzerInitialize(int*, char*** arguments) {
  const std::string name = KindOf((*arguments)[0], "cluster");
  const auto& kinds = Sequence::Kinds();
  for (std::size_t i = 0; i < kinds.size(); ++i) {
    if (kinds[i].name == name) only = i;
  }
  if (!only && !name.empty()) std::abort();
  return 0;
}

// Messages one after the other: a byte for the kind, two for the length.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static World world;
  Sequence sequence(world);
  Elements elements(data, size);
  while (const auto element = elements.Next()) {
    sequence.Send(only.value_or(element->kind), element->bytes);
  }
  return 0;
}
