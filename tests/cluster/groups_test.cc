// Groups that do not wait for each other: what they do to the model, and to the samples.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <map>
#include <set>
#include <thread>

#include "motley/engine/native/native_device.h"
#include "tests/cluster/cluster.h"

namespace motley::cluster {
namespace {

TestCluster::Options Groups(int groups, const SmallJob& job = {}) {
  TestCluster::Options options;
  options.job = job;
  options.groups_at = [groups](std::int64_t) { return groups; };
  return options;
}

void AddWorkers(TestCluster& cluster, int count) {
  for (int i = 0; i < count; ++i) {
    cluster.AddWorker({.name = "w" + std::to_string(i), .rank = i});
  }
}

MakeDevice Slow(int milliseconds) {
  return DeviceWith([milliseconds](std::int64_t) {
    std::this_thread::sleep_for(std::chrono::milliseconds(milliseconds));
    return base::Status();
  });
}

class GroupNumberTest : public ::testing::TestWithParam<int> {};

TEST_P(GroupNumberTest, ApplyTheGradientOfTheModelThatTheyRead) {
  const int groups = GetParam();
  TestCluster::Options options = Groups(groups, {.linear = true});
  options.min_workers = groups;
  TestCluster cluster(options);
  AddWorkers(cluster, groups);
  const auto report = cluster.Run();
  ASSERT_TRUE(report.ok()) << report.status().ToString();
  EXPECT_EQ(report->state.samples, options.job.train) << "every sample once";
  EXPECT_EQ(report->state.step, 20);
  ASSERT_EQ(cluster.steps().size(), 20U);
  std::set<int> at_work;
  for (const plan::StepDone& step : cluster.steps()) at_work.insert(step.group);
  EXPECT_EQ(static_cast<int>(at_work.size()), groups);
  const auto expected = WithStaleUpdates(options.job, Replay(cluster.steps(), groups));
  EXPECT_LT(RelativeDifference(report->state.weights, expected.weights), 1e-4);
  EXPECT_LT(RelativeDifference(report->state.velocity, expected.velocity), 1e-3);
}

INSTANTIATE_TEST_SUITE_P(Groups, GroupNumberTest, ::testing::Values(1, 2, 4));

TEST(GroupsTest, MembersOfAGroupShareItsBatch) {
  TestCluster::Options options = Groups(2, {.linear = true});
  options.min_workers = 5;
  options.shares = {3, 1, 2, 5, 1};
  TestCluster cluster(options);
  AddWorkers(cluster, 5);
  const auto report = cluster.Run();
  ASSERT_TRUE(report.ok()) << report.status().ToString();
  EXPECT_EQ(report->state.samples, options.job.train);
  const auto expected = WithStaleUpdates(options.job, Replay(cluster.steps(), 2));
  EXPECT_LT(RelativeDifference(report->state.weights, expected.weights), 1e-4);
}

TEST(GroupsTest, ASlowGroupIsStaleAndHoldsNobodyUp) {
  TestCluster::Options options = Groups(3);
  options.min_workers = 3;
  TestCluster cluster(options);
  AddWorkers(cluster, 2);
  // Its first step ends when the others have made eight.
  std::atomic<std::int64_t> updates = 0;
  const auto wait = [&updates](std::int64_t) {
    for (int i = 0; i < 3000 && updates < 8; ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    return base::Status();
  };
  cluster.AddWorker({.name = "slow", .rank = 2, .make_device = DeviceWith(wait)});
  const auto report = cluster.Run([&](std::int64_t step) { updates = step; });
  ASSERT_TRUE(report.ok()) << report.status().ToString();
  const auto first =
      std::find_if(cluster.steps().begin(), cluster.steps().end(),
                   [](const auto& step) { return step.parts.front().device == "slow"; });
  ASSERT_NE(first, cluster.steps().end());
  EXPECT_GE(first->staleness, 8);
  EXPECT_EQ(first->staleness, first - cluster.steps().begin());
}

TEST(GroupsTest, AnUpdateThatWouldMakeAnotherTooStaleWaits) {
  TestCluster::Options options = Groups(3);
  options.min_workers = 3;
  options.max_staleness = 2;
  TestCluster cluster(options);
  AddWorkers(cluster, 2);
  cluster.AddWorker({.name = "slow", .rank = 2, .make_device = Slow(100)});
  const auto report = cluster.Run();
  ASSERT_TRUE(report.ok()) << report.status().ToString();
  EXPECT_EQ(report->state.samples, options.job.train);
  for (const plan::StepDone& step : cluster.steps()) {
    EXPECT_LE(step.staleness, 2) << "update " << step.step << " of group " << step.group;
  }
}

TEST(GroupsTest, AGroupGoesOnWithoutAMemberThatDies) {
  TestCluster::Options options = Groups(2, {.epochs = 3});
  options.min_workers = 4;
  TestCluster cluster(options);
  AddWorkers(cluster, 3);
  cluster.AddWorker({.name = "mortal", .rank = 3, .make_device = DeviceWith([](std::int64_t step) {
                                                    return step == 4
                                                               ? base::Internal("broken for good")
                                                               : base::Status();
                                                  })});
  const auto report = cluster.Run();
  ASSERT_TRUE(report.ok()) << report.status().ToString();
  EXPECT_EQ(report->state.samples, 3 * options.job.train);
  EXPECT_EQ(report->state.epoch, 3U);
  EXPECT_EQ(cluster.CountTold("lost: mortal"), 1);
}

TEST(GroupsTest, AWorkerMayJoinAndLeaveWhileTheOthersWork) {
  TestCluster::Options options = Groups(2, {.epochs = 3});
  options.min_workers = 2;
  TestCluster cluster(options);
  for (int i = 0; i < 2; ++i) {
    cluster.AddWorker({.name = "w" + std::to_string(i), .rank = i, .make_device = Slow(20)});
  }
  const auto report = cluster.Run([&](std::int64_t step) {
    if (step == 10) cluster.AddWorker({.name = "late", .rank = 2});
    if (step == 35) cluster.Leave(0);
  });
  ASSERT_TRUE(report.ok()) << report.status().ToString();
  EXPECT_EQ(report->state.samples, 3 * options.job.train);
  EXPECT_EQ(cluster.CountTold("joined: late"), 1);
  EXPECT_EQ(cluster.CountTold("left: w0"), 1);
  EXPECT_EQ(cluster.CountTold("lost: "), 0);
}

// Changes their number in the middle of an epoch, again and again, while a worker dies now and then
// and another one comes. The loss must fall without jumps, given that the momentum is corrected for
// what asynchrony adds.
void ChangeGroups(const SmallJob& job, std::int64_t every, std::int64_t deaths_every) {
  TestCluster::Options options = Groups(1, job);
  options.groups_at = [every](std::int64_t step) { return (step / every) % 2 == 0 ? 1 : 4; };
  options.momentum = 0.9;
  options.min_workers = 5;
  TestCluster cluster(options);
  AddWorkers(cluster, 4);
  int deaths = 0;
  const auto add_mortal = [&] {
    const auto live = [deaths_every](std::int64_t step) {
      return step == deaths_every ? base::Internal("broken for good") : base::Status();
    };
    cluster.AddWorker(
        {.name = "mortal" + std::to_string(deaths++), .make_device = DeviceWith(live)});
  };
  add_mortal();
  std::int64_t last = 0;
  const auto report = cluster.Run([&](std::int64_t step) {
    EXPECT_EQ(step, last + 1) << "every update counts one";
    last = step;
    if (cluster.CountTold("lost: mortal") == deaths) add_mortal();
  });
  ASSERT_TRUE(report.ok()) << report.status().ToString();
  EXPECT_GT(deaths, 1);
  EXPECT_EQ(report->state.samples, job.epochs * job.train) << "every sample once in every epoch";
  EXPECT_EQ(report->state.step, static_cast<std::int64_t>(cluster.steps().size()));
  std::set<int> at_work;
  for (const plan::StepDone& step : cluster.steps()) at_work.insert(step.group);
  EXPECT_EQ(at_work, (std::set<int>{0, 1, 2, 3}));
  const std::vector<double>& losses = cluster.train_losses();
  double lowest = losses.front();
  for (std::size_t epoch = 0; epoch < losses.size(); ++epoch) {
    EXPECT_LT(losses[epoch], 1.3 * lowest + 0.2) << "in epoch " << epoch;
    lowest = std::min(lowest, losses[epoch]);
  }
  EXPECT_LT(losses.back(), losses.front() - 0.2);
}

// MOTLEY_LONG=1: two thousand steps, some minutes (docs/benchmarks.md).
TEST(GroupsTest, TheirNumberMayChangeWhileTheJobRuns) {
  const bool is_long = std::getenv("MOTLEY_LONG") != nullptr;
  ChangeGroups({.epochs = is_long ? 100 : 10}, /*every=*/is_long ? 50 : 7,
               /*deaths_every=*/is_long ? 150 : 40);
}

TEST(GroupsTest, ARunThatIsInterruptedGoesOnFromItsCheckpoint) {
  TestCluster::Options options = Groups(3, {.epochs = 2});
  options.min_workers = 3;
  const std::filesystem::path folder = NewFolder();
  options.folder = folder;
  for (const bool interrupted : {true, false}) {
    TestCluster cluster(options);
    EXPECT_EQ(cluster.state.step > 0, !interrupted) << "the second one goes on";
    AddWorkers(cluster, 3);
    const auto report = cluster.Run([&](std::int64_t step) {
      if (interrupted && step == 13) cluster.interrupt = true;
    });
    ASSERT_TRUE(report.ok()) << report.status().ToString();
    if (interrupted) continue;
    EXPECT_EQ(report->state.samples, 2 * options.job.train);
  }
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace motley::cluster
