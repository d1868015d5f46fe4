#include "motley/engine/native/lanes.h"

#include <gtest/gtest.h>
#include <sched.h>

#include <atomic>
#include <stdexcept>
#include <vector>

namespace motley::engine::native {
namespace {

using Wanted = LanePool::Wanted;

class LanesTest : public ::testing::TestWithParam<int> {};

TEST_P(LanesTest, EveryLaneRunsOncePerCall) {
  LanePool pool(GetParam());
  std::vector<std::atomic<int>> runs(static_cast<std::size_t>(GetParam()));
  for (int round = 0; round < 200; ++round) {
    pool.Run(GetParam(), Wanted::kAll, [&](int lane) { ++runs[static_cast<std::size_t>(lane)]; });
  }
  for (const auto& count : runs) EXPECT_EQ(count.load(), 200);
}

TEST_P(LanesTest, OnlyTheFirstLanesRunWhenFewerAreAskedFor) {
  LanePool pool(GetParam());
  std::vector<std::atomic<int>> runs(static_cast<std::size_t>(GetParam()));
  pool.Run(1, Wanted::kAll, [&](int lane) { ++runs[static_cast<std::size_t>(lane)]; });
  EXPECT_EQ(runs[0].load(), 1);
  for (std::size_t lane = 1; lane < runs.size(); ++lane) EXPECT_EQ(runs[lane].load(), 0);
}

TEST_P(LanesTest, NobodyPassesABarrierBeforeEverybodyHasArrived) {
  const int lanes = GetParam();
  LanePool pool(lanes);
  Barrier barrier(lanes);
  std::atomic<int> arrived = 0, early = 0;
  pool.Run(lanes, Wanted::kAll, [&](int) {
    for (int round = 1; round <= 300; ++round) {
      ++arrived;
      barrier.Wait();
      if (arrived.load() < round * lanes) ++early;
      barrier.Wait();
    }
  });
  EXPECT_EQ(early.load(), 0);
}

TEST_P(LanesTest, AFailureEndsTheWaitOfTheOthersAndIsReported) {
  const int lanes = GetParam();
  LanePool pool(lanes);
  for (int round = 0; round < 40; ++round) {
    Barrier barrier(lanes);
    const auto work = [&](int lane) {
      try {
        for (int i = 0; i < round; ++i) barrier.Wait();
        if (lane == lanes - 1) throw std::runtime_error("the reason");
        barrier.Wait();
        ADD_FAILURE() << "passed a barrier that not all have reached";
      } catch (...) {
        barrier.Abandon();
        throw;
      }
    };
    EXPECT_THROW(pool.Run(lanes, Wanted::kAll, work), std::runtime_error);
  }
  std::atomic<int> runs = 0;
  pool.Run(lanes, Wanted::kAll, [&](int) { ++runs; });
  EXPECT_EQ(runs.load(), lanes);
}

TEST_P(LanesTest, SharedWorkIsDoneWhenRunReturnsAndNobodyIsStillAtIt) {
  LanePool pool(GetParam());
  for (int round = 0; round < 200; ++round) {
    constexpr int kThings = 10;
    std::atomic<int> next = 0, inside = 0, begun = 0;
    Latch undone(kThings);
    pool.Run(GetParam(), Wanted::kAny, [&](int) {
      ++inside;
      ++begun;
      while (next++ < kThings) undone.CountDown();
      undone.Wait();
      --inside;
    });
    EXPECT_GE(next.load(), kThings);
    EXPECT_EQ(inside.load(), 0);
    const int took_part = begun.load();
    EXPECT_GE(took_part, 1);
    EXPECT_LE(took_part, GetParam());
    // Who came too late for that takes part again.
    begun = 0;
    pool.Run(GetParam(), Wanted::kAll, [&](int) { ++begun; });
    EXPECT_EQ(begun.load(), GetParam());
  }
}

TEST(LanePoolTest, EveryLaneStaysOnItsCoreAlone) {
  cpu_set_t usable;
  CPU_ZERO(&usable);
  ASSERT_EQ(sched_getaffinity(0, sizeof(usable), &usable), 0);
  std::vector<int> cores;
  for (int core = 0; core < CPU_SETSIZE; ++core) {
    if (CPU_ISSET(static_cast<std::size_t>(core), &usable)) cores.push_back(core);
  }
  cores = {cores.back(), cores.front(), cores.back()};
  LanePool pool(3, cores);
  std::vector<int> counts(3), right(3);
  pool.Run(3, Wanted::kAll, [&](int lane) {
    const auto i = static_cast<std::size_t>(lane);
    cpu_set_t own;
    CPU_ZERO(&own);
    if (sched_getaffinity(0, sizeof(own), &own) != 0) return;
    counts[i] = CPU_COUNT(&own);
    right[i] = CPU_ISSET(static_cast<std::size_t>(cores[i]), &own) ? 1 : 0;
  });
  EXPECT_EQ(counts, std::vector<int>(3, 1));
  EXPECT_EQ(right, std::vector<int>(3, 1));
}

TEST(LatchTest, OpensWhenAllIsDoneAndLetsEverybodyThrough) {
  LanePool pool(3);
  std::atomic<int> done = 0, early = 0;
  Latch latch(2);
  pool.Run(3, Wanted::kAll, [&](int lane) {
    if (lane < 2) {
      ++done;
      latch.CountDown();
    }
    latch.Wait();
    if (done.load() < 2) ++early;
  });
  EXPECT_EQ(early.load(), 0);
  latch.Wait();
}

TEST(LatchTest, StopsThoseWhoWaitWhenItIsAbandonedWhateverIsDoneLater) {
  LanePool pool(2);
  Latch latch(2);
  std::atomic<int> stopped = 0;
  pool.Run(2, Wanted::kAll, [&](int lane) {
    if (lane == 0) {
      latch.CountDown();
      latch.Abandon();
      latch.CountDown();
    }
    try {
      latch.Wait();
    } catch (const Abandoned&) {
      ++stopped;
    }
  });
  EXPECT_EQ(stopped.load(), 2);
}

INSTANTIATE_TEST_SUITE_P(Lanes, LanesTest, ::testing::Values(1, 2, 3, 5, 8));

}  // namespace
}  // namespace motley::engine::native
