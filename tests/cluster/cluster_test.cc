#include "tests/cluster/cluster.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <limits>
#include <numeric>
#include <thread>

namespace motley::cluster {
namespace {

struct Size {
  int workers = 1;
  bool gloo = false;
};

class ClusterSizeTest : public testing::TestWithParam<Size> {};

TEST_P(ClusterSizeTest, GivesTheWeightsOfOneDeviceForUnequalShares) {
  const Size size = GetParam();
  TestCluster cluster(
      {.gloo = size.gloo, .min_workers = size.workers, .shares = {3, 1, 0, 5, 2, 7, 1, 4}});
  for (int i = 0; i < size.workers; ++i) cluster.AddWorker();
  const auto report = cluster.Run();
  ASSERT_TRUE(report.ok()) << report.status().ToString();
  ExpectSame(report->state, OnOneDevice({}));
  for (int i = 0; i < size.workers; ++i) {
    const auto& ended = cluster.Ended(static_cast<std::size_t>(i));
    ASSERT_TRUE(ended.ok()) << ended.status().ToString();
    EXPECT_EQ(ended->end, WorkerReport::End::kFinished);
  }
}

TEST_P(ClusterSizeTest, GivesTheSameWithBatchNormInVirtualBatches) {
  const Size size = GetParam();
  const SmallJob job{.batch_norm = true, .bn_batch = 4};
  TestCluster cluster(
      {.job = job, .gloo = size.gloo, .min_workers = size.workers, .shares = {3, 1, 2}});
  for (int i = 0; i < size.workers; ++i) cluster.AddWorker();
  const auto report = cluster.Run();
  ASSERT_TRUE(report.ok()) << report.status().ToString();
  ExpectSame(report->state, OnOneDevice(job));
}

INSTANTIATE_TEST_SUITE_P(Workers, ClusterSizeTest,
                         testing::Values(Size{1}, Size{2}, Size{3}, Size{5}, Size{8}, Size{1, true},
                                         Size{2, true}, Size{3, true}, Size{5, true},
                                         Size{8, true}),
                         [](const auto& param_info) {
                           return std::to_string(param_info.param.workers) +
                                  (param_info.param.gloo ? "ByGloo" : "ByTheServer");
                         });

TEST(GradientNoiseTest, IsTheSameByGlooAndByTheServer) {
  std::vector<double> noise;
  for (const bool gloo : {false, true}) {
    TestCluster cluster(
        {.job = {.epochs = 2}, .gloo = gloo, .min_workers = 3, .shares = {5, 2, 0}});
    for (int rank = 0; rank < 3; ++rank) {
      cluster.AddWorker({.name = "w" + std::to_string(rank), .rank = rank});
    }
    const auto report = cluster.Run();
    ASSERT_TRUE(report.ok()) << report.status().ToString();
    ASSERT_FALSE(cluster.steps().front().noise.has_value());
    ASSERT_TRUE(cluster.steps().back().noise.has_value());
    noise.push_back(*cluster.steps().back().noise);
  }
  EXPECT_GT(noise[0], 0.0);
  EXPECT_NEAR(noise[1], noise[0], 0.02 * noise[0]);
}

class ReductionTest : public testing::TestWithParam<Way> {
 protected:
  TestCluster::Options Options(int min_workers = 2) const {
    return {.gloo = GetParam() == Way::kGloo,
            .merged_head = GetParam() == Way::kMergedHead,
            .min_workers = min_workers,
            .shares = {2, 1, 3}};
  }
};

TEST_P(ReductionTest, AWorkerThatFailsIsNamedAndTheOthersGoOn) {
  TestCluster cluster(Options());
  cluster.AddWorker();
  cluster.AddWorker({.name = "frail", .make_device = DeviceWith([](std::int64_t step) {
                                        return step == 3 ? base::Internal("smoke") : base::Status();
                                      })});
  const auto report = cluster.Run();
  ASSERT_TRUE(report.ok()) << report.status().ToString();
  ExpectSame(report->state, OnOneDevice({}));
  EXPECT_EQ(cluster.CountTold("is lost: it failed: smoke"), 1);
  EXPECT_FALSE(cluster.Ended(1).ok());
}

TEST_P(ReductionTest, AGradientThatIsNotFiniteSendsItsWorkerAway) {
  TestCluster cluster(Options(3));
  cluster.AddWorker();
  cluster.AddWorker();
  cluster.AddWorker(
      {.name = "mad", .make_device = DeviceWith({}, [step = 0](const auto& request) mutable {
                        if (++step == 4) {
                          request.gradient[17] = std::numeric_limits<float>::quiet_NaN();
                        }
                      })});
  const auto report = cluster.Run();
  ASSERT_TRUE(report.ok()) << report.status().ToString();
  ExpectSame(report->state, OnOneDevice({}));
  EXPECT_GE(cluster.CountTold("mad"), 1);
  EXPECT_EQ(cluster.CountTold("not finite"), 1);
}

// Each time they come back, until the next step is done without them.
TEST_P(ReductionTest, WhoeverHasAGradientThatIsNotFiniteIsSentAwayAndTheOthersGoOn) {
  TestCluster cluster(Options(3));
  cluster.AddWorker({.name = "sound"});
  for (const char* name : {"mad-1", "mad-2"}) {
    cluster.AddWorker(
        {.name = name, .make_device = DeviceWith({}, [step = 0](const auto& request) mutable {
                         if (++step == 4 || step == 5) {
                           request.gradient[17] = std::numeric_limits<float>::quiet_NaN();
                         }
                       })});
  }
  const auto report = cluster.Run();
  ASSERT_TRUE(report.ok()) << report.status().ToString();
  ExpectSame(report->state, OnOneDevice({}));
  EXPECT_GE(cluster.CountTold("mad-1 ("), 1);
  EXPECT_GE(cluster.CountTold("mad-2 ("), 1);
  EXPECT_EQ(cluster.CountTold("sound ("), 0);
}

TEST_P(ReductionTest, WhoFailsAgainAndAgainHasToWaitUnderTheNameThatItWasGiven) {
  TestCluster cluster(Options(3));
  const auto slow = [](std::int64_t) {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    return base::Status();
  };
  cluster.AddWorker({.name = "sound", .make_device = DeviceWith(slow)});
  cluster.AddWorker({.name = "safe", .make_device = DeviceWith(slow)});
  cluster.AddWorker({.make_device = DeviceWith({}, [](const auto& request) {
                       request.gradient[17] = std::numeric_limits<float>::quiet_NaN();
                     })});
  const auto report = cluster.Run();
  ASSERT_TRUE(report.ok()) << report.status().ToString();
  ExpectSame(report->state, OnOneDevice({}));
  EXPECT_EQ(cluster.CountTold("lost: worker-0 "), 3);
  EXPECT_EQ(cluster.CountTold("it is not used for 10 s"), 1);
  EXPECT_EQ(cluster.CountTold("lost: "), 3);
}

TEST_P(ReductionTest, ALearningRateThatIsTooLargeEndsTheRunAsOnOneMachine) {
  TestCluster::Options options = Options();
  options.job.learning_rate = 1e30F;
  TestCluster cluster(options);
  cluster.AddWorker();
  cluster.AddWorker();
  const auto report = cluster.Run();
  ASSERT_FALSE(report.ok());
  EXPECT_NE(report.status().message().find("no longer a finite number"), std::string::npos)
      << report.status().message();
}

TEST_P(ReductionTest, AWorkerMayJoinWhileTheJobRuns) {
  TestCluster cluster(Options(1));
  cluster.AddWorker({.name = "first", .make_device = DeviceWith([](std::int64_t) {
                                        std::this_thread::sleep_for(std::chrono::milliseconds(60));
                                        return base::Status();
                                      })});
  const auto report = cluster.Run([&](std::int64_t step) {
    if (step == 2) cluster.AddWorker({.name = "second"});
  });
  ASSERT_TRUE(report.ok()) << report.status().ToString();
  ExpectSame(report->state, OnOneDevice({}));
  EXPECT_EQ(cluster.CountTold("second joined"), 1);
  const auto& second = cluster.Ended(1);
  ASSERT_TRUE(second.ok());
  EXPECT_GT(second->samples, 0);
}

TEST_P(ReductionTest, AWorkerMayLeavePolitely) {
  TestCluster cluster(Options(3));
  for (int i = 0; i < 3; ++i) cluster.AddWorker();
  const auto report = cluster.Run([&](std::int64_t step) {
    if (step == 4) cluster.Leave(0);
    if (step < 9) std::this_thread::sleep_for(std::chrono::milliseconds(40));
  });
  ASSERT_TRUE(report.ok()) << report.status().ToString();
  ExpectSame(report->state, OnOneDevice({}));
  const auto& ended = cluster.Ended(0);
  ASSERT_TRUE(ended.ok()) << ended.status().ToString();
  EXPECT_EQ(ended->end, WorkerReport::End::kLeft);
  EXPECT_EQ(cluster.CountTold("left;"), 1);
}

TEST_P(ReductionTest, TheLastWorkerLeavesTheModelBehindWhenItLeaves) {
  TestCluster cluster(Options(1));
  const auto slow = DeviceWith([](std::int64_t) {
    std::this_thread::sleep_for(std::chrono::milliseconds(40));
    return base::Status();
  });
  cluster.AddWorker({.name = "first", .make_device = slow});
  const std::jthread next([&](const std::stop_token& stop) {
    while (cluster.CountTold("left;") == 0 && !stop.stop_requested()) {
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    cluster.AddWorker({.name = "second"});
  });
  const auto report = cluster.Run([&](std::int64_t step) {
    if (step == 3) cluster.Leave(0);
  });
  ASSERT_TRUE(report.ok()) << report.status().ToString();
  ExpectSame(report->state, OnOneDevice({}));
  EXPECT_TRUE(cluster.Ended(0).ok());
  EXPECT_EQ(cluster.CountTold("left;"), 1);
}

TEST_P(ReductionTest, WorkersWithoutACopyGetTheSamplesFromTheCoordinator) {
  TestCluster cluster(Options());
  cluster.AddWorker();
  cluster.AddWorker();
  const auto report = cluster.Run();
  ASSERT_TRUE(report.ok()) << report.status().ToString();
  // The job names no data that a worker could have: every sample of both sets came at least once.
  EXPECT_GE(cluster.coordinator().traffic().public_data, (630 + 60) * 28 * 28);
  EXPECT_EQ(cluster.coordinator().traffic().private_data, 0);
}

TEST_P(ReductionTest, WorkersWaitForACoordinatorThatComesBackAndGoOnWithItsCheckpoint) {
  const std::filesystem::path folder = NewFolder();
  TestCluster::Options options = Options();
  options.folder = folder;
  options.job.train = 318;  // 10 steps
  options.job.epochs = 2;
  auto first = std::make_unique<TestCluster>(options);
  first->AddWorker({.name = "a", .retry_seconds = 20});
  first->AddWorker({.name = "b", .retry_seconds = 20});
  const auto interrupted = first->Run([&](std::int64_t step) {
    if (step == 14) first->interrupt = true;
  });
  ASSERT_TRUE(interrupted.ok()) << interrupted.status().ToString();
  first->Vanish();

  options.listen = first->address();
  TestCluster second(options);
  EXPECT_EQ(second.state.step, 14);
  // A resumed job goes on with whoever is back first: the other one must not miss its end.
  const auto report = second.Run([&](std::int64_t) {
    for (int i = 0; i < 16 && second.CountTold(" joined from ") < 2; ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
    }
  });
  ASSERT_TRUE(report.ok()) << report.status().ToString();
  ExpectSame(report->state, OnOneDevice(options.job));
  for (const std::size_t worker : {0, 1}) {
    const auto& ended = first->Ended(worker);
    EXPECT_TRUE(ended.ok()) << ended.status().ToString();
  }
  first = nullptr;
  std::filesystem::remove_all(folder);
}

TEST_P(ReductionTest, AWorkerThatIsStillMeasuredWhenTheJobEndsHasFinishedToo) {
  TestCluster::Options options = Options();
  options.probe = true;
  options.min_workers = 1;
  TestCluster cluster(options);
  cluster.AddWorker();
  std::atomic<bool> measuring{false}, over{false};
  const auto report = cluster.Run([&](std::int64_t step) {
    if (step != 2) return;
    cluster.AddWorker({.name = "late", .make_device = DeviceWith([&](std::int64_t) -> base::Status {
                                         measuring = true;
                                         for (int i = 0; i < 1200 && !over; ++i) {
                                           std::this_thread::sleep_for(
                                               std::chrono::milliseconds(50));
                                         }
                                         return base::Cancelled("the step was cancelled");
                                       })});
    for (int i = 0; i < 400 && !measuring; ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
    }
    EXPECT_TRUE(measuring);
  });
  over = true;
  ASSERT_TRUE(report.ok()) << report.status().ToString();
  const auto& ended = cluster.Ended(1);
  ASSERT_TRUE(ended.ok()) << ended.status().ToString();
  EXPECT_EQ(ended->end, WorkerReport::End::kFinished);
}

TEST_P(ReductionTest, AResumedJobGoesOnWithWhoeverComesBack) {
  const std::filesystem::path folder = NewFolder();
  TestCluster::Options options = Options();
  options.folder = folder;
  auto first = std::make_unique<TestCluster>(options);
  first->AddWorker({.name = "a"});
  first->AddWorker({.name = "b"});
  const auto interrupted = first->Run([&](std::int64_t step) {
    if (step == 5) first->interrupt = true;
  });
  ASSERT_TRUE(interrupted.ok()) << interrupted.status().ToString();
  first = nullptr;

  TestCluster second(options);
  EXPECT_GE(second.state.step, 5);
  second.AddWorker({.name = "a"});  // and never b
  const auto report = second.Run();
  ASSERT_TRUE(report.ok()) << report.status().ToString();
  ExpectSame(report->state, OnOneDevice({}));
  std::filesystem::remove_all(folder);
}

INSTANTIATE_TEST_SUITE_P(Ways, ReductionTest,
                         testing::Values(Way::kServer, Way::kGloo, Way::kMergedHead), NameOf);

}  // namespace
}  // namespace motley::cluster
