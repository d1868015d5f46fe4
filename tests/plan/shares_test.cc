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

// A device that needs 0.01 s for a sample, and steps of it.
DeviceJoined Probed(const std::string& name) {
  return {.device = name,
          .curve = SpeedCurve{.seconds_per_sample = 0.01},
          .communication_seconds = 0.02};
}

TEST(EqualSharesTest, NotesWhatWasPredictedAndWhatCameOfIt) {
  EqualShares controller(12, 1);
  (void)controller.OnEvent(Probed("a"));
  const auto plan = controller.OnEvent(Probed("b"));
  EXPECT_EQ(plan->predicted_seconds, 0.0) << "nobody is to be stopped by it";
  auto notes = controller.TakeNotes();
  ASSERT_EQ(notes.size(), 2U);
  EXPECT_EQ(notes[1].message, "shares a 6, b 6: b joined; predicts 80 ms per step");

  const StepDone step{.seconds = 0.1, .parts = {{"a", 6, 0.04, 0.0}, {"b", 6, 0.08, 0.0}}};
  for (int i = 0; i < 11; ++i) (void)controller.OnEvent(step);
  notes = controller.TakeNotes();
  ASSERT_EQ(notes.size(), 1U);
  EXPECT_EQ(notes[0].message, "decision 1 was replaced before its first step");
  (void)controller.OnEvent(step);
  for (int i = 0; i < 50; ++i) (void)controller.OnEvent(step);
  notes = controller.TakeNotes();
  ASSERT_EQ(notes.size(), 1U);
  EXPECT_EQ(notes[0].event, "outcome");
  EXPECT_EQ(notes[0].message,
            "decision 2: 80 ms per step were predicted and 100 ms measured (+25 %); the devices' "
            "compute times differ by 50.0 %");

  (void)controller.OnEvent(DeviceJoined{"unknown"});
  for (int i = 0; i < 5; ++i) (void)controller.OnEvent(step);
  (void)controller.OnEvent(DeviceLost{"unknown", "gone"});
  notes = controller.TakeNotes();
  ASSERT_EQ(notes.size(), 3U);
  EXPECT_EQ(notes[0].message, "shares a 4, b 4, unknown 4: unknown joined");
  EXPECT_EQ(notes[1].message,
            "decision 3 was replaced after 5 steps; so far 100 ms per step were measured; the "
            "devices' compute times differ by 50.0 %");
  EXPECT_EQ(notes[2].message, "shares a 6, b 6: unknown lost: gone; predicts 80 ms per step");
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
