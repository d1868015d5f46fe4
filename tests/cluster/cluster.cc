#include "tests/cluster/cluster.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <ctime>
#include <map>
#include <utility>

#include "motley/base/file.h"
#include "motley/cluster/job.h"
#include "motley/data/ledger.h"
#include "motley/data/loader.h"
#include "motley/data/memory_dataset.h"
#include "motley/data/open.h"
#include "motley/engine/native/native_device.h"
#include "motley/graph/onnx.h"
#include "motley/plan/momentum.h"
#include "motley/plan/shares.h"
#include "motley/run/loop.h"

namespace motley::cluster {
namespace {

std::shared_ptr<const data::Dataset> First(const data::Dataset& set, std::int64_t count) {
  data::MemoryDataset::Parts parts;
  parts.shape = {set.channels(), set.height(), set.width()};
  parts.classes = set.classes();
  std::vector<std::uint8_t> pixels(parts.shape.size());
  for (std::int64_t i = 0; i < count; ++i) {
    const auto id = static_cast<data::SampleId>(i);
    parts.labels.push_back(set.label(id));
    MOTLEY_CHECK(set.Decode(id, pixels).ok(), "glyph {}", id);
    parts.bytes.append(pixels.begin(), pixels.end());
  }
  return std::make_shared<data::MemoryDataset>(std::move(parts));
}

run::TrainOptions OptionsOf(const SmallJob& job) {
  run::TrainOptions options;
  options.batch = job.batch;
  options.epochs = job.epochs;
  options.sgd.learning_rate = job.learning_rate;
  options.train_transform.training = true;
  options.train_transform.pad = 2;
  options.train_transform.crop_height = options.train_transform.crop_width = 28;
  if (job.augment) {
    options.train_transform.flip = true;
    options.train_transform.mean = {0.31F};
    options.train_transform.stddev = {0.27F};
  }
  options.test_transform = options.train_transform;
  options.test_transform.training = false;
  return options;
}

// More than one part of weights; no max pool, where the tiniest difference of rounding may decide
// which of two equal pixels is the largest, and weights jump by 1e-3.
graph::Graph GraphOf(const SmallJob& job) {
  graph::GraphBuilder net("small", {1, 28, 28});
  auto at = net.input();
  for (const int width : {8, 16}) {
    const std::string name = std::to_string(width);
    at = net.Conv("conv" + name, at,
                  {.out_channels = width,
                   .kernel_h = 3,
                   .kernel_w = 3,
                   .stride_h = 2,
                   .stride_w = 2,
                   .pad = graph::Padding::Same(1)});
    if (job.batch_norm) at = net.BatchNorm("norm" + name, at);
    if (!job.linear) at = net.Relu("relu" + name, at);
  }
  at = net.FullyConnected("wide", net.Flatten("flat", at), {.out_features = 400});
  if (!job.linear) at = net.Relu("relu", at);
  at = net.FullyConnected("out", at, {.out_features = 10});
  return std::move(net).Build(at).value();
}

// As a file, the way a network that is not in the zoo travels.
std::string OnnxOf(const SmallJob& job, const std::filesystem::path& folder) {
  const std::filesystem::path file = folder / "net.onnx";
  MOTLEY_CHECK(graph::WriteOnnx(file, graph::InitialModel(GraphOf(job), 1)).ok(), "no file");
  return base::ReadFile(file).value();
}

// The kernels that were fastest once: others round otherwise, and this is not what is compared.
const std::map<std::string, std::string>& KernelsOf(const SmallJob& job) {
  static std::map<std::pair<bool, bool>, std::map<std::string, std::string>> known;
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  auto& choices = known[{job.batch_norm, job.linear}];
  if (choices.empty()) {
    auto graph = std::make_shared<const graph::Graph>(GraphOf(job));
    const data::DataPair data = FirstGlyphs(job.batch, job.test);
    const auto device =
        engine::native::MakeNativeDevice(graph, {.threads = 1, .bn_batch = job.bn_batch}).value();
    const base::RealClock clock;
    const SmallJob sound{.batch_norm = job.batch_norm, .bn_batch = job.bn_batch};
    run::Trainer trainer(OptionsOf(sound), *device, data, clock);
    MOTLEY_CHECK(
        trainer.Run(run::Trainer::Fresh(graph::InitialModel(*graph, 1), *data.train), {}).ok(),
        "a device that does not work");
    choices = device->kernel_choices();
  }
  return choices;
}

class OddDevice final : public engine::Device {
 public:
  OddDevice(std::unique_ptr<engine::Device> device, BeforeStep before, AfterStep after,
            BeforeStep before_test)
      : device_(std::move(device)),
        before_(std::move(before)),
        after_(std::move(after)),
        before_test_(std::move(before_test)) {}
  const graph::Graph& graph() const override { return device_->graph(); }
  std::string kind() const override { return device_->kind(); }
  base::Result<engine::StepResult> Step(const engine::StepRequest& request) override {
    if (before_) MOTLEY_RETURN_IF_ERROR(before_(step_++));
    engine::StepRequest changed = request;
    if (after_) changed.on_bucket = nullptr;
    auto result = device_->Step(changed);
    if (after_) {
      after_(request);
      request.on_bucket(0, static_cast<std::int64_t>(request.gradient.size()));
    }
    return result;
  }
  base::Result<engine::StepResult> Forward(const engine::ForwardRequest& request) override {
    if (before_test_) MOTLEY_RETURN_IF_ERROR(before_test_(test_++));
    return device_->Forward(request);
  }

 private:
  const std::unique_ptr<engine::Device> device_;
  const BeforeStep before_;
  const AfterStep after_;
  const BeforeStep before_test_;
  std::int64_t step_ = 0, test_ = 0;
};

}  // namespace

std::string NameOf(const testing::TestParamInfo<Way>& way) {
  switch (way.param) {
    case Way::kServer:
      return "ByTheServer";
    case Way::kGloo:
      return "ByGloo";
    case Way::kMergedHead:
      return "WithAMergedHead";
    case Way::kShards:
      break;
  }
  return "ByShards";
}

std::filesystem::path NewFolder() {
  std::string name = (std::filesystem::temp_directory_path() / "motley-cluster-XXXXXX").string();
  MOTLEY_CHECK(::mkdtemp(name.data()) != nullptr, "no folder");
  return name;
}

data::DataPair FirstGlyphs(std::int64_t train, std::int64_t test) {
  static const data::DataPair all = data::Open("glyphs", "", {}).value();
  return {First(*all.train, train), First(*all.test, test)};
}

run::TrainState OnOneDevice(const SmallJob& job) {
  const data::DataPair data = FirstGlyphs(job.train, job.test);
  auto graph = std::make_shared<const graph::Graph>(GraphOf(job));
  const auto device =
      engine::native::MakeNativeDevice(
          graph, {.threads = 1, .bn_batch = job.bn_batch, .kernel_choices = KernelsOf(job)})
          .value();
  const base::RealClock clock;
  run::Trainer trainer(OptionsOf(job), *device, data, clock);
  const graph::Model model = graph::InitialModel(*graph, 1);
  return trainer.Run(run::Trainer::Fresh(model, *data.train), {}).value().state;
}

run::TrainState WithStaleUpdates(const SmallJob& job, const std::vector<StaleUpdate>& updates) {
  const data::DataPair data = FirstGlyphs(job.train, job.test);
  auto graph = std::make_shared<const graph::Graph>(GraphOf(job));
  const auto device =
      engine::native::MakeNativeDevice(graph, {.threads = 1, .kernel_choices = KernelsOf(job)})
          .value();
  const run::TrainOptions options = OptionsOf(job);
  run::TrainState state = run::Trainer::Fresh(graph::InitialModel(*graph, 1), *data.train);
  const data::Permutation order(job.train, options.seed, 0);
  data::Loader loader(data.train, options.train_transform, {.threads = 1, .seed = options.seed});
  std::vector<std::vector<float>> models = {state.weights};  // all that there ever were
  std::vector<float> gradient(state.weights.size()), sums(state.buffers.size());
  for (const StaleUpdate& update : updates) {
    const std::int64_t begin = update.batch * job.batch;
    loader.Submit(order.Ids({0, begin, std::min(job.train, begin + job.batch)}), 0);
    const data::Batch batch = loader.Next().value();
    engine::StepRequest request;
    request.weights = models.end()[-1 - update.staleness];
    request.batch = &batch;
    request.seed = options.seed;
    request.gradient = gradient;
    request.buffer_sums = sums;
    MOTLEY_CHECK(device->Step(request).ok(), "a device that does not work");
    optim::SgdUpdate(options.sgd, gradient, batch.size(), state.weights, state.velocity);
    models.push_back(state.weights);
  }
  return state;
}

std::vector<StaleUpdate> Replay(const std::vector<plan::StepDone>& steps, int groups) {
  std::map<int, std::int64_t> holds, read;
  std::int64_t next = 0;
  for (int group = 0; group < groups; ++group) {
    holds[group] = next++;
    read[group] = 0;
  }
  std::vector<StaleUpdate> updates;
  for (const plan::StepDone& step : steps) {
    const auto made = static_cast<std::int64_t>(updates.size());
    EXPECT_EQ(step.staleness, made - read[step.group]) << "update " << step.step;
    updates.push_back({holds[step.group], step.staleness});
    holds[step.group] = next++;
    read[step.group] = made + 1;
  }
  return updates;
}

double RelativeDifference(const std::vector<float>& a, const std::vector<float>& b) {
  MOTLEY_CHECK(a.size() == b.size(), "{} and {} floats", a.size(), b.size());
  double largest = 0.0, difference = 0.0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    largest = std::max(largest, std::fabs(static_cast<double>(a[i])));
    const double here = std::fabs(static_cast<double>(a[i]) - static_cast<double>(b[i]));
    if (!(here <= difference)) difference = here;  // also takes a NaN
  }
  return difference / std::max(largest, 1e-30);
}

MakeDevice DeviceWith(BeforeStep before, AfterStep after, BeforeStep before_test) {
  return
      [=](const std::shared_ptr<const graph::Graph>& graph,
          const engine::DeviceOptions& options) -> base::Result<std::unique_ptr<engine::Device>> {
        MOTLEY_ASSIGN_OR_RETURN(auto device, engine::native::MakeNativeDevice(graph, options));
        return std::unique_ptr<engine::Device>(
            std::make_unique<OddDevice>(std::move(device), before, after, before_test));
      };
}

std::optional<plan::Plan> FixedShares::OnEvent(const plan::Event& event) {
  if (std::holds_alternative<plan::DevicePressed>(event)) return std::nullopt;
  if (std::holds_alternative<plan::JobEnded>(event)) return std::nullopt;
  if (const auto* joined = std::get_if<plan::DeviceJoined>(&event)) {
    devices_.emplace_back(joined->device, shares_[joined_++ % shares_.size()]);
    if (joined->can_host) candidates_.push_back({joined->device});
  } else if (const auto* lost = std::get_if<plan::DeviceLost>(&event)) {
    std::erase_if(devices_, [&](const auto& device) { return device.first == lost->device; });
    std::erase_if(candidates_, [&](const auto& one) { return one.device == lost->device; });
  } else if (const auto* unfit = std::get_if<plan::HostUnfit>(&event)) {
    std::erase_if(candidates_, [&](const auto& one) { return one.device == unfit->device; });
  } else {
    steps_.push_back(std::get<plan::StepDone>(event));
    const auto groups = static_cast<std::size_t>(groups_at_(steps_.back().step));
    if (std::exchange(groups_, groups) == groups) return std::nullopt;
  }
  plan::Plan plan;
  hosts_ = plan::ChooseHosts(candidates_, hosts_, shards_ - 1);
  plan.hosts = hosts_;
  plan.predicted_seconds = seconds_;
  if (momentum_) {
    plan.momentum = plan::CompensateAdditive(*momentum_, static_cast<double>(groups_ - 1));
  }
  for (std::size_t group = 0; group < groups_; ++group) {
    std::vector<std::int64_t> weights;
    for (std::size_t i = group; i < devices_.size(); i += groups_) {
      weights.push_back(devices_[i].second);
    }
    if (std::all_of(weights.begin(), weights.end(), [](auto weight) { return weight == 0; })) {
      continue;
    }
    const auto shares = plan::Apportion(batch_, weights, multiple_);
    for (std::size_t i = 0; i < shares.size(); ++i) {
      plan.shares.push_back(
          {devices_[group + i * groups_].first, shares[i], static_cast<int>(group)});
    }
  }
  return plan;
}

// The design's limit for weights after 20 steps.
constexpr double kTolerance = 1e-4;

void ExpectSame(const run::TrainState& state, const run::TrainState& expected) {
  EXPECT_EQ(state.step, expected.step);
  EXPECT_EQ(state.samples, expected.samples);
  EXPECT_EQ(state.epoch, expected.epoch);
  EXPECT_LT(RelativeDifference(state.weights, expected.weights), kTolerance);
  EXPECT_LT(RelativeDifference(state.velocity, expected.velocity), 10 * kTolerance);
  EXPECT_NEAR(state.test.loss, expected.test.loss, 1e-4 * std::fabs(expected.test.loss));
  EXPECT_EQ(state.test.accuracy, expected.test.accuracy);
  if (!expected.buffers.empty()) {
    EXPECT_LT(RelativeDifference(state.buffers, expected.buffers), kTolerance);
  }
}

TestCluster::TestCluster(Options options)
    : options_(std::move(options)),
      folder_(options_.folder.empty() ? NewFolder() : options_.folder),
      data_(FirstGlyphs(options_.job.train, options_.job.test)),
      train_options_(OptionsOf(options_.job)),
      tokens_(std::make_unique<TokenStore>(folder_ / "tokens.json",
                                           [] { return std::int64_t{std::time(nullptr)}; })),
      controller_(options_.job.batch, std::max<std::int64_t>(1, options_.job.bn_batch),
                  options_.shares, options_.predicted_seconds, options_.groups_at,
                  options_.momentum, options_.shards) {
  const SmallJob& job = options_.job;
  const Identity identity = LoadOrCreateIdentity(folder_).value();
  token_ = tokens_->Issue(3600, identity.fingerprint).value();
  graph::Graph graph = GraphOf(job);
  JobSource source;
  source.onnx = OnnxOf(job, folder_);
  source.bn_batch = job.bn_batch;
  source.batch = job.batch;
  source.merged_head = options_.merged_head;
  source.shards = options_.shards;
  source.train_transform = train_options_.train_transform;
  const proto::Job message = MakeJob(source, graph, data_);
  state = run::Trainer::Fresh(graph::InitialModel(graph, 1), *data_.train);
  CoordinatorOptions coordinator{.listen = options_.listen,
                                 .identity = identity,
                                 .tokens = tokens_.get(),
                                 .min_workers = options_.min_workers,
                                 .gloo = options_.gloo,
                                 .heartbeat_seconds = options_.heartbeat_seconds,
                                 .step_seconds = options_.step_seconds,
                                 .head_threads = 1,
                                 .max_staleness = options_.max_staleness};
  if (!options_.folder.empty()) {
    train_options_.checkpoints = folder_ / "checkpoints";
    const auto checkpoint = run::FindCheckpoint(train_options_.checkpoints);
    if (checkpoint.ok()) state = run::LoadCheckpoint(*checkpoint, graph).value();
  }
  CoordinatorHooks hooks{.interrupt = &interrupt, .on_event = {}};
  hooks.on_event = [this](const std::string& name, const std::string& text, const auto&) {
    const std::lock_guard lock(told_mutex_);
    told_.push_back(name + ": " + text);
  };
  coordinator_ = Coordinator::Start(coordinator, message, std::move(graph), data_, state,
                                    controller_, clock_, hooks)
                     .value();
  port_ = coordinator_->port();
}

TestCluster::~TestCluster() {
  coordinator_ = nullptr;
  for (const auto& worker : workers_) worker->leave = true;
  for (const auto& worker : workers_) {
    if (worker->thread.joinable()) worker->thread.join();
  }
  if (options_.folder.empty()) std::filesystem::remove_all(folder_);
}

std::string TestCluster::address() const { return fmt::format("127.0.0.1:{}", port_); }

void TestCluster::AddWorker(WorkerOptions options) {
  if (options.coordinator.empty()) options.coordinator = address();
  if (options.token.secret.empty()) options.token = token_;
  if (options.device.threads == 0) options.device.threads = 1;
  options.probe_seconds = options_.probe ? 0.3 : 0.0;  // shares are given
  options.device.kernel_choices = KernelsOf(options_.job);
  workers_.push_back(std::make_unique<Worker>());
  Worker& worker = *workers_.back();
  worker.thread =
      std::thread([&worker, options] { worker.ended = RunWorker(options, &worker.leave); });
}

base::Result<run::TrainReport> TestCluster::Run(
    const std::function<void(std::int64_t step)>& on_step) {
  run::Trainer::Hooks hooks;
  hooks.interrupt = &interrupt;
  hooks.on_step = [&](const run::Progress& progress) {
    train_losses_.resize(progress.epoch + 1);
    train_losses_.back() = progress.loss;
    if (on_step) on_step(progress.step);
  };
  auto report = run::Loop(train_options_, *coordinator_, clock_, hooks, std::move(state)).Run();
  if (report.ok() && report->reason != run::StopReason::kInterrupted) coordinator_->Stop("done");
  return report;
}

void TestCluster::Vanish() { coordinator_ = nullptr; }

base::Result<WorkerReport>& TestCluster::Ended(std::size_t worker) {
  workers_[worker]->thread.join();
  return workers_[worker]->ended;
}

std::vector<std::string> TestCluster::told() const {
  const std::lock_guard lock(told_mutex_);
  return told_;
}

int TestCluster::CountTold(const std::string& part) const {
  const std::lock_guard lock(told_mutex_);
  return static_cast<int>(std::count_if(told_.begin(), told_.end(), [&](const std::string& line) {
    return line.find(part) != std::string::npos;
  }));
}

}  // namespace motley::cluster
