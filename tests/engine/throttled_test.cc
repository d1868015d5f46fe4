#include "motley/engine/throttled.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <thread>

#include "device_contract.h"
#include "motley/base/cpu.h"
#include "motley/base/rng.h"
#include "motley/engine/native/native_device.h"

namespace motley::engine::testing {
namespace {

// Lives for as long as all tests.
const base::RealClock kClock;

std::unique_ptr<Device> Throttle(std::unique_ptr<Device> device, double speed) {
  return MakeThrottled(std::move(device), {.speed = speed, .slowdowns = {}}, 1, kClock);
}

INSTANTIATE_TEST_SUITE_P(Throttled, DeviceContractTest,
                         ::testing::Values(Kind{"ThrottledNative",
                                                [](SharedGraph graph, std::int64_t bn_batch) {
                                                  return Throttle(
                                                      native::MakeNativeDevice(
                                                          std::move(graph),
                                                          {.threads = 1, .bn_batch = bn_batch})
                                                          .value(),
                                                      0.5);
                                                }},
                                           Kind{"ThrottledNativeWith2Lanes",
                                                [](SharedGraph graph, std::int64_t bn_batch) {
                                                  return MakeThrottled(
                                                      native::MakeNativeDevice(
                                                          std::move(graph),
                                                          {.threads = 2, .bn_batch = bn_batch})
                                                          .value(),
                                                      {.speed = 0.5, .slowdowns = {}}, 2, kClock);
                                                }}),
                         [](const auto& param_info) { return param_info.param.name; });

Pace RandomPace(base::Rng& rng) {
  Pace pace{.speed = 0.05 + 0.95 * rng.Uniform(), .slowdowns = {}};
  for (std::uint64_t i = rng.Below(5); i > 0; --i) {
    const double begin = 10.0 * rng.Uniform();
    pace.slowdowns.push_back({begin, begin + 5.0 * rng.Uniform(), 1.0 + 9.0 * rng.Uniform()});
  }
  return pace;
}

double SpeedAt(const Pace& pace, double time) {
  double speed = pace.speed;
  for (const Slowdown& one : pace.slowdowns) {
    if (time >= one.begin && time < one.end) speed /= one.factor;
  }
  return speed;
}

TEST(PaceTest, WorkIsTheIntegralOfTheSpeed) {
  constexpr double kSlice = 1e-4;
  for (std::uint64_t seed = 1; seed <= 30; ++seed) {
    base::Rng rng(seed);
    const Pace pace = RandomPace(rng);
    const double begin = 12.0 * rng.Uniform(), end = begin + 8.0 * rng.Uniform();
    double work = 0.0;
    for (double time = begin; time < end; time += kSlice) {
      work += kSlice * SpeedAt(pace, time + kSlice / 2);
    }
    EXPECT_NEAR(pace.WorkWithin(begin, end), work, 1e-3) << "seed " << seed;
  }
}

TEST(PaceTest, FinishTimeIsWhenTheWorkIsDone) {
  for (std::uint64_t seed = 1; seed <= 300; ++seed) {
    base::Rng rng(seed);
    const Pace pace = RandomPace(rng);
    const double begin = 20.0 * rng.Uniform() - 2.0, work = 5.0 * rng.Uniform();
    const double end = pace.FinishTime(begin, work);
    EXPECT_GE(end, begin + work);
    EXPECT_NEAR(pace.WorkWithin(begin, end), work, 1e-9) << "seed " << seed;
  }
}

TEST(PaceTest, NothingTakesNoTime) {
  const Pace pace{.speed = 0.5, .slowdowns = {{1.0, 2.0, 4.0}}};
  EXPECT_EQ(pace.FinishTime(1.5, 0.0), 1.5);
  EXPECT_EQ(pace.WorkWithin(1.5, 1.5), 0.0);
  EXPECT_EQ(pace.WorkWithin(1.5, 1.0), 0.0);
}

TEST(PaceTest, IsSlowInAnInterruptionOnly) {
  const Pace pace{.speed = 0.5, .slowdowns = {{10.0, 20.0, 4.0}}};
  EXPECT_DOUBLE_EQ(pace.FinishTime(0.0, 1.0), 2.0);
  EXPECT_DOUBLE_EQ(pace.FinishTime(10.0, 1.0), 18.0);
  EXPECT_DOUBLE_EQ(pace.FinishTime(9.0, 1.0), 14.0);
  EXPECT_DOUBLE_EQ(pace.FinishTime(20.0, 1.0), 22.0);
}

// Says that it took some seconds of work, and takes none.
class Claimant final : public Device {
 public:
  explicit Claimant(StepResult result) : result_(std::move(result)) {}
  const graph::Graph& graph() const override { return *graph_; }
  std::string kind() const override { return "claimant"; }
  base::Result<StepResult> Step(const StepRequest& request) override {
    deadline = request.deadline;
    return result_;
  }
  base::Result<StepResult> Forward(const ForwardRequest&) override { return result_; }

  double deadline = 0.0;

 private:
  const StepResult result_;
  const SharedGraph graph_ = GraphNamed(kWithoutBatchNorm);
};

StepRequest RequestFor(const data::Batch& batch) {
  StepRequest request;
  request.batch = &batch;
  return request;
}

data::Batch TwoSamples() {
  data::Batch batch;
  batch.labels = {0, 1};
  return batch;
}

TEST(ThrottledTest, TakesTheTimeOfTheSlowerDevice) {
  const data::Batch batch = TwoSamples();
  const auto device =
      Throttle(std::make_unique<Claimant>(StepResult{.samples_done = 2, .seconds = 0.004}), 0.1);
  const double before = kClock.Now();
  const auto result = device->Step(RequestFor(batch));
  ASSERT_TRUE(result.ok());
  EXPECT_GE(result->seconds, 0.04);
  EXPECT_GE(kClock.Now() - before, 0.04);
  EXPECT_GE(device->Forward({.batch = &batch})->seconds, 0.04);
  EXPECT_EQ(device->kind(), "claimant, emulated at 0.1 of its speed");
}

TEST(ThrottledTest, CountsTheProcessorsTimeWhereItIsKnown) {
  // On a busy machine 60 s passed in which two threads computed for 2 ms each.
  const data::Batch batch = TwoSamples();
  const auto device = MakeThrottled(std::make_unique<Claimant>(StepResult{
                                        .samples_done = 2, .seconds = 60.0, .cpu_seconds = 0.004}),
                                    {.speed = 0.1, .slowdowns = {}}, 2, kClock);
  const double before = kClock.Now();
  const auto result = device->Step(RequestFor(batch));
  ASSERT_TRUE(result.ok());
  EXPECT_GE(result->seconds, 0.02);
  EXPECT_LT(kClock.Now() - before, 60.0);
}

TEST(ThrottledTest, GivesTheDeviceOnlyTheTimeThatTheSlowerOneHas) {
  const data::Batch batch = TwoSamples();
  auto inner =
      std::make_unique<Claimant>(StepResult{.samples_done = 1, .done = {{0, 1}}, .seconds = 0.001});
  const Claimant& seen = *inner;
  const auto device = Throttle(std::move(inner), 0.1);
  StepRequest request = RequestFor(batch);
  const double before = kClock.Now();
  request.deadline = before + 0.05;
  const auto result = device->Step(request);
  ASSERT_TRUE(result.ok());
  EXPECT_EQ(result->samples_done, 1);
  EXPECT_EQ(result->done, (std::vector<std::pair<std::int64_t, std::int64_t>>{{0, 1}}));
  EXPECT_GE(seen.deadline, before);
  EXPECT_LE(seen.deadline - before, 0.05);
  EXPECT_GE(kClock.Now(), request.deadline);  // works until then, and not beyond its means
  request.deadline = std::numeric_limits<double>::infinity();
  ASSERT_TRUE(device->Step(request).ok());
  EXPECT_TRUE(std::isinf(seen.deadline));
}

// Works for some milliseconds of the processor at a time, and pauses in between.
class Worker final : public Device {
 public:
  const graph::Graph& graph() const override { return *graph_; }
  std::string kind() const override { return "worker"; }
  bool pauses() const override { return true; }
  base::Result<StepResult> Step(const StepRequest& request) override {
    const double begin = base::ThreadSeconds();
    StepResult result;
    for (; result.samples_done < request.batch->size(); ++result.samples_done) {
      request.on_pause();
      if (kClock.Now() >= request.deadline) break;
      worked_at.push_back(kClock.Now());
      for (const double until = base::ThreadSeconds() + 0.005; base::ThreadSeconds() < until;) {
      }
    }
    result.cpu_seconds = base::ThreadSeconds() - begin;
    return result;
  }
  base::Result<StepResult> Forward(const ForwardRequest&) override { return StepResult{}; }

  std::vector<double> worked_at;

 private:
  const SharedGraph graph_ = GraphNamed(kWithoutBatchNorm);
};

TEST(ThrottledTest, SleepsBetweenThePartsOfADeviceThatPauses) {
  data::Batch batch;
  batch.labels = {0, 1, 2, 3};
  auto inner = std::make_unique<Worker>();
  const Worker& seen = *inner;
  const auto device = Throttle(std::move(inner), 0.1);
  const double before = kClock.Now();
  const auto result = device->Step(RequestFor(batch));
  ASSERT_TRUE(result.ok());
  EXPECT_GE(result->seconds, 0.2);
  for (std::size_t i = 0; i < 4; ++i) {
    // It may be so much ahead.
    EXPECT_GE(seen.worked_at[i] - before, 0.05 * static_cast<double>(i) - 0.011) << i;
  }
}

TEST(ThrottledTest, ADeviceThatPausesStopsAtTheDeadlineWithWhatTheSlowerOneHasDone) {
  data::Batch batch;
  batch.labels = {0, 1, 2, 3};
  const auto device = Throttle(std::make_unique<Worker>(), 0.1);
  StepRequest request = RequestFor(batch);
  request.deadline = kClock.Now() + 0.12;  // two of them, and a part; fewer on a busy machine
  const auto result = device->Step(request);
  ASSERT_TRUE(result.ok());
  EXPECT_GE(kClock.Now(), request.deadline);
  EXPECT_LE(result->samples_done, 3);
}

TEST(ThrottledTest, WakesUpWhenNobodyWantsTheResultAnyMore) {
  const data::Batch batch = TwoSamples();
  const auto device =
      Throttle(std::make_unique<Claimant>(StepResult{.samples_done = 2, .seconds = 10.0}), 0.001);
  std::atomic<bool> cancel{false};
  StepRequest request = RequestFor(batch);
  request.cancel = &cancel;
  std::thread other([&] { cancel = true; });
  (void)device->Step(request);  // hours, if it did not
  other.join();
}

TEST(ThrottledTest, AnnouncesTheWholeGradientAtTheEnd) {
  Bench bench(
      Throttle(native::MakeNativeDevice(GraphNamed(kWithoutBatchNorm), {.threads = 1}).value(),
               0.5),
      4);
  StepRequest request = bench.Request();
  std::vector<std::pair<std::int64_t, std::int64_t>> announced;
  request.on_bucket = [&](std::int64_t offset, std::int64_t count) {
    announced.emplace_back(offset, count);
  };
  ASSERT_TRUE(bench.device().Step(request).ok());
  const auto all = static_cast<std::int64_t>(bench.gradient().size());
  EXPECT_EQ(announced, (std::vector<std::pair<std::int64_t, std::int64_t>>{{0, all}}));
}

TEST(ThrottledTest, GivesBitForBitTheGradientOfTheDeviceInside) {
  Bench plain(native::MakeNativeDevice(GraphNamed(kWithBatchNorm), {.threads = 1}).value(), 16);
  ASSERT_TRUE(plain.device().Step(plain.Request()).ok());
  Bench slow(Throttle(native::MakeNativeDevice(
                          GraphNamed(kWithBatchNorm),
                          {.threads = 1, .kernel_choices = plain.device().kernel_choices()})
                          .value(),
                      0.3),
             16);
  const auto result = slow.device().Step(slow.Request());
  ASSERT_TRUE(result.ok());
  EXPECT_EQ(slow.gradient(), plain.gradient());
  EXPECT_EQ(slow.buffer_sums(), plain.buffer_sums());
  EXPECT_EQ(slow.device().kernel_choices(), plain.device().kernel_choices());
}

}  // namespace
}  // namespace motley::engine::testing
