#include "motley/run/pools.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "motley/base/rng.h"
#include "motley/plan/shares.h"

namespace motley::run {
namespace {

using Devices = std::vector<Pools::Device>;
using Parts = std::vector<Pools::Part>;

Pools MakePools(std::int64_t open, std::vector<PrivatePool> pools) {
  std::int64_t size = open;
  for (const PrivatePool& pool : pools) size += pool.size;
  return {data::Ledger(0, size), open, std::move(pools)};
}

std::int64_t SizeOf(const std::vector<data::Ticket>& tickets) {
  std::int64_t size = 0;
  for (const data::Ticket& ticket : tickets) size += ticket.size();
  return size;
}

std::int64_t SizeOf(const Parts& parts) {
  std::int64_t size = 0;
  for (const Pools::Part& part : parts) size += part.samples();
  return size;
}

// A random cluster: who there is, with how much private data, and who gets how much.
struct Scene {
  explicit Scene(std::uint64_t seed) : rng(base::Key({seed, 77})) {
    const std::int64_t multiples[] = {1, 1, 4, 8};
    multiple = multiples[rng.Below(4)];
    batch = multiple * (1 + Number(24));
    open = Number(4) == 0 ? 0 : Number(1500);
    const std::int64_t count = 1 + Number(5);
    for (std::int64_t i = 0; i < count; ++i) {
      devices.push_back({"d" + std::to_string(i), Number(batch + 1)});
      const std::int64_t sizes[] = {0, 0, 1, 7, 300, Number(1000)};
      const std::int64_t size = sizes[rng.Below(6)];
      if (size > 0) pools.push_back({devices.back().name, size, ""});
    }
  }
  std::int64_t Number(std::int64_t below) {
    return static_cast<std::int64_t>(rng.Below(static_cast<std::uint64_t>(below)));
  }
  void LimitMemory() {
    for (Pools::Device& device : devices) {
      if (Number(3) == 0) device.most = Number(batch + 1);
    }
  }
  // Where the private samples of a device lie; empty without any.
  data::Ledger::Range RangeOf(const std::string& name) const {
    std::int64_t begin = open;
    for (const PrivatePool& pool : pools) {
      if (pool.device == name) return {begin, begin + pool.size};
      begin += pool.size;
    }
    return {begin, begin};
  }
  Pools Make() const { return MakePools(open, pools); }

  base::Rng rng;
  std::int64_t batch, multiple, open;
  Devices devices;
  std::vector<PrivatePool> pools;
};

void ExpectPrivateSamplesStay(const Scene& scene, const Parts& parts) {
  ASSERT_EQ(parts.size(), scene.devices.size());
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const auto [begin, end] = scene.RangeOf(scene.devices[i].name);
    for (const data::Ticket& ticket : parts[i].public_tickets) {
      EXPECT_TRUE(ticket.begin >= 0 && ticket.end <= scene.open);
    }
    for (const data::Ticket& ticket : parts[i].private_tickets) {
      EXPECT_TRUE(ticket.begin >= begin && ticket.end <= end);
      EXPECT_EQ(parts[i].private_begin, begin);
    }
  }
}

void ExpectNobodyHasMoreThanItHolds(const Scene& scene, const Parts& parts) {
  for (std::size_t i = 0; i < parts.size(); ++i) {
    EXPECT_LE(parts[i].samples(), std::max(scene.multiple, scene.devices[i].most));
  }
}

// Which samples of a part somebody might have done: all, some ranges, or none.
std::vector<std::pair<std::int64_t, std::int64_t>> SomeOf(Scene& scene, std::int64_t samples) {
  if (scene.Number(10) < 6) return {{0, samples}};
  std::vector<std::pair<std::int64_t, std::int64_t>> done;
  for (std::int64_t at = 0; at < samples;) {
    const std::int64_t begin = at + scene.Number(5), end = begin + 1 + scene.Number(20);
    if (end > samples) break;
    done.emplace_back(begin, end);
    at = end;
  }
  return done;
}

std::vector<std::int64_t> Positions(const Pools::Part& part) {
  std::vector<std::int64_t> positions;
  for (const auto& tickets : {part.public_tickets, part.private_tickets}) {
    for (const data::Ticket& ticket : tickets) {
      for (std::int64_t at = ticket.begin; at < ticket.end; ++at) positions.push_back(at);
    }
  }
  return positions;
}

TEST(PoolsTest, EverySampleIsDoneOnceWhateverHappens) {
  for (std::uint64_t seed = 0; seed < 300; ++seed) {
    SCOPED_TRACE(seed);
    Scene scene(seed);
    scene.LimitMemory();
    Pools pools = scene.Make();
    std::vector<int> done(static_cast<std::size_t>(pools.ledger().size()));
    for (Parts parts = pools.Take(scene.batch, scene.multiple, scene.devices); SizeOf(parts) > 0;
         parts = pools.Take(scene.batch, scene.multiple, scene.devices)) {
      ExpectPrivateSamplesStay(scene, parts);
      ExpectNobodyHasMoreThanItHolds(scene, parts);
      EXPECT_LE(SizeOf(parts), scene.batch);
      const bool failed = scene.Number(5) == 0;
      for (const Pools::Part& part : parts) {
        if (failed) {
          ASSERT_TRUE(pools.GiveBack(part).ok());
          continue;
        }
        const auto ranges = SomeOf(scene, part.samples());
        ASSERT_TRUE(pools.Commit(part, ranges).ok());
        const auto positions = Positions(part);
        for (const auto& [begin, end] : ranges) {
          for (std::int64_t k = begin; k < end; ++k) {
            ++done[static_cast<std::size_t>(positions[static_cast<std::size_t>(k)])];
          }
        }
      }
      for (Pools::Device& device : scene.devices) device.share = scene.Number(scene.batch + 1);
    }
    EXPECT_TRUE(pools.ForgoOf(scene.devices).empty());
    EXPECT_TRUE(pools.ledger().Complete());
    EXPECT_EQ(pools.ledger().committed(), pools.ledger().size());
    EXPECT_TRUE(std::all_of(done.begin(), done.end(), [](int n) { return n == 1; }));
  }
}

TEST(PoolsTest, PrivatePortionsAreEvenAndEveryBatchIsFull) {
  for (std::uint64_t seed = 0; seed < 300; ++seed) {
    SCOPED_TRACE(seed);
    Scene scene(seed);
    Pools pools = scene.Make();
    const std::int64_t size = pools.ledger().size();
    for (std::int64_t left = size; left > 0;) {
      const Parts parts = pools.Take(scene.batch, scene.multiple, scene.devices);
      ASSERT_EQ(SizeOf(parts), std::min(left, scene.batch));
      left -= SizeOf(parts);
      for (std::size_t i = 0; i < parts.size(); ++i) {
        const auto [begin, end] = scene.RangeOf(scene.devices[i].name);
        const double mean =
            static_cast<double>((end - begin) * scene.batch) / static_cast<double>(size);
        const std::int64_t portion = SizeOf(parts[i].private_tickets);
        if (left > 0) {
          EXPECT_NEAR(static_cast<double>(portion), mean, static_cast<double>(scene.multiple));
        }
        ASSERT_TRUE(pools.Commit(parts[i], {{0, parts[i].samples()}}).ok());
      }
    }
    EXPECT_TRUE(pools.ledger().Complete());
  }
}

TEST(PoolsTest, WithoutPrivateSamplesThePartsLieOneAfterTheOther) {
  for (std::uint64_t seed = 0; seed < 100; ++seed) {
    SCOPED_TRACE(seed);
    Scene scene(seed);
    scene.pools.clear();
    scene.devices.front().share = 1;  // somebody works
    Pools pools = scene.Make();
    std::vector<std::int64_t> weights;
    for (const Pools::Device& device : scene.devices) weights.push_back(device.share);
    for (std::int64_t at = 0; at < scene.open;) {
      const Parts parts = pools.Take(scene.batch, scene.multiple, scene.devices);
      const auto shares =
          plan::Apportion(std::min(scene.batch, scene.open - at), weights, scene.multiple);
      for (std::size_t i = 0; i < parts.size(); ++i) {
        EXPECT_TRUE(parts[i].private_tickets.empty());
        if (shares[i] == 0) {
          EXPECT_TRUE(parts[i].public_tickets.empty());
          continue;
        }
        const std::vector<data::Ticket> expected = {{0, at, at + shares[i]}};
        EXPECT_EQ(parts[i].public_tickets, expected);
        at += shares[i];
        ASSERT_TRUE(pools.Commit(parts[i], {{0, shares[i]}}).ok());
      }
    }
    EXPECT_TRUE(pools.ledger().Complete());
  }
}

TEST(PoolsTest, FillsAShareWithPrivateSamplesFirst) {
  Pools pools = MakePools(900, {{"csd", 100, ""}});
  const Devices devices = {{"host", 60}, {"csd", 40}};
  const Parts parts = pools.Take(100, 1, devices);
  EXPECT_EQ(SizeOf(parts[0].public_tickets), 60);
  EXPECT_EQ(SizeOf(parts[1].private_tickets), 10);
  EXPECT_EQ(SizeOf(parts[1].public_tickets), 30);
  EXPECT_EQ(parts[1].private_begin, 900);
}

TEST(PoolsTest, ADeviceWithoutAShareStillDoesWhatNobodyElseCan) {
  Pools pools = MakePools(90, {{"csd", 10, ""}});
  const Parts parts = pools.Take(10, 1, Devices{{"host", 10}, {"csd", 0}});
  EXPECT_EQ(SizeOf(parts[0].public_tickets), 9);
  EXPECT_EQ(SizeOf(parts[1].private_tickets), 1);
  EXPECT_TRUE(parts[1].public_tickets.empty());
}

TEST(PoolsTest, WhatAMemoryDoesNotHoldGoesToTheOthersAndIsDoneLater) {
  Pools pools = MakePools(60, {{"csd", 40, ""}});
  const Devices devices = {{"host", 6}, {"csd", 4, 2}};
  std::vector<std::int64_t> steps;
  std::int64_t left = pools.ReachableBy(devices);
  EXPECT_EQ(left, 100);
  for (Parts parts = pools.Take(10, 1, devices); SizeOf(parts) > 0;
       parts = pools.Take(10, 1, devices)) {
    steps.push_back(SizeOf(parts));
    EXPECT_EQ(steps.back() + pools.ReachableBy(devices), left);
    left -= steps.back();
    for (const Pools::Part& part : parts) {
      ASSERT_TRUE(pools.Commit(part, {{0, part.samples()}}).ok());
    }
  }
  EXPECT_TRUE(pools.ledger().Complete());
  EXPECT_EQ(std::count(steps.begin(), steps.end(), 10), 7) << "8 public ones and 2 private ones";
  EXPECT_EQ(steps.back(), 2) << "private ones that could not be done before";
}

TEST(PoolsTest, GivesUpAndCountsTheSamplesOfAnAbsentDevice) {
  Pools pools = MakePools(100, {{"here", 50, ""}, {"away", 30, ""}});
  const Devices all = {{"here", 10}, {"away", 10}};
  const Parts first = pools.Take(18, 1, all);
  const std::int64_t done_by_away = SizeOf(first[1].private_tickets);
  EXPECT_EQ(done_by_away, 3);
  for (const Pools::Part& part : first) {
    ASSERT_TRUE(pools.Commit(part, {{0, part.samples()}}).ok());
  }
  const Devices present = {{"here", 20}};
  for (Parts parts = pools.Take(18, 1, present); SizeOf(parts) > 0;
       parts = pools.Take(18, 1, present)) {
    ASSERT_TRUE(pools.Commit(parts[0], {{0, parts[0].samples()}}).ok());
  }
  EXPECT_FALSE(pools.ledger().Complete());
  const auto gone = pools.ForgoOf(present);
  ASSERT_EQ(gone.size(), 1U);
  EXPECT_EQ(gone[0], (std::pair<std::string, std::int64_t>("away", 27)));
  EXPECT_TRUE(pools.ledger().Complete());
  EXPECT_EQ(pools.ledger().forgone(), 27);
  EXPECT_EQ(pools.ledger().committed(), 153);
  EXPECT_TRUE(pools.ForgoOf(present).empty());

  pools.StartNextEpoch({{"here", 50, ""}});
  EXPECT_EQ(pools.ledger().epoch(), 1U);
  EXPECT_EQ(pools.ledger().size(), 150);
  EXPECT_EQ(pools.ledger().forgone(), 0);
}

TEST(PoolsTest, ACopyIsAForecast) {
  Pools pools = MakePools(100, {{"a", 20, ""}});
  const Devices devices = {{"a", 10}, {"b", 10}};
  Pools forecast = pools;
  const Parts expected = forecast.Take(20, 1, devices), then = forecast.Take(20, 1, devices);
  const Parts now = pools.Take(20, 1, devices);
  for (std::size_t i = 0; i < now.size(); ++i) EXPECT_EQ(Positions(now[i]), Positions(expected[i]));
  for (const Pools::Part& part : now) ASSERT_TRUE(pools.Commit(part, {{0, part.samples()}}).ok());
  const Parts next = pools.Take(20, 1, devices);
  for (std::size_t i = 0; i < next.size(); ++i) EXPECT_EQ(Positions(next[i]), Positions(then[i]));
}

TEST(PoolsTest, RefusesRangesThatAreNotOfThePart) {
  Pools pools = MakePools(100, {});
  const Parts parts = pools.Take(20, 1, Devices{{"a", 20}});
  EXPECT_FALSE(pools.Commit(parts[0], {{0, 21}}).ok());
  EXPECT_FALSE(pools.Commit(parts[0], {{-1, 2}}).ok());
  EXPECT_FALSE(pools.Commit(parts[0], {{5, 9}, {3, 5}}).ok());
  EXPECT_FALSE(pools.Commit(parts[0], {{5, 4}}).ok());
  EXPECT_EQ(pools.ledger().committed(), 0);
  EXPECT_TRUE(pools.Commit(parts[0], {{0, 20}}).ok());
}

TEST(PoolsTest, PrivateAndPublicSamplesGoEvenlyHoweverManyThereAre) {
  constexpr std::int64_t kMany = std::int64_t{1} << 30;
  std::vector<PrivatePool> pools;
  Devices devices;
  for (int i = 0; i < 8; ++i) {
    const std::string name = "d" + std::to_string(i);
    pools.push_back({name, kMany, ""});
    devices.push_back({name, 1});
  }
  Pools all = MakePools(kMany, std::move(pools));
  std::int64_t secret = 0, open = 0;
  for (int step = 0; step < 9; ++step) {
    for (const Pools::Part& part : all.Take(12, 1, devices)) {
      secret += SizeOf(part.private_tickets);
      open += SizeOf(part.public_tickets);
    }
  }
  EXPECT_EQ(secret + open, 9 * 12);
  EXPECT_NEAR(static_cast<double>(open), 12.0, 8.0) << "a ninth of all";
}

}  // namespace
}  // namespace motley::run
