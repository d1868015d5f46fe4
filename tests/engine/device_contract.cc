#include "device_contract.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <utility>

#include "motley/base/check.h"
#include "motley/base/clock.h"
#include "motley/engine/reference/reference_device.h"

namespace motley::engine::testing {
namespace {

// The samples of the ranges, in order.
data::Batch Pick(const data::Batch& batch,
                 const std::vector<std::pair<std::int64_t, std::int64_t>>& ranges) {
  data::Batch picked{.epoch = batch.epoch};
  const auto pixels = std::ssize(batch.images) / batch.size();
  for (const auto& [begin, end] : ranges) {
    picked.images.insert(picked.images.end(), batch.images.begin() + begin * pixels,
                         batch.images.begin() + end * pixels);
    picked.labels.insert(picked.labels.end(), batch.labels.begin() + begin,
                         batch.labels.begin() + end);
    picked.ids.insert(picked.ids.end(), batch.ids.begin() + begin, batch.ids.begin() + end);
  }
  return picked;
}

double LargestDifference(const std::vector<float>& a, const std::vector<float>& b) {
  double largest = 0.0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    const double difference = std::abs(double{a[i]} - double{b[i]});
    largest = std::isnan(difference) ? std::numeric_limits<double>::infinity()
                                     : std::max(largest, difference);
  }
  return largest;
}

}  // namespace

SharedGraph GraphNamed(const std::string& name) {
  const auto& all = SmallGraphs();
  const auto found =
      std::find_if(all.begin(), all.end(), [&](const auto& small) { return small.name == name; });
  MOTLEY_CHECK(found != all.end(), "no graph {}", name);
  return Build(*found);
}

TEST_P(DeviceContractTest, BucketsCoverEveryElementOnceWithItsFinalValue) {
  for (const char* name : {kWithBatchNorm, kWithoutBatchNorm, kWithUnusedParameters}) {
    for (const std::int64_t samples : {1, 7, 150}) {
      SCOPED_TRACE(::testing::Message() << name << ", " << samples << " samples");
      Bench bench = Make(name, samples);
      std::vector<int> announced(bench.gradient().size(), 0);
      std::vector<float> seen(bench.gradient().size(), 0.0F);
      std::atomic<int> inside{0};
      StepRequest request = bench.Request();
      request.on_bucket = [&](std::int64_t offset, std::int64_t count) {
        EXPECT_EQ(inside.fetch_add(1), 0) << "two calls at once";
        for (std::int64_t i = offset; i < offset + count; ++i) {
          ++announced[static_cast<std::size_t>(i)];
          seen[static_cast<std::size_t>(i)] = request.gradient[static_cast<std::size_t>(i)];
        }
        inside.fetch_sub(1);
      };
      ASSERT_TRUE(bench.device().Step(request).ok());
      EXPECT_EQ(announced, std::vector<int>(announced.size(), 1));
      EXPECT_EQ(seen, bench.gradient());
    }
  }
}

// Updating each part as soon as it is final must give what updating afterwards gives.
TEST_P(DeviceContractTest, WeightsMayBeUpdatedInPlaceWhenTheirGradientIsFinal) {
  for (const char* name : {kWithBatchNorm, kWithoutBatchNorm, kWithUnusedParameters}) {
    for (const std::int64_t samples : {1, 7, 150}) {
      SCOPED_TRACE(::testing::Message() << name << ", " << samples << " samples");
      Bench bench = Make(name, samples);
      StepRequest request = bench.Request();
      ASSERT_TRUE(bench.device().Step(request).ok());
      const std::vector<float> expected = bench.gradient();
      std::vector<float> weights(request.weights.begin(), request.weights.end());
      std::vector<int> final(expected.size(), 0);
      request.weights = weights;
      request.on_final = [&](std::int64_t offset, std::int64_t count) {
        for (std::int64_t i = offset; i < offset + count; ++i) {
          ++final[static_cast<std::size_t>(i)];
          EXPECT_EQ(request.gradient[static_cast<std::size_t>(i)],
                    expected[static_cast<std::size_t>(i)]);
          // Whoever still reads it gets a gradient that is no number.
          weights[static_cast<std::size_t>(i)] = std::numeric_limits<float>::quiet_NaN();
        }
      };
      ASSERT_TRUE(bench.device().Step(request).ok());
      EXPECT_EQ(final, std::vector<int>(final.size(), 1));
      EXPECT_EQ(bench.gradient(), expected);
    }
  }
}

TEST_P(DeviceContractTest, ACancelledStepSaysSoAndTheNextOneWorks) {
  Bench bench = Make(kWithBatchNorm, 5);
  std::atomic<bool> cancel{true};
  StepRequest request = bench.Request();
  request.cancel = &cancel;
  const auto result = bench.device().Step(request);
  ASSERT_FALSE(result.ok());
  EXPECT_EQ(result.status().code(), base::Code::kCancelled);
  cancel = false;
  const auto again = bench.device().Step(request);
  ASSERT_TRUE(again.ok()) << again.status().ToString();
  EXPECT_EQ(again->samples_done, 5);
}

TEST_P(DeviceContractTest, AfterTheDeadlineNothingIsDone) {
  for (const char* name : {kWithBatchNorm, kWithoutBatchNorm}) {
    Bench bench = Make(name, 5);
    StepRequest request = bench.Request();
    request.deadline = base::RealClock().Now() - 1.0;
    const auto result = bench.device().Step(request);
    ASSERT_TRUE(result.ok()) << result.status().ToString();
    EXPECT_EQ(result->samples_done, 0);
    EXPECT_TRUE(result->done.empty());
    EXPECT_EQ(result->loss_sum, 0.0);
    EXPECT_EQ(bench.gradient(), std::vector<float>(bench.gradient().size(), 0.0F));
    EXPECT_EQ(bench.buffer_sums(), std::vector<float>(bench.buffer_sums().size(), 0.0F));
  }
}

// Wherever the deadline falls, the sums are those of exactly the samples that the device names.
TEST_P(DeviceContractTest, AtTheDeadlineTheSumsAreThoseOfTheSamplesDone) {
  const base::RealClock clock;
  for (const std::int64_t bn_batch : {0, 4}) {
    Bench bench = Make(bn_batch == 0 ? kWithoutBatchNorm : kWithBatchNorm, 256, bn_batch);
    StepRequest request = bench.Request();
    ASSERT_TRUE(bench.device().Step(request).ok());  // compiles
    const double start = clock.Now();
    ASSERT_TRUE(bench.device().Step(request).ok());
    const double whole = clock.Now() - start;
    for (const double part : {0.1, 0.3, 0.6}) {
      request.deadline = clock.Now() + part * whole;
      const auto result = bench.device().Step(request);
      ASSERT_TRUE(result.ok()) << result.status().ToString();
      const data::Batch done = Pick(bench.batch(), result->done);
      ASSERT_EQ(done.size(), result->samples_done);
      Bench judge(
          reference::MakeReferenceDevice(
              std::make_shared<const graph::Graph>(bench.device().graph()), {.bn_batch = bn_batch}),
          0);
      judge.batch() = done;
      const auto expected = judge.device().Step(judge.Request());
      ASSERT_TRUE(expected.ok());
      EXPECT_NEAR(result->loss_sum, expected->loss_sum, 1e-4 * std::abs(expected->loss_sum));
      EXPECT_EQ(result->correct, expected->correct);
      float scale = 1e-6F;
      for (const float value : judge.gradient()) scale = std::max(scale, std::abs(value));
      EXPECT_LE(LargestDifference(bench.gradient(), judge.gradient()), 1e-4 * double{scale})
          << result->samples_done << " samples done";
    }
  }
}

TEST_P(DeviceContractTest, AnEmptyBatchGivesZeros) {
  Bench bench = Make(kWithBatchNorm, 0);
  const auto result = bench.device().Step(bench.Request());
  ASSERT_TRUE(result.ok()) << result.status().ToString();
  EXPECT_EQ(result->samples_done, 0);
  EXPECT_TRUE(result->done.empty());
  EXPECT_EQ(bench.gradient(), std::vector<float>(bench.gradient().size(), 0.0F));
  EXPECT_EQ(bench.buffer_sums(), std::vector<float>(bench.buffer_sums().size(), 0.0F));
}

TEST_P(DeviceContractTest, AWrongLabelIsRefusedByItsSample) {
  for (const std::int32_t label : {-1, 3}) {
    Bench bench = Make(kWithBatchNorm, 4);
    bench.batch().labels[2] = label;
    bench.batch().ids[2] = 4711;
    const auto result = bench.device().Step(bench.Request());
    ASSERT_FALSE(result.ok());
    EXPECT_EQ(result.status().code(), base::Code::kInvalidInput);
    EXPECT_NE(result.status().message().find("4711"), std::string::npos);
  }
}

TEST_P(DeviceContractTest, ForwardNeedsNoRoomForLogits) {
  Bench bench = Make(kWithBatchNorm, 4);
  std::vector<float> logits(12);
  ForwardRequest request{
      .weights = bench.model().weights, .buffers = bench.model().buffers, .batch = &bench.batch()};
  const auto without = bench.device().Forward(request);
  request.logits = logits;
  const auto with = bench.device().Forward(request);
  ASSERT_TRUE(without.ok() && with.ok());
  EXPECT_EQ(without->loss_sum, with->loss_sum);
  EXPECT_EQ(without->correct, with->correct);
}

// A sample keeps its dropout wherever it stands in a batch, and whoever computes it.
TEST_P(DeviceContractTest, DropoutBelongsToTheSample) {
  Bench bench = Make("HeadWithDropout", 6);
  ASSERT_TRUE(bench.device().Step(bench.Request()).ok());
  std::vector<float> sum(bench.gradient().size(), 0.0F);
  const data::Batch whole = bench.batch();
  const std::vector<float> together = bench.gradient();
  for (const std::int64_t sample : {5, 3, 0, 1, 4, 2}) {
    bench.batch() = Pick(whole, {{sample, sample + 1}});
    ASSERT_TRUE(bench.device().Step(bench.Request()).ok());
    for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += bench.gradient()[i];
  }
  EXPECT_LE(LargestDifference(sum, together), 1e-5);
}

TEST_P(DeviceContractTest, AnotherSeedDropsOtherElements) {
  Bench bench = Make("HeadWithDropout", 6);
  StepRequest request = bench.Request();
  ASSERT_TRUE(bench.device().Step(request).ok());
  const std::vector<float> first = bench.gradient();
  request.seed = 4;
  ASSERT_TRUE(bench.device().Step(request).ok());
  EXPECT_GT(LargestDifference(first, bench.gradient()), 1e-2);
}

}  // namespace motley::engine::testing
