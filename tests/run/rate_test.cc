#include "motley/run/rate.h"

#include <gtest/gtest.h>

namespace motley::run {
namespace {

TEST(RateTest, IsZeroUntilTimeHasPassed) {
  Rate rate;
  EXPECT_EQ(rate.value(), 0.0);
  rate.Restart(10.0, 0);
  rate.Add(10.0, 100);
  EXPECT_EQ(rate.value(), 0.0);
}

TEST(RateTest, FollowsASlowdownWithinFiveSeconds) {
  Rate rate;
  rate.Restart(0.0, 0);
  std::int64_t samples = 0;
  double now = 0.0;
  for (int i = 0; i < 100; ++i) rate.Add(now += 0.1, samples += 100);
  EXPECT_NEAR(rate.value(), 1000.0, 1e-6);
  for (int i = 0; i < 60; ++i) rate.Add(now += 0.1, samples += 10);
  EXPECT_NEAR(rate.value(), 100.0, 1e-6);
}

TEST(RateTest, StaysExactWhenStepsAreVeryFast) {
  Rate rate;
  rate.Restart(0.0, 0);
  for (int i = 1; i <= 100'000; ++i) rate.Add(i * 1e-4, i * 8);
  EXPECT_NEAR(rate.value(), 80'000.0, 1.0);
}

TEST(RateTest, APauseIsNoPartOfTheSpeed) {
  Rate rate;
  rate.Restart(0.0, 0);
  rate.Add(1.0, 100);
  rate.Restart(61.0, 100);
  EXPECT_EQ(rate.value(), 100.0);
  rate.Add(62.0, 200);
  EXPECT_EQ(rate.value(), 100.0);
}

}  // namespace
}  // namespace motley::run
