// A worker and whatever a coordinator may order it: one kind of order, as the program is called, or
// any, in all ways of bringing gradients together. Parts of any array come in between.
#include <grpcpp/security/server_credentials.h>
#include <grpcpp/server_builder.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "motley/base/file.h"
#include "motley/cluster/job.h"
#include "motley/cluster/link.h"
#include "motley/cluster/member.h"
#include "motley/cluster/parts.h"
#include "motley/engine/native/native_device.h"
#include "motley/graph/onnx.h"
#include "tests/fuzz/small_world.h"

namespace {

using namespace motley;
using namespace motley::cluster;
using Element = Elements::Element;

// A worker that waits for what an order has promised is left alone after so long.
constexpr auto kPatience = std::chrono::milliseconds(150);

// A coordinator that sends what the input says, and listens to nothing.
class Script final : public proto::Cluster::Service {
 public:
  Script() : sets_{SmallSet(), SmallSet()} {}

  // What is sent to the next worker. Calls of the one before may still be at its own.
  void Load(std::vector<proto::Order> orders, std::vector<proto::Part> parts) {
    const std::lock_guard lock(mutex_);
    play_ = std::make_shared<Play>();
    play_->orders = std::move(orders);
    play_->parts = std::move(parts);
  }
  // Ends its calls.
  void End() {
    const auto play = Present();
    {
      const std::lock_guard lock(play->mutex);
      play->over = true;
    }
    play->changed.notify_all();
  }

  grpc::Status Work(grpc::ServerContext* context,
                    grpc::ServerReaderWriter<proto::Order, proto::Report>* stream) override {
    const auto play = Present();
    return Perform<proto::Report>(*play, *context, *stream, play->orders);
  }
  grpc::Status Exchange(grpc::ServerContext* context,
                        grpc::ServerReaderWriter<proto::Part, proto::Part>* stream) override {
    const auto play = Present();
    return Perform<proto::Part>(*play, *context, *stream, play->parts);
  }
  grpc::Status Samples(grpc::ServerContext*, const proto::SamplesRequest* request,
                       grpc::ServerWriter<proto::SamplesReply>* writer) override {
    const data::Dataset& set = request->test() ? *sets_.test : *sets_.train;
    proto::SamplesReply reply;
    if (request->ids_size() == 0) {
      for (std::int64_t id = 0; id < set.size(); ++id) {
        reply.add_labels(set.label(static_cast<data::SampleId>(id)));
      }
    }
    for (const std::uint64_t id : request->ids()) reply.add_ids(id);
    reply.set_pixels(std::string(static_cast<std::size_t>(request->ids_size()) * 16, 'x'));
    writer->Write(reply);
    return grpc::Status::OK;
  }

 private:
  struct Play {
    std::vector<proto::Order> orders;
    std::vector<proto::Part> parts;
    std::mutex mutex;
    std::condition_variable_any changed;
    bool over = false;
  };

  std::shared_ptr<Play> Present() {
    const std::lock_guard lock(mutex_);
    return play_;
  }

  template <typename In, typename Out>
  static grpc::Status Perform(Play& play, grpc::ServerContext& context,
                              grpc::ServerReaderWriter<Out, In>& stream,
                              const std::vector<Out>& messages) {
    const std::jthread ending([&](const std::stop_token& stop) {
      std::unique_lock lock(play.mutex);
      play.changed.wait(lock, stop, [&] { return play.over; });
      context.TryCancel();
    });
    for (const Out& message : messages) {
      if (!stream.Write(message)) break;
    }
    In ignored;
    while (stream.Read(&ignored)) {
    }
    return grpc::Status::OK;
  }

  const data::DataPair sets_;
  std::mutex mutex_;
  std::shared_ptr<Play> play_;
};

// As the network travels.
std::string OnnxOf(const graph::Graph& graph) {
  std::string folder = (std::filesystem::temp_directory_path() / "motley-fuzz-XXXXXX").string();
  if (::mkdtemp(folder.data()) == nullptr) std::abort();
  const std::filesystem::path file = std::filesystem::path(folder) / "net.onnx";
  if (!graph::WriteOnnx(file, graph::InitialModel(graph, 1)).ok()) std::abort();
  std::string bytes = base::ReadFile(file).value();
  std::filesystem::remove_all(folder);
  return bytes;
}

// All that lives as long as the process.
struct World {
  World() : graph(SmallGraph()), onnx(OnnxOf(graph)), sets{SmallSet(), SmallSet()} {
    grpc::ServerBuilder builder;
    builder.RegisterService(&script);
    // A socket, because gRPC within a process passes memory between threads by locks that
    // ThreadSanitizer does not see.
    int port = 0;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
    server = builder.BuildAndStart();
    options.channel = OpenChannel("127.0.0.1:" + std::to_string(port), /*certificate=*/"");
    options.address = "127.0.0.1";
    options.device.threads = 1;
    options.probe_seconds = 0.0;
    options.sysfs.clear();
    options.make_device = [this](const std::shared_ptr<const graph::Graph>& net,
                                 engine::DeviceOptions device) {
      auto& known = kernels[{net->parameter_count(), net->num_classes()}];
      device.kernel_choices = known;
      auto made = engine::native::MakeNativeDevice(net, device);
      if (made.ok()) known = (*made)->kernel_choices();
      return made;
    };
  }
  const graph::Graph graph;
  const std::string onnx;
  const data::DataPair sets;
  Script script;
  std::unique_ptr<grpc::Server> server;
  WorkerOptions options;
  // Which were fastest once: measuring them for every input would take too long.
  std::map<std::pair<std::int64_t, std::int64_t>, std::map<std::string, std::string>> kernels;
  std::map<std::uint8_t, Workshop> workshops;  // by kind of job
};

std::string kind;  // of orders; empty: any

// The model of step 0, in generation 1.
std::vector<proto::Part> Model(const Parts& parts, bool gloo) {
  std::vector<proto::Part> messages;
  const auto add = [&](proto::Array array, int count) {
    for (int i = 0; i < count; ++i) {
      proto::Part& part = messages.emplace_back();
      part.set_generation(1);
      part.set_array(array);
      part.set_offset(parts[i].offset);
      part.set_floats(std::string(static_cast<std::size_t>(parts[i].size) * sizeof(float), '\0'));
    }
  };
  add(proto::ARRAY_MODEL, parts.count());
  if (gloo) add(proto::ARRAY_VELOCITY, parts.parameter_parts());
  return messages;
}

// Adds the element as an order or as a part. Most orders are of the present generation and step:
// others are soon passed over.
void Add(const Element& element, std::vector<proto::Order>& orders,
         std::vector<proto::Part>& parts) {
  if (element.kind % 4 == 3) {
    if (auto part = Parse<proto::Part>("", element.bytes)) parts.push_back(std::move(*part));
    return;
  }
  auto order = Parse<proto::Order>(kind, element.bytes);
  if (!order) return;
  if (element.kind % 4 == 0) {
    order->set_generation(1);
    order->set_step(0);
  } else if (element.kind % 4 == 1) {
    order->set_generation(2 + orders.size());
    order->set_step(1);
    order->set_committed(1);
  }
  orders.push_back(std::move(*order));
}

// One membership in a job of this kind, with these messages between its first model and its end.
base::Result<WorkerReport> Join(World& world, std::uint8_t kind_of_job, Elements elements) {
  const JobKind job = JobKind::Of(kind_of_job);
  proto::JoinReply joined;
  joined.set_worker("worker");
  joined.set_heartbeat_seconds(1.0);
  joined.set_gloo(job.gloo);
  *joined.mutable_job() = MakeJob(
      {.onnx = world.onnx, .batch = 3, .merged_head = job.merged_head, .shards = job.shards},
      world.graph, world.sets);
  const graph::Graph trained =
      job.merged_head ? graph::Split(world.graph).value().body : world.graph;
  std::vector<proto::Part> parts =
      Model(Parts(trained.parameter_count(), trained.buffer_count(), job.shards), job.gloo);
  std::vector<proto::Order> orders;
  if ((kind_of_job & 4) == 0) {
    orders.emplace_back().set_generation(1);
    orders.back().mutable_load();
  }
  while (const auto element = elements.Next()) Add(*element, orders, parts);
  orders.emplace_back().mutable_stop();
  world.script.Load(std::move(orders), std::move(parts));
  std::mutex mutex;
  std::condition_variable_any changed;
  const std::jthread watch([&](const std::stop_token& stop) {
    std::unique_lock lock(mutex);
    changed.wait_for(lock, stop, kPatience, [] { return false; });
    if (!stop.stop_requested()) world.script.End();
  });
  const auto link = Link::Connect(world.options).value();
  return Member(world.options, link, joined, world.workshops[kind_of_job % 4], nullptr).Run();
}

// A world in which a worker that is told nothing odd comes to its end.
World& SoundWorld() {
  static World world;
  static const bool sound = [] {
    for (std::uint8_t job = 0; job < 4; ++job) {
      // The first one of each kind makes its devices, which may take longer than there is patience.
      (void)Join(world, job, {nullptr, 0});
      if (!Join(world, job, {nullptr, 0}).ok()) std::abort();
    }
    return true;
  }();
  (void)sound;
  return world;
}

}  // namespace

extern "C" int LLVMFuzzerInitialize(int*, char*** arguments) {
  kind = KindOf((*arguments)[0], "member");
  if (!kind.empty() && !HasKind<proto::Order>(kind)) std::abort();
  return 0;
}

// A byte for the kind of job, and whether it begins with a model; then a byte for how to send it,
// two for the length, and the message.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  World& world = SoundWorld();
  if (size > 0) (void)Join(world, data[0], {data + 1, size - 1});
  return 0;
}
