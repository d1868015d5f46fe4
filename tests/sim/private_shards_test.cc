// Each class on one device only: the worst case for those who average models, and nothing special
// for a sum of gradients over even portions.
#include <gtest/gtest.h>

#include "motley/data/memory_dataset.h"
#include "motley/data/open.h"
#include "motley/engine/native/native_device.h"
#include "motley/plan/equal_shares.h"
#include "motley/run/loop.h"
#include "motley/sim/virtual_executor.h"

namespace motley::sim {
namespace {

// The samples of `set` from `begin` to `end` whose label `wanted` takes.
std::shared_ptr<const data::Dataset> Some(const data::Dataset& set, std::int64_t begin,
                                          std::int64_t end,
                                          const std::function<bool(std::int32_t label)>& wanted) {
  data::MemoryDataset::Parts parts;
  parts.shape = {set.channels(), set.height(), set.width()};
  parts.classes = set.classes();
  std::vector<std::uint8_t> pixels(parts.shape.size());
  for (std::int64_t i = begin; i < end; ++i) {
    const auto id = static_cast<data::SampleId>(i);
    if (!wanted(set.label(id))) continue;
    EXPECT_TRUE(set.Decode(id, pixels).ok());
    parts.labels.push_back(set.label(id));
    parts.bytes.append(pixels.begin(), pixels.end());
  }
  return std::make_shared<data::MemoryDataset>(std::move(parts));
}

// Without batch norm, and quick.
graph::Graph SmallNet() {
  graph::GraphBuilder net("small", {1, 28, 28});
  auto at = net.input();
  for (const int width : {8, 16, 32}) {
    at = net.Conv("conv" + std::to_string(width), at,
                  {.out_channels = width,
                   .kernel_h = 3,
                   .kernel_w = 3,
                   .stride_h = 2,
                   .stride_w = 2,
                   .pad = graph::Padding::Same(1)});
    at = net.Relu("relu" + std::to_string(width), at);
  }
  at = net.FullyConnected("out", net.Flatten("flat", at), {.out_features = 10});
  return std::move(net).Build(at).value();
}

bool Any(std::int32_t) { return true; }

double Accuracy(const std::shared_ptr<const data::Dataset>& open,
                const std::shared_ptr<const data::Dataset>& test,
                const std::vector<std::shared_ptr<const data::Dataset>>& secrets,
                std::uint64_t seed) {
  run::TrainOptions options;
  options.batch = 64;
  options.seed = seed;
  options.sgd = {.learning_rate = 0.02F, .momentum = 0.9F};
  options.epochs = 7;
  options.schedule = optim::Schedule::Parse("cosine:7", 0).value();
  options.train_transform.training = true;
  options.train_transform.mean = {0.5F};
  options.train_transform.stddev = {0.25F};
  options.test_transform = options.train_transform;
  options.test_transform.training = false;
  const auto graph = std::make_shared<const graph::Graph>(SmallNet());
  static std::map<std::string, std::string> kernels;  // measured once
  const auto device =
      engine::native::MakeNativeDevice(graph, {.threads = 1, .kernel_choices = kernels}).value();
  const data::DataPair data{open, test};
  run::TrainState state = run::Trainer::Fresh(graph::InitialModel(*graph, seed), *open);
  std::vector<VirtualDevice> devices;
  std::vector<run::PrivatePool> pools;
  std::int64_t size = open->size();
  for (std::size_t i = 0; i < std::max<std::size_t>(1, secrets.size()); ++i) {
    VirtualDevice one{.name = "device-" + std::to_string(i),
                      .kind = "virtual",
                      .curve = {.seconds_per_sample = 1e-3},
                      .pace = {},
                      .bytes_per_second = 1e9,
                      .power = {},
                      .secret = secrets.empty() ? nullptr : secrets[i]};
    if (one.secret != nullptr) {
      pools.push_back({one.name, one.secret->size(), ""});
      size += one.secret->size();
    }
    devices.push_back(std::move(one));
  }
  base::VirtualClock clock;
  plan::EqualShares controller(options.batch, 1);
  VirtualExecutor executor({.devices = std::move(devices)}, options, *device, data, clock, state,
                           run::Pools(data::Ledger(0, size), open->size(), pools), controller);
  const auto report = run::Loop(options, executor, clock, {}, std::move(state)).Run();
  EXPECT_TRUE(report.ok()) << report.status().ToString();
  kernels = device->kernel_choices();
  return report.ok() ? report->test.accuracy : 0.0;
}

TEST(PrivateShardsTest, DevicesWithTwoClassesEachReachTheAccuracyOfAllDataInOnePlace) {
  constexpr std::int64_t kAll = 6000, kPublic = 500;
  const data::DataPair glyphs = data::Open("glyphs", "", {}).value();
  std::vector<std::shared_ptr<const data::Dataset>> secrets;
  for (int device = 0; device < 5; ++device) {
    secrets.push_back(Some(*glyphs.train, kPublic, kAll,
                           [device](std::int32_t label) { return label / 2 == device; }));
  }
  // One run is known to 0.8 % only (of the seeds' standard deviation); the mean of three to 0.5 %.
  constexpr std::uint64_t kSeeds = 3;
  double pooled = 0.0, spread = 0.0;
  for (std::uint64_t seed = 1; seed <= kSeeds; ++seed) {
    pooled += Accuracy(Some(*glyphs.train, 0, kAll, Any), glyphs.test, {}, seed) / kSeeds;
    spread += Accuracy(Some(*glyphs.train, 0, kPublic, Any), glyphs.test, secrets, seed) / kSeeds;
  }
  EXPECT_NEAR(spread, pooled, 0.01);
  // The private samples are what it took.
  EXPECT_GT(spread, Accuracy(Some(*glyphs.train, 0, kPublic, Any), glyphs.test, {}, 1) + 0.1);
}

}  // namespace
}  // namespace motley::sim
