#include "motley/engine/native/lanes.h"

#include <gtest/gtest.h>

#include <atomic>
#include <stdexcept>
#include <vector>

namespace motley::engine::native {
namespace {

class LanesTest : public ::testing::TestWithParam<int> {};

TEST_P(LanesTest, EveryLaneRunsOncePerCall) {
  LanePool pool(GetParam());
  std::vector<std::atomic<int>> runs(static_cast<std::size_t>(GetParam()));
  for (int round = 0; round < 200; ++round) {
    pool.Run(GetParam(), [&](int lane) { ++runs[static_cast<std::size_t>(lane)]; });
  }
  for (const auto& count : runs) EXPECT_EQ(count.load(), 200);
}

TEST_P(LanesTest, OnlyTheFirstLanesRunWhenFewerAreAskedFor) {
  LanePool pool(GetParam());
  std::vector<std::atomic<int>> runs(static_cast<std::size_t>(GetParam()));
  pool.Run(1, [&](int lane) { ++runs[static_cast<std::size_t>(lane)]; });
  EXPECT_EQ(runs[0].load(), 1);
  for (std::size_t lane = 1; lane < runs.size(); ++lane) EXPECT_EQ(runs[lane].load(), 0);
}

TEST_P(LanesTest, NobodyPassesABarrierBeforeEverybodyHasArrived) {
  const int lanes = GetParam();
  LanePool pool(lanes);
  Barrier barrier(lanes);
  std::atomic<int> arrived = 0, early = 0;
  pool.Run(lanes, [&](int) {
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
  for (int round = 0; round < 100; ++round) {
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
    EXPECT_THROW(pool.Run(lanes, work), std::runtime_error);
  }
  std::atomic<int> runs = 0;
  pool.Run(lanes, [&](int) { ++runs; });
  EXPECT_EQ(runs.load(), lanes);
}

INSTANTIATE_TEST_SUITE_P(Lanes, LanesTest, ::testing::Values(1, 2, 3, 5, 8));

}  // namespace
}  // namespace motley::engine::native
