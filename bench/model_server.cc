// How many updates per second the model server makes, against what the memory and the loopback of
// this machine could carry. Three parts, for 0.4, 11 and 61 million parameters:
//
//   memory    gradients are already here: summed, applied, committed
//   loopback  the real thing without computing: a coordinator, and workers over TLS whose devices
//             answer at once, in one group and in as many groups as workers, with the model in one
//             place and in two shards; all in this process, so that more shards cannot be faster:
//             what they take off the coordinator is told beside it
//   limits    copying an array of that size; a plain TCP stream through the loopback, both ways
//
//   bench_model_server [SECONDS]      of each measurement, 3 by default

#include "motley/cluster/model_server.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <numeric>
#include <thread>
#include <vector>

#include "motley/base/check.h"
#include "motley/base/clock.h"
#include "motley/cluster/coordinator.h"
#include "motley/cluster/job.h"
#include "motley/cluster/worker.h"
#include "motley/data/open.h"
#include "motley/graph/zoo.h"
#include "motley/run/trainer.h"

namespace motley::cluster {
namespace {

constexpr int kWorkers = 4;
const base::RealClock kClock;

struct Net {
  const char* zoo;
  graph::Shape input;
  std::int64_t classes = 0;
};

// Runs `once` for so many seconds, after a first time that is not counted; per second.
template <typename Once>
double Rate(double seconds, const Once& once) {
  once();
  const double began = kClock.Now();
  int times = 0;
  while (kClock.Now() - began < seconds) {
    once();
    ++times;
  }
  return times / (kClock.Now() - began);
}

double CopyBytesPerSecond(std::size_t floats, double seconds) {
  std::vector<float> from(floats, 1.0F), to(floats);
  const double rate = Rate(seconds, [&] { std::copy(from.begin(), from.end(), to.begin()); });
  return 2.0 * rate * static_cast<double>(floats * sizeof(float));  // read and written
}

// One direction of a stream, until the other side closes it.
void Pump(int socket, bool send, std::atomic<bool>& stop, std::atomic<std::int64_t>& bytes) {
  std::vector<char> buffer(1 << 20);
  while (true) {
    const ssize_t moved = send ? (stop ? 0 : ::send(socket, buffer.data(), buffer.size(), 0))
                               : ::recv(socket, buffer.data(), buffer.size(), 0);
    if (moved <= 0) break;
    if (!send) bytes += moved;
  }
  if (send) ::shutdown(socket, SHUT_WR);
}

double LoopbackBytesPerSecond(double seconds) {
  const int listener = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  MOTLEY_CHECK(::bind(listener, reinterpret_cast<sockaddr*>(&address), size) == 0 &&
                   ::listen(listener, 1) == 0 &&
                   ::getsockname(listener, reinterpret_cast<sockaddr*>(&address), &size) == 0,
               "no loopback");
  const int near = ::socket(AF_INET, SOCK_STREAM, 0);
  MOTLEY_CHECK(::connect(near, reinterpret_cast<sockaddr*>(&address), size) == 0, "no loopback");
  const int far = ::accept(listener, nullptr, nullptr);
  std::atomic<bool> stop{false};
  std::atomic<std::int64_t> bytes{0};
  {
    std::vector<std::jthread> threads;
    for (const int socket : {near, far}) {
      for (const bool send : {true, false}) {
        threads.emplace_back([=, &stop, &bytes] { Pump(socket, send, stop, bytes); });
      }
    }
    std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
    stop = true;
  }
  for (const int socket : {near, far, listener}) ::close(socket);
  return static_cast<double>(bytes) / seconds;
}

double UpdatesInMemory(const graph::Graph& graph, double seconds) {
  const graph::Model model = graph::InitialModel(graph, 1);
  ModelServer server(graph, model.weights, std::vector<float>(model.weights.size()), model.buffers,
                     /*update_threads=*/2);
  std::uint64_t generation = 0;
  return Rate(seconds, [&] {
    server.Begin(0, {.key = {++generation, 0},
                     .contributors = {{"w", 1}},
                     .samples = 1,
                     .sgd = {.learning_rate = 1e-6F},
                     .on_part = {},
                     .on_complete = {}});
    for (int i = 0; i < server.parts().count(); ++i) {
      const Parts::Part& part = server.parts()[i];
      const auto added =
          server.Add("w", {generation, 0}, part.offset, 1,
                     std::string(static_cast<std::size_t>(part.size) * sizeof(float), '\0'));
      MOTLEY_CHECK(added.ok(), "{}", added.status().message());
    }
    server.Prepare(0);
    server.Commit(0);
  });
}

// Its gradient is always there.
class InstantDevice final : public engine::Device {
 public:
  explicit InstantDevice(std::shared_ptr<const graph::Graph> graph) : graph_(std::move(graph)) {}
  const graph::Graph& graph() const override { return *graph_; }
  std::string kind() const override { return "instant"; }
  base::Result<engine::StepResult> Step(const engine::StepRequest& request) override {
    engine::StepResult result;
    result.samples_done = request.batch->size();
    result.done = {{0, result.samples_done}};
    if (request.on_bucket) request.on_bucket(0, graph_->parameter_count());
    return result;
  }
  base::Result<engine::StepResult> Forward(const engine::ForwardRequest&) override {
    return base::Internal("an instant device evaluates nothing");
  }

 private:
  const std::shared_ptr<const graph::Graph> graph_;
};

// All devices in one group, or each in its own; the first ones hold the shards.
class Fixed final : public plan::Controller {
 public:
  Fixed(bool apart, int shards) : apart_(apart), shards_(shards) {}
  std::optional<plan::Plan> OnEvent(const plan::Event& event) override {
    const auto* joined = std::get_if<plan::DeviceJoined>(&event);
    if (joined == nullptr) return std::nullopt;
    const int group = apart_ ? static_cast<int>(plan_.shares.size()) : 0;
    plan_.shares.push_back({joined->device, 1, group});
    if (std::ssize(plan_.hosts) < shards_ - 1) plan_.hosts.push_back(joined->device);
    return plan_;
  }

 private:
  const bool apart_;
  const int shards_;
  plan::Plan plan_;
};

double UpdatesOverLoopback(const Net& net, const graph::Graph& graph, const data::DataPair& data,
                           bool apart, int shards, double seconds) {
  std::string folder = (std::filesystem::temp_directory_path() / "motley-bench-XXXXXX").string();
  MOTLEY_CHECK(::mkdtemp(folder.data()) != nullptr, "no folder");
  TokenStore tokens(std::filesystem::path(folder) / "tokens.json",
                    [] { return std::int64_t{std::time(nullptr)}; });
  const Identity identity = LoadOrCreateIdentity(folder).value();
  const JoinToken token = tokens.Issue(3600, identity.fingerprint).value();
  JobSource source;
  source.zoo = net.zoo;
  source.batch = apart ? 1 : kWorkers;
  source.shards = shards;
  run::TrainState state = run::Trainer::Fresh(graph::InitialModel(graph, 1), *data.train);
  CoordinatorOptions options;
  options.identity = identity;
  options.tokens = &tokens;
  options.min_workers = kWorkers;
  options.update_threads = 2;
  Fixed controller(apart, shards);
  auto coordinator = Coordinator::Start(options, MakeJob(source, graph, data), graph, data, state,
                                        controller, kClock, {})
                         .value();
  std::vector<std::jthread> workers;
  for (int i = 0; i < kWorkers; ++i) {
    WorkerOptions worker;
    worker.coordinator = fmt::format("127.0.0.1:{}", coordinator->port());
    worker.token = token;
    worker.probe_seconds = 0.0;
    worker.make_device =
        [](std::shared_ptr<const graph::Graph> its,
           const engine::DeviceOptions&) -> base::Result<std::unique_ptr<engine::Device>> {
      return std::unique_ptr<engine::Device>(std::make_unique<InstantDevice>(std::move(its)));
    };
    workers.emplace_back([worker] { (void)RunWorker(worker, nullptr); });
  }
  const double rate = Rate(seconds, [&] {
    if (coordinator->ledger().Complete()) coordinator->StartNextEpoch();
    const auto update = coordinator->Step({.learning_rate = 1e-6F});
    MOTLEY_CHECK(update.ok(), "{}", update.status().ToString());
  });
  coordinator->Stop("measured");
  workers.clear();
  std::filesystem::remove_all(folder);
  return rate;
}

void Measure(const Net& net, const data::DataPair& data, double seconds) {
  const graph::Graph graph = graph::BuildZoo(net.zoo, net.input, net.classes).value();
  const auto floats = static_cast<std::size_t>(graph.parameter_count() + graph.buffer_count());
  const double megabytes = static_cast<double>(floats * sizeof(float)) / 1e6;
  const double memory = UpdatesInMemory(graph, seconds);
  fmt::print("{:<9} {:>6.1f} M  copy {:>5.1f} GB/s\n", net.zoo,
             static_cast<double>(graph.parameter_count()) / 1e6,
             CopyBytesPerSecond(floats, seconds / 3) / 1e9);
  // Read: gradient (received, summed), weights, velocity; written: sum, weights, velocity.
  fmt::print("    in memory             {:>8.1f} updates/s  {:>5.2f} GB/s of arrays\n", memory,
             memory * 6.0 * megabytes / 1e3);
  for (const bool apart : {false, true}) {
    for (const int shards : {1, 2}) {
      const double rate = UpdatesOverLoopback(net, graph, data, apart, shards, seconds);
      // Gradients there and models back, per update; of a shard elsewhere, the sum of them.
      const double moves = apart ? 1 : kWorkers, elsewhere = 1.0 - 1.0 / shards;
      const double here = 2.0 * moves * (1.0 - elsewhere) + elsewhere;
      fmt::print(
          "    TLS, {} workers, g = {}, {} shard{}  {:>8.1f} updates/s  {:>5.2f} GB/s on the wire, "
          "{:.1f} MB per update at the coordinator\n",
          kWorkers, apart ? kWorkers : 1, shards, shards == 1 ? " " : "s", rate,
          rate * (2.0 * moves + elsewhere) * megabytes / 1e3, here * megabytes);
      std::fflush(stdout);  // it takes a while
    }
  }
}

}  // namespace
}  // namespace motley::cluster

int main(int argc, char** argv) {
  using namespace motley;
  const double seconds = argc > 1 ? std::atof(argv[1]) : 3.0;
  const data::DataPair data = data::Open("glyphs", "", {}).value();
  fmt::print("loopback, plain TCP, both ways: {:.2f} GB/s\n",
             cluster::LoopbackBytesPerSecond(seconds) / 1e9);
  for (const cluster::Net& net :
       {cluster::Net{"lenet", {1, 28, 28}, 10}, cluster::Net{"resnet18", {3, 32, 32}, 10},
        cluster::Net{"alexnet", {3, 224, 224}, 1000}}) {
    cluster::Measure(net, data, seconds);
  }
}
