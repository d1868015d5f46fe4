#include "motley/plan/staleness.h"

#include <gtest/gtest.h>

#include <cmath>

#include "motley/base/rng.h"

namespace motley::plan {
namespace {

using Counts = std::vector<std::int64_t>;

TEST(StalenessTest, CountsHowStaleUpdatesWere) {
  StalenessHistogram histogram;
  EXPECT_EQ(histogram.mean(), 0.0);
  EXPECT_TRUE(histogram.parts().empty());
  for (const std::int64_t staleness : {3, 0, 3, 1}) histogram.Add(staleness);
  EXPECT_EQ(histogram.counts(), (Counts{1, 1, 0, 2}));
  EXPECT_EQ(histogram.total(), 4);
  EXPECT_DOUBLE_EQ(histogram.mean(), 7.0 / 4.0);
  EXPECT_EQ(histogram.parts(), (std::vector<double>{0.25, 0.25, 0.0, 0.5}));
}

TEST(StalenessTest, ForgetsTheOldByHalves) {
  StalenessHistogram histogram;
  for (int i = 0; i < 40; ++i) histogram.Add(3);
  histogram.Add(9);
  histogram.Fade();
  EXPECT_EQ(histogram.counts(), (Counts{0, 0, 0, 20}));
  for (int i = 0; i < 20; ++i) histogram.Add(1);
  EXPECT_DOUBLE_EQ(histogram.mean(), 2.0);
  for (int i = 0; i < 10; ++i) histogram.Fade();
  EXPECT_EQ(histogram.total(), 0);
  EXPECT_TRUE(histogram.counts().empty());
}

TEST(UpdateIntervalsTest, AreOfEachGroupByItself) {
  UpdateIntervals intervals;
  for (int i = 0; i < 10; ++i) {
    intervals.Add(0, i * 2.0);
    intervals.Add(1, i * 2.0 + 0.5);
  }
  EXPECT_DOUBLE_EQ(intervals.mean_seconds(), 2.0);
  EXPECT_DOUBLE_EQ(intervals.sigma(), 0.0);
}

TEST(UpdateIntervalsTest, LeaveOutWhatCameBetween) {
  UpdateIntervals intervals;
  EXPECT_EQ(intervals.mean_seconds(), 0.0);
  for (const double now : {0.0, 1.0, 2.0}) intervals.Add(0, now);
  intervals.Interrupt();
  for (const double now : {100.0, 101.0}) intervals.Add(0, now);
  EXPECT_DOUBLE_EQ(intervals.mean_seconds(), 1.0);
}

TEST(UpdateIntervalsTest, KnowTheSigmaOfLogNormalOnes) {
  base::Rng rng(7);
  UpdateIntervals intervals;
  double now = 0.0;
  for (int i = 0; i < 20000; ++i) {
    intervals.Add(0, now);
    // Twelve uniform numbers make a normal one, nearly.
    double normal = -6.0;
    for (int k = 0; k < 12; ++k) normal += rng.Uniform();
    now += 0.01 * std::exp(0.3 * normal);
  }
  EXPECT_NEAR(intervals.sigma(), 0.3, 0.01);
}

}  // namespace
}  // namespace motley::plan
