// Devices that stall inside a step: how long the others wait for them, and that nothing is lost.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <thread>

#include "motley/engine/native/native_device.h"
#include "tests/cluster/cluster.h"

namespace motley::cluster {
namespace {

const base::RealClock kClock;

// What a device does in a step that it does not simply do.
enum class Stall {
  kNone,
  kSlow,     // all of it, two seconds later
  kPart,     // the first four samples, and then nothing until the deadline
  kNothing,  // nothing at all until the deadline
  kHang,     // nothing, whatever the deadline, for a minute, or until nobody wants the result
};
using StallAt = std::function<Stall(std::int64_t step, const engine::StepRequest& request)>;

// Steps are counted from 0, those of a probe left out. Needs a millisecond more for each sample, so
// that a probe on a busy machine finds a line.
class StallingDevice final : public engine::Device {
 public:
  StallingDevice(std::unique_ptr<engine::Device> device, StallAt stall)
      : device_(std::move(device)), stall_(std::move(stall)) {}
  const graph::Graph& graph() const override { return device_->graph(); }
  std::string kind() const override { return device_->kind(); }
  base::Result<engine::StepResult> Step(const engine::StepRequest& request) override {
    const Stall stall = request.on_bucket && stall_ ? stall_(step_++, request) : Stall::kNone;
    switch (stall) {
      case Stall::kPart:
        return Part(request);
      case Stall::kNothing:
        return Nothing(request);
      case Stall::kHang:
        Wait(request, kClock.Now() + 60.0);
        return All(request, 0.0);
      default:
        return All(request, stall == Stall::kSlow ? 2.1 : 0.0);
    }
  }
  base::Result<engine::StepResult> Forward(const engine::ForwardRequest& request) override {
    return device_->Forward(request);
  }

 private:
  static void Wait(const engine::StepRequest& request, double until) {
    while (kClock.Now() < until && !*request.cancel) {
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
  }
  base::Result<engine::StepResult> All(const engine::StepRequest& request, double later) {
    auto result = device_->Step(request);
    if (!result.ok()) return result;
    const double more = later + 0.001 * static_cast<double>(request.batch->size());
    std::this_thread::sleep_for(std::chrono::duration<double>(more));
    result->seconds += more;
    return result;
  }
  base::Result<engine::StepResult> Part(const engine::StepRequest& request) {
    data::Batch few = *request.batch;
    few.images.resize(few.images.size() / static_cast<std::size_t>(few.size()) * 4);
    few.labels.resize(4);
    few.ids.resize(4);
    engine::StepRequest inner = request;
    inner.batch = &few;
    inner.on_bucket = {};
    auto result = device_->Step(inner);
    Wait(request, request.deadline);
    request.on_bucket(0, graph().parameter_count());
    return result;
  }
  base::Result<engine::StepResult> Nothing(const engine::StepRequest& request) {
    std::fill(request.gradient.begin(), request.gradient.end(), 0.0F);
    Wait(request, request.deadline);
    request.on_bucket(0, graph().parameter_count());
    return engine::StepResult{};
  }

  const std::unique_ptr<engine::Device> device_;
  const StallAt stall_;
  std::int64_t step_ = 0;
};

MakeDevice Stalling(StallAt stall) {
  return
      [=](const std::shared_ptr<const graph::Graph>& graph,
          const engine::DeviceOptions& options) -> base::Result<std::unique_ptr<engine::Device>> {
        MOTLEY_ASSIGN_OR_RETURN(auto device, engine::native::MakeNativeDevice(graph, options));
        return std::unique_ptr<engine::Device>(
            std::make_unique<StallingDevice>(std::move(device), stall));
      };
}

void AddTwo(TestCluster& cluster, StallAt stall) {
  cluster.AddWorker({.name = "quick", .rank = 0, .make_device = Stalling({})});
  cluster.AddWorker({.name = "stalling", .rank = 1, .make_device = Stalling(std::move(stall))});
}

// Which updates were short, counted from 0.
std::vector<std::int64_t> ShortSteps(const TestCluster& cluster) {
  std::vector<std::int64_t> steps;
  for (std::size_t i = 0; i < cluster.steps().size(); ++i) {
    if (cluster.steps()[i].short_step) steps.push_back(static_cast<std::int64_t>(i));
  }
  return steps;
}

run::TrainState WithAStallingWorker(bool gloo) {
  TestCluster cluster(
      {.gloo = gloo, .min_workers = 2, .shares = {1, 1}, .predicted_seconds = 0.001});
  AddTwo(cluster, [stalled = 0](std::int64_t, const auto& request) mutable {
    const bool stalls = std::isfinite(request.deadline) && ++stalled <= 3;
    return stalls ? Stall::kPart : Stall::kNone;
  });
  auto report = cluster.Run();
  EXPECT_TRUE(report.ok()) << report.status().ToString();
  EXPECT_EQ(cluster.CountTold("short_step: "), 1) << "of three in a row one is told";
  EXPECT_EQ(cluster.CountTold("lost: "), 0) << "it is slow, and no more than that";
  return std::move(report).value().state;
}

TEST(DeadlineTest, AStallingWorkerHandsInWhatItHasAndNoSampleIsLost) {
  const run::TrainState server = WithAStallingWorker(false);
  EXPECT_EQ(server.samples, SmallJob().train) << "every sample once";
  EXPECT_EQ(server.epoch, 1U);
  EXPECT_EQ(server.step, 21) << "12 samples of each of three steps of 32 came later";
  // Both ways to sum must make the same of it.
  ExpectSame(WithAStallingWorker(true), server);
}

struct Case {
  const char* name;
  bool probed = false;
  double predicted_seconds = 0.0;
  std::int64_t stalls_at = 0;  // step of the device
};

class EveryStepTest : public testing::TestWithParam<Case> {};

// In the first two steps of a plan, in the last of an epoch, which is smaller, and without a plan
// that says how long steps take.
TEST_P(EveryStepTest, HasADeadline) {
  const Case& one = GetParam();
  TestCluster cluster({.min_workers = 2,
                       .shares = {1, 1},
                       .predicted_seconds = one.predicted_seconds,
                       .probe = one.probed});
  AddTwo(cluster, [one](std::int64_t step, const auto& request) {
    const bool stalls = step == one.stalls_at && std::isfinite(request.deadline);
    return stalls ? Stall::kPart : Stall::kNone;
  });
  const auto report = cluster.Run();
  ASSERT_TRUE(report.ok()) << report.status().ToString();
  EXPECT_EQ(ShortSteps(cluster), std::vector<std::int64_t>{one.stalls_at});
  EXPECT_EQ(report->state.samples, SmallJob().train) << "every sample once";
  EXPECT_EQ(cluster.CountTold("lost: "), 0);
}

INSTANTIATE_TEST_SUITE_P(
    All, EveryStepTest,
    testing::Values(Case{.name = "FirstByItsProbe", .probed = true},
                    Case{.name = "FirstOfAPlan", .probed = true, .predicted_seconds = 0.3},
                    Case{.name = "SecondOfAPlan", .predicted_seconds = 0.3, .stalls_at = 1},
                    Case{.name = "SecondWithoutProbeAndPlan", .stalls_at = 1},
                    Case{.name = "AnyWithoutAPlan", .stalls_at = 9},
                    Case{.name = "LastOfAnEpoch", .predicted_seconds = 0.3, .stalls_at = 19}),
    [](const auto& param_info) { return param_info.param.name; });

// Batch norm over the whole share leaves nothing to hand in: a device that has become slower would
// do nothing ever after.
TEST(DeadlineTest, WhoDidNothingInTimeGetsMoreOfIt) {
  TestCluster cluster({.min_workers = 2, .shares = {1, 1}, .predicted_seconds = 0.3});
  AddTwo(cluster, [](std::int64_t step, const auto& request) {
    if (step < 5) return Stall::kNone;
    return request.deadline - kClock.Now() > 3.0 ? Stall::kSlow : Stall::kNothing;
  });
  const auto report = cluster.Run([&](std::int64_t step) { cluster.interrupt = step == 8; });
  ASSERT_TRUE(report.ok()) << report.status().ToString();
  EXPECT_EQ(ShortSteps(cluster), std::vector<std::int64_t>{5}) << "and then it has the time";
}

TEST(DeadlineTest, WhoHangsInATestIsSentAwayAndTheOtherDoesAllOfIt) {
  const SmallJob job{.linear = true, .epochs = 2};
  TestCluster cluster({.job = job, .min_workers = 2, .shares = {1, 1}, .step_seconds = 2.0});
  cluster.AddWorker({.name = "steady"});
  std::atomic<bool> over{false};
  cluster.AddWorker(
      {.name = "hanging", .make_device = DeviceWith({}, {}, [&](std::int64_t test) -> base::Status {
                            // Its first one tells how long they take.
                            for (int i = 0; test == 1 && i < 600 && !over; ++i) {
                              std::this_thread::sleep_for(std::chrono::milliseconds(50));
                            }
                            return {};
                          })});
  const auto report = cluster.Run();
  over = true;
  ASSERT_TRUE(report.ok()) << report.status().ToString();
  EXPECT_EQ(cluster.CountTold("lost: hanging"), 1);
  EXPECT_EQ(cluster.CountTold("alive, but not finished"), 1);
  ExpectSame(report->state, OnOneDevice(job));
}

class HangingTest : public testing::TestWithParam<bool> {};

// There is nothing to stop it by, or nothing that a part of the samples would be good for: it is
// sent away, and its samples go to the other.
TEST_P(HangingTest, IsSentAwayAndNoSampleIsLost) {
  const bool merged_head = GetParam();
  TestCluster cluster({.merged_head = merged_head,
                       .min_workers = 2,
                       .shares = {1, 1},
                       .predicted_seconds = merged_head ? 0.3 : 0.0});
  AddTwo(cluster,
         [](std::int64_t step, const auto&) { return step == 4 ? Stall::kHang : Stall::kNone; });
  const auto report = cluster.Run();
  ASSERT_TRUE(report.ok()) << report.status().ToString();
  EXPECT_EQ(cluster.CountTold("lost: stalling"), 1);
  EXPECT_EQ(cluster.CountTold("alive, but not finished"), 1);
  ExpectSame(report->state, OnOneDevice({}));
}

INSTANTIATE_TEST_SUITE_P(Heads, HangingTest, testing::Bool(), [](const auto& param_info) {
  return param_info.param ? "WithAMergedHead" : "WithoutAPlan";
});

}  // namespace
}  // namespace motley::cluster
