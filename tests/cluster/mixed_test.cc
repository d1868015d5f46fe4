// Devices of different kinds and speeds in one job.
#include <gtest/gtest.h>

#include "motley/base/clock.h"
#include "motley/engine/native/native_device.h"
#include "motley/engine/throttled.h"
#include "motley/engine/torch/torch_device.h"
#include "tests/cluster/cluster.h"

namespace motley::cluster {
namespace {

MakeDevice TorchAt(double speed) {
  return [speed](std::shared_ptr<const graph::Graph> graph, const engine::DeviceOptions& options)
             -> base::Result<std::unique_ptr<engine::Device>> {
    static const base::RealClock clock;
    MOTLEY_ASSIGN_OR_RETURN(auto device,
                            engine::torch::MakeTorchDevice(std::move(graph), options, "torch:cpu"));
    return engine::MakeThrottled(std::move(device), {.speed = speed, .slowdowns = {}}, 1, clock);
  };
}

class MixedTest : public testing::TestWithParam<bool> {};

TEST_P(MixedTest, ANativeAndATorchDeviceGiveTheWeightsOfOneDevice) {
  TestCluster cluster({.gloo = GetParam(), .min_workers = 2, .shares = {5, 2}});
  cluster.AddWorker({.name = "native"});
  cluster.AddWorker({.name = "torch", .make_device = TorchAt(0.5)});
  const auto report = cluster.Run();
  ASSERT_TRUE(report.ok()) << report.status().ToString();
  ExpectSame(report->state, OnOneDevice({}));
}

TEST_P(MixedTest, AlsoWithBatchNormInVirtualBatches) {
  const SmallJob job{.batch_norm = true, .bn_batch = 4};
  TestCluster cluster({.job = job, .gloo = GetParam(), .min_workers = 2, .shares = {5, 2}});
  cluster.AddWorker({.name = "native"});
  cluster.AddWorker({.name = "torch", .make_device = TorchAt(0.5)});
  const auto report = cluster.Run();
  ASSERT_TRUE(report.ok()) << report.status().ToString();
  ExpectSame(report->state, OnOneDevice(job));
}

INSTANTIATE_TEST_SUITE_P(Both, MixedTest, testing::Bool(), [](const auto& param_info) {
  return param_info.param ? "ByGloo" : "ByTheServer";
});

}  // namespace
}  // namespace motley::cluster
