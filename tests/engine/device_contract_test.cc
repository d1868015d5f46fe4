// The contract of devices for those that every build has, and what only the native one promises.
#include "device_contract.h"

#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "motley/base/clock.h"
#include "motley/engine/native/native_device.h"
#include "motley/engine/reference/reference_device.h"

namespace motley::engine::testing {
namespace {

Kind Native(int threads) {
  return {"NativeWith" + std::to_string(threads) + "Lanes",
          [threads](SharedGraph graph, std::int64_t bn_batch) {
            return native::MakeNativeDevice(std::move(graph),
                                            {.threads = threads, .bn_batch = bn_batch})
                .value();
          }};
}

Kind Reference() {
  return {"Reference", [](SharedGraph graph, std::int64_t bn_batch) {
            return reference::MakeReferenceDevice(std::move(graph), {.bn_batch = bn_batch});
          }};
}

// Cancelled from within: when the first part of the gradient is ready.
TEST(NativeDeviceTest, AStepCanBeCancelledWhileItRuns) {
  for (const char* name : {kWithBatchNorm, kWithoutBatchNorm}) {
    SCOPED_TRACE(name);
    Bench bench(Native(2).make(GraphNamed(name), 0), 150);
    std::atomic<bool> cancel{false};
    StepRequest request = bench.Request();
    request.cancel = &cancel;
    request.on_bucket = [&](std::int64_t, std::int64_t) { cancel = true; };
    const auto result = bench.device().Step(request);
    ASSERT_FALSE(result.ok());
    EXPECT_EQ(result.status().code(), base::Code::kCancelled);
    cancel = false;
    request.on_bucket = {};
    const auto again = bench.device().Step(request);
    ASSERT_TRUE(again.ok()) << again.status().ToString();
    EXPECT_EQ(again->samples_done, 150);
  }
}

// A listener that throws, or memory that runs out, must not end the process or leave a lane
// waiting.
TEST(NativeDeviceTest, AFailureInALaneIsAnErrorAndTheNextStepWorks) {
  for (const char* name : {kWithBatchNorm, kWithoutBatchNorm}) {
    SCOPED_TRACE(name);
    Bench bench(Native(3).make(GraphNamed(name), 0), 150);
    StepRequest request = bench.Request();
    request.on_bucket = [](std::int64_t, std::int64_t) { throw std::runtime_error("no room"); };
    const auto result = bench.device().Step(request);
    ASSERT_FALSE(result.ok());
    EXPECT_NE(result.status().message().find("no room"), std::string::npos);
    request.on_bucket = {};
    const auto again = bench.device().Step(request);
    ASSERT_TRUE(again.ok()) << again.status().ToString();
    EXPECT_EQ(again->samples_done, 150);
  }
}

// Of a batch norm over everything, a deadline leaves all or nothing.
TEST(NativeDeviceTest, ADeadlineWithinABatchNormOverTheBatchLeavesAllOrNothing) {
  const base::RealClock clock;
  Bench bench(Native(2).make(GraphNamed(kWithBatchNorm), 0), 256);
  StepRequest request = bench.Request();
  ASSERT_TRUE(bench.device().Step(request).ok());  // compiles
  const double start = clock.Now();
  ASSERT_TRUE(bench.device().Step(request).ok());
  const double whole = clock.Now() - start;
  const std::vector<float> expected = bench.gradient();
  for (const double part : {0.02, 0.05, 0.1, 0.3, 0.9}) {
    request.deadline = clock.Now() + part * whole;
    const auto result = bench.device().Step(request);
    ASSERT_TRUE(result.ok()) << result.status().ToString();
    if (result->samples_done == 0) {
      EXPECT_EQ(bench.gradient(), std::vector<float>(expected.size(), 0.0F));
    } else {
      EXPECT_EQ(result->samples_done, 256);
      EXPECT_EQ(bench.gradient(), expected);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Devices, DeviceContractTest,
                         ::testing::Values(Reference(), Native(1), Native(2), Native(3)),
                         [](const auto& instance) { return instance.param.name; });

}  // namespace
}  // namespace motley::engine::testing
