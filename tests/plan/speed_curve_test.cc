#include "motley/plan/speed_curve.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "motley/base/rng.h"

namespace motley::plan {
namespace {

using Timings = std::vector<Timing>;

TEST(SpeedCurveTest, NoSamplesTakeNoTime) {
  const SpeedCurve curve{.fixed_seconds = 1.0, .seconds_per_sample = 0.5};
  EXPECT_EQ(curve.At(0), 0.0);
  EXPECT_EQ(curve.At(4), 3.0);
}

TEST(FitCurveTest, FindsAnExactLineInAnyOrder) {
  const auto curve = FitCurve(Timings{{64, 0.42}, {16, 0.18}, {32, 0.26}, {16, 0.18}});
  ASSERT_TRUE(curve.ok());
  EXPECT_NEAR(curve->fixed_seconds, 0.1, 1e-12);
  EXPECT_NEAR(curve->seconds_per_sample, 0.005, 1e-12);
  EXPECT_LT(curve->residual, 1e-12);
  EXPECT_EQ(curve->cap, kNoCap);
}

TEST(FitCurveTest, TwoSizesAreEnoughAndOneIsNot) {
  EXPECT_TRUE(FitCurve(Timings{{8, 1.0}, {16, 2.0}}).ok());
  EXPECT_EQ(FitCurve(Timings{{8, 1.0}, {8, 1.1}}).status().code(), base::Code::kUnavailable);
  EXPECT_EQ(FitCurve(Timings{}).status().code(), base::Code::kUnavailable);
}

TEST(FitCurveTest, IsNotSpoiltByPreemption) {
  base::Rng rng(5);
  for (int round = 0; round < 300; ++round) {
    const double a = 0.02 * rng.Uniform(), c = 0.001 + 0.01 * rng.Uniform();
    Timings timings;
    for (const std::int64_t samples : {8, 16, 24, 32, 48, 64}) {
      for (int repeat = 0; repeat < 10; ++repeat) {
        double seconds = (a + c * static_cast<double>(samples)) * (1 + 0.01 * rng.Uniform());
        if (rng.Below(10) < 3) seconds *= 1.5 + 4 * rng.Uniform();
        timings.push_back({samples, seconds});
      }
    }
    const auto curve = FitCurve(timings);
    ASSERT_TRUE(curve.ok());
    for (const std::int64_t samples : {8, 40, 128}) {
      const double truth = a + c * static_cast<double>(samples);
      ASSERT_NEAR(curve->At(samples) / truth, 1.0, 0.03) << round;
    }
  }
}

TEST(FitCurveTest, SurvivesOutliersAmongSizesMeasuredOnce) {
  Timings timings;
  for (int i = 1; i <= 10; ++i) {
    const bool preempted = i == 3 || i == 7 || i == 10;
    timings.push_back({16 * i, (0.05 + 0.002 * 16 * i) * (preempted ? 3 : 1)});
  }
  const auto curve = FitCurve(timings);
  ASSERT_TRUE(curve.ok());
  EXPECT_NEAR(curve->fixed_seconds, 0.05, 1e-9);
  EXPECT_NEAR(curve->seconds_per_sample, 0.002, 1e-9);
  EXPECT_NEAR(curve->residual, 2.0 / 3, 1e-6) << "the misses stay visible";
}

TEST(FitCurveTest, ALineThatWouldStartBelowZeroStartsThere) {
  // A cache cliff: 64 samples no longer fit.
  const auto curve = FitCurve(Timings{{16, 0.10}, {32, 0.21}, {64, 0.60}});
  ASSERT_TRUE(curve.ok());
  EXPECT_EQ(curve->fixed_seconds, 0.0);
  EXPECT_NEAR(curve->seconds_per_sample, 0.21 / 32, 1e-12);
  EXPECT_GT(curve->residual, 0.2);
}

TEST(FitCurveTest, FlatTimesGetASlopeThatIsJustVisible) {
  const auto curve = FitCurve(Timings{{8, 0.101}, {16, 0.100}, {32, 0.099}});
  ASSERT_TRUE(curve.ok());
  EXPECT_GT(curve->seconds_per_sample, 0.0);
  EXPECT_NEAR(curve->At(8), 0.1, 0.002);
  EXPECT_NEAR(curve->At(32), 0.1, 0.002);
}

TEST(FitCurveTest, RefusesTimesThatFallWithTheSize) {
  const auto curve = FitCurve(Timings{{8, 0.4}, {16, 0.3}, {32, 0.1}});
  ASSERT_FALSE(curve.ok());
  EXPECT_EQ(curve.status().code(), base::Code::kInvalidInput);
  EXPECT_FALSE(curve.status().fix().empty());
}

TEST(FitCurveTest, RefusesWhatIsNoTiming) {
  for (const Timing bad : {Timing{0, 1.0}, Timing{-3, 1.0}, Timing{8, 0.0}, Timing{8, -1.0},
                           Timing{8, std::nan("")}, Timing{8, HUGE_VAL}}) {
    EXPECT_EQ(FitCurve(Timings{{8, 1.0}, {16, 2.0}, bad}).status().code(),
              base::Code::kInvalidInput);
  }
}

}  // namespace
}  // namespace motley::plan
