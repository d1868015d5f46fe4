#include "motley/plan/balance.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <numeric>
#include <optional>

#include "motley/base/rng.h"

namespace motley::plan {
namespace {

using Shares = std::vector<std::int64_t>;
using Candidates = std::vector<Candidate>;

Candidate Linear(double seconds_per_sample) { return {.seconds_per_sample = seconds_per_sample}; }

Shares SharesOf(std::int64_t batch, std::int64_t multiple, const Candidates& candidates) {
  const auto balanced = Balance(batch, multiple, candidates);
  EXPECT_TRUE(balanced.ok()) << balanced.status().ToString();
  return balanced.ok() ? balanced->shares : Shares();
}

TEST(BalanceTest, GivesSharesInProportionToSpeed) {
  EXPECT_EQ(SharesOf(256, 1, {Linear(0.001), Linear(0.003)}), (Shares{192, 64}));
}

TEST(BalanceTest, KeepsTheBatchWhenADeviceSlowsDown) {
  const Shares before = SharesOf(256, 1, {Linear(0.25), Linear(0.5)});
  const Shares after = SharesOf(256, 1, {Linear(1.0), Linear(0.5)});
  EXPECT_EQ(before[0] + before[1], 256);
  EXPECT_EQ(after[0] + after[1], 256);
  EXPECT_LT(after[0], before[0]);
}

TEST(BalanceTest, LeavesOutADeviceThatWouldOnlyHoldTheOthersUp) {
  const Candidate far{.seconds_per_sample = 0.001, .communication_seconds = 2.0};
  EXPECT_EQ(SharesOf(100, 1, {Linear(0.01), far}), (Shares{100, 0}));
  EXPECT_EQ(SharesOf(1000, 1, {Linear(0.01), far})[1] > 0, true);
}

TEST(BalanceTest, MovesTheRestOfTheBatchWhenADeviceIsCapped) {
  Candidates candidates{Linear(0.001), Linear(0.001), Linear(0.001)};
  candidates[1].most = 10;
  EXPECT_EQ(SharesOf(100, 1, candidates), (Shares{45, 10, 45}));
}

TEST(BalanceTest, TellsTheBatchThatTheCapsAllow) {
  Candidates candidates{Linear(0.001), Linear(0.002)};
  candidates[0].most = 30;
  candidates[1].most = 21;
  const auto balanced = Balance(100, 4, candidates);
  ASSERT_TRUE(balanced.ok());
  EXPECT_EQ(balanced->shares, (Shares{28, 20}));
  EXPECT_EQ(balanced->total, 48);
}

TEST(BalanceTest, BalancesTheOthersWhenPrivateDataDecidesTheEnd) {
  Candidates candidates{Linear(1.0), Linear(0.001), Linear(0.001)};
  candidates[0].least = 10;
  EXPECT_EQ(SharesOf(110, 1, candidates), (Shares{10, 50, 50}));
}

TEST(BalanceTest, RefusesABatchSmallerThanThePrivateData) {
  Candidates candidates{Linear(1.0), Linear(1.0)};
  candidates[0].least = 5;
  candidates[1].least = 5;
  const auto balanced = Balance(12, 8, candidates);
  ASSERT_FALSE(balanced.ok());
  EXPECT_EQ(balanced.status().code(), base::Code::kInvalidInput);
  EXPECT_NE(balanced.status().message().find("16 samples"), std::string::npos);
  EXPECT_NE(balanced.status().fix().find("16"), std::string::npos);
}

TEST(BalanceTest, TheRestMayBeWhatAPrivateDeviceNeeds) {
  // Four samples would be too few for its private data and eight too many for its memory.
  Candidates candidates{Linear(1.0), Linear(0.1)};
  candidates[0].least = 5;
  candidates[0].most = 6;
  EXPECT_EQ(SharesOf(10, 4, candidates), (Shares{6, 4}));
  const auto without_rest = Balance(8, 4, candidates);
  ASSERT_FALSE(without_rest.ok());
  EXPECT_NE(without_rest.status().message().find("device 0"), std::string::npos);
}

TEST(BalanceTest, RefusesNumbersThatAreNoSpeed) {
  for (const double bad : {0.0, -1.0, std::nan(""), HUGE_VAL}) {
    EXPECT_FALSE(Balance(8, 1, Candidates{Linear(bad)}).ok()) << bad;
  }
  EXPECT_FALSE(Balance(8, 1, Candidates{{.fixed_seconds = -1, .seconds_per_sample = 1}}).ok());
  EXPECT_FALSE(Balance(8, 1, Candidates{{.seconds_per_sample = 1, .least = 3, .most = 2}}).ok());
  EXPECT_FALSE(Balance(8, 1, Candidates{}).ok());
  EXPECT_FALSE(Balance(-8, 1, Candidates{Linear(1)}).ok());
}

TEST(BalanceTest, AnEmptyBatchIsNoWork) {
  const auto balanced = Balance(0, 4, Candidates{Linear(1), Linear(2)});
  ASSERT_TRUE(balanced.ok());
  EXPECT_EQ(balanced->shares, (Shares{0, 0}));
  EXPECT_EQ(balanced->seconds, 0.0);
}

TEST(BalanceTest, EndsEvenWhereSamplesVanishBesideTheFixedTime) {
  const Candidate flat{.fixed_seconds = 1.0, .seconds_per_sample = 1e-30};
  const auto balanced = Balance(1'000'000, 1, Candidates{flat, flat, Linear(1.0)});
  ASSERT_TRUE(balanced.ok());
  EXPECT_EQ(balanced->total, 1'000'000);
  EXPECT_EQ(balanced->seconds, 1.0);
}

TEST(SamplesWithinTest, IsTheInverseOfTheFinishTime) {
  base::Rng rng(3);
  for (int round = 0; round < 20'000; ++round) {
    const Candidate candidate{.fixed_seconds = rng.Uniform() * 0.01,
                              .seconds_per_sample = std::exp(-12 * rng.Uniform()),
                              .communication_seconds = rng.Uniform() * 0.01};
    const auto samples = static_cast<std::int64_t>(1 + rng.Below(100'000));
    const double seconds = FinishTime(candidate, samples);
    ASSERT_EQ(SamplesWithin(candidate, seconds), samples);
    ASSERT_EQ(SamplesWithin(candidate, std::nextafter(seconds, 0.0)), samples - 1);
  }
  EXPECT_EQ(SamplesWithin({.seconds_per_sample = 1, .most = 7}, 100.0), 7);
  EXPECT_EQ(SamplesWithin({.fixed_seconds = 2, .seconds_per_sample = 1}, 2.5), 0);
  EXPECT_EQ(SamplesWithin(Linear(1), -1.0), 0);
}

struct Case {
  std::int64_t batch, multiple;
  Candidates candidates;
};

Case RandomCase(base::Rng& rng, std::size_t most_devices, std::int64_t most_units) {
  const auto below = [&](std::int64_t bound) {
    return static_cast<std::int64_t>(rng.Below(static_cast<std::uint64_t>(bound)));
  };
  Case c;
  c.multiple = rng.Below(2) == 0 ? 1 : 1 + below(5);
  c.batch = 1 + below(most_units * c.multiple);
  c.candidates.resize(1 + rng.Below(most_devices));
  const bool round_numbers = rng.Below(2) == 0;  // many ties
  for (Candidate& each : c.candidates) {
    each.seconds_per_sample =
        round_numbers ? static_cast<double>(1 + below(3)) : rng.Uniform() + 0.1;
    each.fixed_seconds = round_numbers ? static_cast<double>(below(3)) : 2 * rng.Uniform();
    if (rng.Below(3) == 0) each.communication_seconds = static_cast<double>(below(4));
    if (rng.Below(4) == 0) each.least = below(c.batch + 1);
    if (rng.Below(4) == 0) each.most = each.least + below(c.batch);
  }
  return c;
}

// Calls take(shares) for all shares of `batch` that the rules allow.
void ForAllShares(const Case& c, const std::function<void(const Shares&)>& take) {
  Shares shares(c.candidates.size());
  const std::int64_t rest = c.batch % c.multiple;
  const std::function<void(std::size_t, std::int64_t, bool)> fill =
      [&](std::size_t i, std::int64_t left, bool rest_left) {
        if (i == shares.size()) {
          if (left == 0 && !rest_left) take(shares);
          return;
        }
        for (std::int64_t units = 0; units * c.multiple <= left; ++units) {
          for (const bool with_rest : {false, true}) {
            if (with_rest && !rest_left) continue;
            shares[i] = units * c.multiple + (with_rest ? rest : 0);
            if (shares[i] < c.candidates[i].least || shares[i] > c.candidates[i].most) continue;
            fill(i + 1, left - units * c.multiple, rest_left && !with_rest);
          }
        }
      };
  fill(0, c.batch - rest, rest > 0);
}

void ExpectLawful(const Case& c, const Balanced& balanced) {
  int odd = 0;
  for (std::size_t i = 0; i < c.candidates.size(); ++i) {
    ASSERT_GE(balanced.shares[i], c.candidates[i].least);
    ASSERT_LE(balanced.shares[i], c.candidates[i].most);
    odd += balanced.shares[i] % c.multiple != 0 ? 1 : 0;
  }
  ASSERT_LE(odd, balanced.total % c.multiple == 0 ? 0 : 1);
  ASSERT_EQ(balanced.total, std::accumulate(balanced.shares.begin(), balanced.shares.end(), 0LL));
  ASSERT_EQ(balanced.seconds, FinishTime(balanced.shares, c.candidates));
}

std::vector<double> SortedFinishes(const Case& c, const Shares& shares) {
  std::vector<double> finishes;
  for (std::size_t i = 0; i < shares.size(); ++i) {
    finishes.push_back(FinishTime(c.candidates[i], shares[i]));
  }
  std::sort(finishes.rbegin(), finishes.rend());
  return finishes;
}

TEST(BalanceTest, FindsWhatTryingAllSharesFinds) {
  base::Rng rng(11);
  int kept = 0, shrunk = 0, refused = 0;
  for (int round = 0; round < 6000; ++round) {
    const Case c = RandomCase(rng, 4, 16);
    std::optional<double> best;
    std::vector<double> finishes;
    ForAllShares(c, [&](const Shares& shares) {
      const auto sorted = SortedFinishes(c, shares);
      if (finishes.empty() || sorted < finishes) finishes = sorted;
      best = finishes.front();
    });
    const auto balanced = Balance(c.batch, c.multiple, c.candidates);
    if (!balanced.ok()) {
      ASSERT_FALSE(best.has_value()) << round << ": " << balanced.status().ToString();
      ++refused;
      continue;
    }
    ASSERT_NO_FATAL_FAILURE(ExpectLawful(c, *balanced)) << round;
    ASSERT_EQ(balanced->total == c.batch, best.has_value()) << round;
    if (!best.has_value()) {
      ASSERT_LT(balanced->total, c.batch);
      ++shrunk;
      continue;
    }
    ++kept;
    ASSERT_EQ(balanced->seconds, *best) << round;
    // Also the second latest finish is the earliest possible, and so on.
    if (c.batch % c.multiple == 0) {
      ASSERT_EQ(SortedFinishes(c, balanced->shares), finishes) << round;
    }
  }
  EXPECT_GT(kept, 3000);
  EXPECT_GT(shrunk, 100);
  EXPECT_GT(refused, 100);
}

// A moment before the end nobody can do so much, but for those who must.
void ExpectEarliest(const Case& c, const Balanced& balanced) {
  if (c.multiple > 1 || balanced.total == 0) return;
  const double before = std::nextafter(balanced.seconds, 0.0);
  std::int64_t sum = 0;
  for (std::size_t i = 0; i < c.candidates.size(); ++i) {
    const Candidate& each = c.candidates[i];
    if (each.least > 0 && FinishTime(each, each.least) == balanced.seconds) return;
    sum += std::max(each.least, SamplesWithin(each, before));
  }
  ASSERT_LT(sum, balanced.total);
}

TEST(BalanceTest, KeepsItsPromisesForManyDevices) {
  base::Rng rng(12);
  for (int round = 0; round < 500; ++round) {
    const Case c = RandomCase(rng, 60, 2000);
    const auto balanced = Balance(c.batch, c.multiple, c.candidates);
    if (!balanced.ok()) continue;
    ASSERT_NO_FATAL_FAILURE(ExpectLawful(c, *balanced)) << round;
    ASSERT_EQ(Balance(c.batch, c.multiple, c.candidates)->shares, balanced->shares);
    ASSERT_NO_FATAL_FAILURE(ExpectEarliest(c, *balanced)) << round;
  }
}

TEST(BalanceTest, AThousandDevicesTakeMilliseconds) {
  base::Rng rng(13);
  Candidates candidates(1000);
  for (Candidate& each : candidates) {
    each.fixed_seconds = 0.01 * rng.Uniform();
    each.seconds_per_sample = 0.0001 + 0.01 * rng.Uniform();
    each.communication_seconds = 0.01 * rng.Uniform();
  }
  double fastest = HUGE_VAL;  // of several: other programs may run
  for (int round = 0; round < 10; ++round) {
    const auto start = std::chrono::steady_clock::now();
    const auto balanced = Balance(65'541, 8, candidates);
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
    ASSERT_TRUE(balanced.ok());
    ASSERT_EQ(balanced->total, 65'541);
    fastest = std::min(fastest, took.count());
  }
  RecordProperty("milliseconds", std::to_string(fastest * 1e3));
  // Measured: a few milliseconds; sanitizers take ten times as long.
  EXPECT_LT(fastest, 0.1);
}

}  // namespace
}  // namespace motley::plan
