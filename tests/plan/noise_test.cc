#include "motley/plan/noise.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <utility>
#include <vector>

#include "motley/base/rng.h"

namespace motley::plan {
namespace {

// Gradients of one step: a true gradient of length `signal` in 50 dimensions and noise of variance
// `noise` in all of them together, per sample.
struct Step {
  std::vector<GradientNorm> devices;
  double total_squared = 0.0;
};

Step MakeStep(const std::vector<std::int64_t>& sizes, double signal, double noise, base::Rng& rng) {
  constexpr std::size_t kSize = 50;
  Step step;
  std::vector<double> total(kSize, 0.0);
  for (const std::int64_t samples : sizes) {
    const auto n = static_cast<double>(samples);
    GradientNorm device{samples, 0.0};
    for (std::size_t i = 0; i < kSize; ++i) {
      const double mean = i == 0 ? signal : 0.0;
      const double sum = n * mean + std::sqrt(n * noise / kSize) * rng.Normal();
      device.squared += sum * sum;
      total[i] += sum;
    }
    step.devices.push_back(device);
  }
  for (const double sum : total) step.total_squared += sum * sum;
  return step;
}

TEST(NoiseScaleTest, FindsTheScaleFromUnequalShares) {
  // The more noise, the longer it takes to see the signal behind it.
  for (const auto& [noise, tolerance] : {std::pair(10.0, 0.2), {100.0, 0.3}, {1000.0, 1.0}}) {
    base::Rng rng(7);
    NoiseScale scale;
    for (int i = 0; i < 2000; ++i) {
      const Step step = MakeStep({64, 20, 4}, 1.0, noise, rng);
      scale.Add(step.devices, step.total_squared);
    }
    ASSERT_TRUE(scale.value()) << noise;
    EXPECT_NEAR(*scale.value() / noise, 1.0, tolerance) << noise;
  }
}

TEST(NoiseScaleTest, SaysNothingTooSoonOrFromOneDevice) {
  base::Rng rng(1);
  NoiseScale scale;
  for (int i = 0; i < 100; ++i) {
    const Step step = MakeStep({64}, 1.0, 100.0, rng);
    scale.Add(step.devices, step.total_squared);
  }
  EXPECT_FALSE(scale.value()) << "one device: nothing to compare with";
  const Step step = MakeStep({32, 32}, 1.0, 100.0, rng);
  scale.Add(step.devices, step.total_squared);
  EXPECT_FALSE(scale.value()) << "one step";
}

TEST(NoiseScaleTest, LearnsNothingFromNormsThatAreNotFinite) {
  base::Rng rng(1);
  NoiseScale scale, spared;
  for (int i = 0; i < 100; ++i) {
    Step step = MakeStep({64, 20, 4}, 1.0, 10.0, rng);
    scale.Add(step.devices, step.total_squared);
    spared.Add(step.devices, step.total_squared);
    step.devices[1].squared = std::numeric_limits<double>::infinity();
    scale.Add(step.devices, step.total_squared);
  }
  ASSERT_TRUE(scale.value());
  EXPECT_EQ(*scale.value(), *spared.value());
}

TEST(SquaredNormTest, IsTheSumOfSquaresForAnyLength) {
  for (const std::size_t size : {0U, 1U, 15U, 16U, 17U, 1023U, 1024U, 1040U, 5000U}) {
    base::Rng rng(size + 1);
    std::vector<float> values(size);
    double expected = 0.0;
    for (float& value : values) {
      value = static_cast<float>(rng.Normal());
      expected += static_cast<double>(value) * static_cast<double>(value);
    }
    EXPECT_NEAR(SquaredNorm(values), expected, 1e-5 * expected) << size;
  }
}

TEST(LearningRateFactorTest, FollowsTheBatchWithoutKnowledgeAndTheGainWithIt) {
  EXPECT_EQ(LearningRateFactor(64, 64, std::nullopt), 1.0);
  EXPECT_EQ(LearningRateFactor(32, 64, std::nullopt), 0.5);
  EXPECT_NEAR(LearningRateFactor(32, 64, 1e9), 0.5, 1e-6) << "all noise: in proportion";
  EXPECT_NEAR(LearningRateFactor(32, 64, 1e-9), 1.0, 1e-6)
      << "no noise: fewer samples cost nothing";
  EXPECT_NEAR(LearningRateFactor(32, 64, 64.0), 2.0 / 3.0, 1e-12);
}

}  // namespace
}  // namespace motley::plan
