#include "motley/plan/shares.h"

#include <gtest/gtest.h>

#include <numeric>

#include "motley/base/rng.h"
#include "motley/plan/equal_shares.h"

namespace motley::plan {
namespace {

using Shares = std::vector<std::int64_t>;

std::int64_t Sum(const Shares& shares) {
  return std::accumulate(shares.begin(), shares.end(), std::int64_t{0});
}

TEST(ApportionTest, KeepsTheProportions) {
  EXPECT_EQ(Apportion(100, Shares{1, 1, 2}, 1), (Shares{25, 25, 50}));
  EXPECT_EQ(Apportion(7, Shares{1, 1, 1}, 1), (Shares{3, 2, 2}));
}

TEST(ApportionTest, GivesNothingToAWeightOfZero) {
  EXPECT_EQ(Apportion(9, Shares{0, 3, 0}, 4), (Shares{0, 9, 0}));
}

TEST(ApportionTest, GivesBackSharesThatAddUpToTheTotal) {
  EXPECT_EQ(Apportion(64, Shares{40, 0, 24}, 8), (Shares{40, 0, 24}));
}

TEST(ApportionTest, AlwaysSumsToTheTotalInMultiplesButForOneRest) {
  base::Rng rng(7);
  for (int round = 0; round < 2000; ++round) {
    Shares weights(1 + rng.Below(9));
    for (std::int64_t& weight : weights) weight = static_cast<std::int64_t>(rng.Below(50));
    weights[rng.Below(weights.size())] += 1;
    const auto total = static_cast<std::int64_t>(rng.Below(1000));
    const auto multiple = static_cast<std::int64_t>(1 + rng.Below(8));
    const Shares shares = Apportion(total, weights, multiple);
    ASSERT_EQ(Sum(shares), total);
    int odd = 0;
    for (std::size_t i = 0; i < shares.size(); ++i) {
      ASSERT_GE(shares[i], 0);
      ASSERT_TRUE(weights[i] > 0 || shares[i] == 0);
      odd += shares[i] % multiple != 0 ? 1 : 0;
    }
    ASSERT_LE(odd, 1);
  }
}

TEST(EqualSharesTest, FollowsWhoComesAndGoes) {
  EqualShares controller(12, 4);
  EXPECT_EQ(controller.OnEvent(DeviceJoined{"a"})->shares, (std::vector<Share>{{"a", 12}}));
  EXPECT_EQ(controller.OnEvent(DeviceJoined{"b"})->shares,
            (std::vector<Share>{{"a", 8}, {"b", 4}}));
  EXPECT_FALSE(controller.OnEvent(StepDone{}).has_value());
  EXPECT_EQ(controller.OnEvent(DeviceLost{"a", "gone"})->shares, (std::vector<Share>{{"b", 12}}));
  EXPECT_TRUE(controller.OnEvent(DeviceLost{"b", "gone"})->shares.empty());
}

TEST(EqualSharesTest, MakesAWholeBatchInEveryGroup) {
  EqualShares controller(12, 1, 2);
  EXPECT_EQ(controller.OnEvent(DeviceJoined{"a"})->shares, (std::vector<Share>{{"a", 12, 0}}));
  EXPECT_EQ(controller.OnEvent(DeviceJoined{"b"})->shares,
            (std::vector<Share>{{"a", 12, 0}, {"b", 12, 1}}));
  EXPECT_EQ(controller.OnEvent(DeviceJoined{"c"})->shares,
            (std::vector<Share>{{"a", 6, 0}, {"c", 6, 0}, {"b", 12, 1}}));
}

}  // namespace
}  // namespace motley::plan
