#include "motley/plan/coordinate_momentum.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <utility>
#include <vector>

#include "motley/base/rng.h"

namespace motley::plan {
namespace {

// What the watch says on the average of a quadratic with a curvature of 1 in all directions, where
// a random one of `groups` makes the next update (staleness is geometric: a momentum of 1 -
// 1/groups), with explicit momentum, and noise in the gradients: standard deviations over the first
// weights'.
double Estimate(std::uint64_t groups, double momentum, double noise) {
  constexpr std::size_t kSize = 400;
  constexpr std::size_t kUpdates = 400;
  constexpr float kRate = 0.05F;
  base::Rng rng(5);
  std::vector<std::vector<float>> path(1, std::vector<float>(kSize));
  for (float& w : path[0]) w = static_cast<float>(rng.Normal());
  CoordinateWatch watch(path[0]);
  std::vector<float> velocity(kSize);
  std::vector<std::size_t> read(groups, 0);
  double sum = 0.0;
  int count = 0;
  for (std::size_t t = 0; t < kUpdates; ++t) {
    const std::size_t group = rng.Below(groups);
    std::vector<float> next = path.back(), gradient = path[read[group]];
    for (std::size_t i = 0; i < kSize; ++i) {
      gradient[i] += static_cast<float>(noise * rng.Normal());
      velocity[i] = static_cast<float>(momentum) * velocity[i] + gradient[i];
      next[i] -= kRate * velocity[i];
    }
    const auto staleness = static_cast<std::int64_t>(t - read[group]);
    path.push_back(std::move(next));
    read[group] = path.size() - 1;
    const auto seen = watch.Add(staleness, watch.Sample(gradient), /*samples=*/1,
                                static_cast<double>(kRate), watch.Sample(path.back()));
    if (t < 20 || !seen) continue;
    sum += *seen;
    ++count;
  }
  return sum / count;
}

TEST(CoordinateWatchTest, TellsExplicitMomentumAndHardlyAnyOfAsynchrony) {
  // Alone it is exact, with and without noise.
  for (const double noise : {0.0, 1.0}) {
    for (const double mu : {0.0, 0.3, 0.6}) EXPECT_NEAR(Estimate(1, mu, noise), mu, 0.001) << noise;
  }
  // The theorem says 0.5, 0.75, 0.875 and 0.9375 of groups without explicit momentum.
  const std::vector<std::pair<std::uint64_t, double>> seen = {
      {2, 0.02}, {4, 0.03}, {8, 0.05}, {16, 0.06}};
  for (const auto& [groups, momentum] : seen) {
    EXPECT_NEAR(Estimate(groups, 0.0, 1.0), momentum, 0.01) << groups;
    EXPECT_NEAR(Estimate(groups, 0.3, 1.0), 0.3 + momentum, 0.03) << groups;
  }
}

TEST(CoordinateWatchTest, LooksAtTheModelsAroundTheOneThatWasRead) {
  const auto one = [](float w) { return std::vector<float>{w}; };
  CoordinateWatch watch(one(0.0F));
  EXPECT_FALSE(watch.Add(0, one(0.0F), 1, 0.1, one(1.0F)));  // there was no model before
  EXPECT_EQ(watch.Add(0, one(0.0F), 1, 0.1, one(3.0F)), 2.0);
  EXPECT_EQ(watch.Add(1, one(0.0F), 1, 0.1, one(6.0F)), 2.0);
  EXPECT_EQ(watch.Add(0, one(10.0F), 2, 0.1, one(9.0F)), (3.0 + 0.1 * 5.0) / 3.0);
  EXPECT_FALSE(watch.Add(4, one(0.0F), 1, 0.1, one(9.0F)));
  EXPECT_FALSE(watch.Add(0, one(0.0F), 0, 0.1, one(9.0F)));  // no sample, no gradient
}

TEST(CoordinateWatchTest, KnowsNothingOfWeightsThatDoNotMove) {
  EXPECT_FALSE(CoordinateMomentum(std::vector<float>{1.0F}, std::vector<float>{1.0F},
                                  std::vector<float>{2.0F}, std::vector<float>{0.0F}, 0.1));
}

}  // namespace
}  // namespace motley::plan
