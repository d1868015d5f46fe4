#include "motley/plan/groups.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cmath>

#include "motley/base/rng.h"

namespace motley::plan {
namespace {

Candidate Linear(double seconds_per_sample) { return {.seconds_per_sample = seconds_per_sample}; }

double Slowest(const Grouped& grouped) {
  return *std::max_element(grouped.seconds.begin(), grouped.seconds.end());
}
double Fastest(const Grouped& grouped) {
  return *std::min_element(grouped.seconds.begin(), grouped.seconds.end());
}

TEST(GroupsTest, DealEqualDevicesEvenly) {
  const std::vector<Candidate> eight(8, Linear(0.01));
  for (const int g : {1, 2, 4, 8}) {
    const auto grouped = FormGroups(64, 1, g, eight);
    ASSERT_TRUE(grouped.ok());
    for (int each = 0; each < g; ++each) {
      EXPECT_EQ(std::count(grouped->group.begin(), grouped->group.end(), each), 8 / g);
    }
    EXPECT_NEAR(Slowest(*grouped), Fastest(*grouped), 1e-12);
  }
}

TEST(GroupsTest, OneFastDeviceIsWorthTenSlowOnes) {
  std::vector<Candidate> candidates(11, Linear(0.1));
  candidates[4] = Linear(0.01);
  const auto grouped = FormGroups(100, 1, 2, candidates);
  ASSERT_TRUE(grouped.ok());
  EXPECT_EQ(std::count(grouped->group.begin(), grouped->group.end(), grouped->group[4]), 1);
  EXPECT_EQ(grouped->shares[4], 100);
  EXPECT_NEAR(Slowest(*grouped), Fastest(*grouped), 1e-12);
}

// The best that any partition can do.
double Optimum(std::int64_t batch, int groups, const std::vector<Candidate>& candidates) {
  double best = 1e300;
  std::vector<int> group(candidates.size(), 0);
  while (true) {
    std::vector<bool> used(static_cast<std::size_t>(groups));
    for (const int one : group) used[static_cast<std::size_t>(one)] = true;
    if (std::all_of(used.begin(), used.end(), [](bool u) { return u; })) {
      best = std::min(best, Slowest(BalanceGroups(batch, 1, group, candidates).value()));
    }
    std::size_t at = 0;
    while (at < group.size() && ++group[at] == groups) group[at++] = 0;
    if (at == group.size()) return best;
  }
}

TEST(GroupsTest, AreNearlyTheBestOfAllPartitions) {
  base::Rng rng(3);
  double worst = 1.0, sum = 0.0;
  constexpr int kTrials = 20;
  for (int trial = 0; trial < kTrials; ++trial) {
    std::vector<Candidate> candidates;
    for (int i = 0; i < 6; ++i) {
      candidates.push_back({.fixed_seconds = 0.02 * rng.Uniform(),
                            .seconds_per_sample = 0.002 + 0.01 * rng.Uniform()});
    }
    const int groups = 2 + static_cast<int>(rng.Below(2));
    const double ratio =
        Slowest(FormGroups(64, 1, groups, candidates).value()) / Optimum(64, groups, candidates);
    worst = std::max(worst, ratio);
    sum += ratio;
  }
  EXPECT_LT(worst, 1.15);
  EXPECT_LT(sum / kTrials, 1.03);
}

TEST(GroupsTest, KeepEveryPromiseForAnyDevices) {
  base::Rng rng(11);
  for (int trial = 0; trial < 300; ++trial) {
    const auto devices = 1 + rng.Below(20);
    const std::int64_t multiple = rng.Below(3) == 0 ? 4 : 1;
    std::vector<Candidate> candidates;
    for (std::uint64_t i = 0; i < devices; ++i) {
      candidates.push_back({.fixed_seconds = rng.Uniform() < 0.5 ? 0.0 : 0.1 * rng.Uniform(),
                            .seconds_per_sample = std::exp(-2.0 - 5.0 * rng.Uniform()),
                            .communication_seconds = 0.01 * rng.Uniform()});
      if (rng.Below(4) == 0) candidates.back().most = static_cast<std::int64_t>(64 + rng.Below(64));
    }
    const int groups = 1 + static_cast<int>(rng.Below(devices));
    const auto grouped = FormGroups(128, multiple, groups, candidates);
    ASSERT_TRUE(grouped.ok()) << grouped.status().ToString();
    ASSERT_EQ(grouped->seconds.size(), static_cast<std::size_t>(groups));
    std::vector<std::int64_t> totals(static_cast<std::size_t>(groups)), room(totals.size());
    for (std::size_t i = 0; i < candidates.size(); ++i) {
      const auto g = static_cast<std::size_t>(grouped->group[i]);
      ASSERT_LT(g, totals.size());
      totals[g] += grouped->shares[i];
      room[g] += std::min<std::int64_t>(candidates[i].most / multiple * multiple, 1 << 20);
      ASSERT_LE(grouped->shares[i], candidates[i].most);
    }
    ASSERT_EQ(totals, grouped->totals);
    for (std::size_t g = 0; g < totals.size(); ++g) {
      ASSERT_EQ(totals[g], std::min<std::int64_t>(128, room[g])) << "group " << g;
    }
    // The same again.
    ASSERT_EQ(FormGroups(128, multiple, groups, candidates)->group, grouped->group);
  }
}

TEST(GroupsTest, NeedADeviceEach) {
  const std::vector<Candidate> two(2, Linear(0.01));
  EXPECT_FALSE(FormGroups(8, 1, 3, two).ok());
  EXPECT_FALSE(FormGroups(8, 1, 0, two).ok());
}

TEST(GroupsTest, OfAThousandDevicesAreFormedSoon) {
  base::Rng rng(1);
  std::vector<Candidate> candidates;
  for (int i = 0; i < 1000; ++i) candidates.push_back(Linear(0.001 + 0.05 * rng.Uniform()));
  const auto began = std::chrono::steady_clock::now();
  for (const int g : {2, 30, 400, 1000}) {
    const auto grouped = FormGroups(256, 1, g, candidates);
    ASSERT_TRUE(grouped.ok());
    const double spread = g <= 30 ? 1.02 : 100.0;  // one device is more than the rest of a group
    EXPECT_LT(Slowest(*grouped), spread * Fastest(*grouped)) << g;
  }
  // Milliseconds; a search that tries too much would take hours.
  EXPECT_LT(std::chrono::steady_clock::now() - began, std::chrono::seconds(60));
}

}  // namespace
}  // namespace motley::plan
