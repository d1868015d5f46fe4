// The balancer with objective = "energy".
#include <gtest/gtest.h>

#include "motley/tune/balancer.h"
#include "tests/tune/cluster_model.h"

namespace motley::tune {
namespace {

constexpr plan::PowerProfile kThrifty{.watts_idle = 1.0, .watts_busy = 5.0};
constexpr plan::PowerProfile kWasteful{.watts_idle = 100.0, .watts_busy = 400.0};

BalancerOptions EnergyOptions(std::optional<double> deadline) {
  return {.batch = 100,
          .public_samples = 10000,
          .epochs = 2,
          .objective = Objective::kEnergy,
          .deadline_seconds = deadline};
}

TEST(BalancerEnergyTest, LeavesAWastefulDeviceOutToSaveEnergy) {
  ClusterModel cluster(EnergyOptions({}));
  cluster.Join("thrifty", {.seconds_per_sample = 0.01, .power = kThrifty});
  cluster.Join("wasteful", {.seconds_per_sample = 0.005, .power = kWasteful});
  EXPECT_EQ(cluster.ShareOf("thrifty"), 100);
  EXPECT_EQ(cluster.ShareOf("wasteful"), 0);
  EXPECT_TRUE(Says(cluster.plan(), "left out: wasteful")) << cluster.plan().reason;
}

TEST(BalancerEnergyTest, SaysWhatJoulesItPredictsAndWhatCameOfThem) {
  BalancerOptions options = EnergyOptions({});
  options.moving_joules = 0.5;
  ClusterModel cluster(options);
  cluster.Join("thrifty", {.seconds_per_sample = 0.01, .power = kThrifty});
  cluster.Join("wasteful", {.seconds_per_sample = 0.005, .power = kWasteful});
  cluster["thrifty"].slowdown = 1.05;
  cluster.RunSteps(20);
  // One second of 5 W, and of 100 W for the one that is left out; then 5 % more of both.
  const auto decisions = cluster.NotesOf("decision"), outcomes = cluster.NotesOf("outcome");
  EXPECT_NEAR(Number(decisions.back(), "predicted_step_joules"), 105.0, 1e-9);
  ASSERT_EQ(outcomes.size(), 2U) << "the first plan was replaced before its first step";
  EXPECT_NEAR(Number(outcomes[1], "predicted_step_joules"), 105.0, 1e-9);
  EXPECT_NEAR(Number(outcomes[1], "step_joules"), 1.05 * 105, 1e-9);
  EXPECT_NE(outcomes[1].message.find("110."), std::string::npos) << outcomes[1].message;
}

TEST(BalancerEnergyTest, UsesAWastefulDeviceWhenTheDeadlineIsTight) {
  // 20,000 samples: 200 s by the thrifty one alone, 67 s by both.
  ClusterModel cluster(EnergyOptions(100.0));
  cluster.Join("thrifty", {.seconds_per_sample = 0.01, .power = kThrifty});
  cluster.Join("wasteful", {.seconds_per_sample = 0.005, .power = kWasteful});
  EXPECT_GT(cluster.ShareOf("wasteful"), 0);
  EXPECT_TRUE(Says(cluster.plan(), "deadline")) << cluster.plan().reason;
  for (std::int64_t samples = 0; samples < 20000; samples += cluster.Batch()) cluster.Step();
  EXPECT_LE(cluster.now(), 100.0);
}

TEST(BalancerEnergyTest, MeetsTheDeadlineWhenADeviceIsSlowed) {
  ClusterModel cluster(EnergyOptions(220.0));
  cluster.Join("thrifty", {.seconds_per_sample = 0.01, .power = kThrifty});
  cluster.Join("wasteful", {.seconds_per_sample = 0.005, .power = kWasteful});
  EXPECT_EQ(cluster.ShareOf("wasteful"), 0);
  std::int64_t samples = 0;
  for (; samples < 20000; samples += cluster.Batch()) {
    if (samples == 10000) cluster["thrifty"].slowdown = 2.0;
    cluster.Step();
  }
  EXPECT_GT(cluster.ShareOf("wasteful"), 0);
  EXPECT_LE(cluster.now(), 220.0);
}

TEST(BalancerEnergyTest, MeetsTheDeadlineWhenEveryStepTakesALittleLonger) {
  // 5 % more than predicted is no change of speed that calls for a plan, but adds up.
  ClusterModel cluster(EnergyOptions(150.0));
  cluster.Join("thrifty", {.seconds_per_sample = 0.01, .power = kThrifty});
  cluster.Join("wasteful", {.seconds_per_sample = 0.005, .power = kWasteful});
  cluster["thrifty"].slowdown = cluster["wasteful"].slowdown = 1.05;
  for (std::int64_t samples = 0; samples < 20000; samples += cluster.Batch()) {
    if (samples % 5000 == 0) cluster.stall = 1.5;  // a test of the model
    cluster.Step();
  }
  EXPECT_LE(cluster.now(), 150.0);
  EXPECT_GT(cluster.now(), 130.0);  // no more haste than it needs
}

TEST(BalancerEnergyTest, TakesADeviceBackThatWasLeftOutWhileItWasSlow) {
  BalancerOptions options = EnergyOptions({});
  options.epochs = 20;
  ClusterModel cluster(options);
  cluster.Join("thrifty", {.seconds_per_sample = 0.01, .power = kThrifty});
  cluster.Join("other", {.seconds_per_sample = 0.01, .power = kThrifty});
  cluster.RunSteps(20);
  EXPECT_GT(cluster.ShareOf("other"), 40);
  cluster["other"].slowdown = 30.0;
  cluster.RunSeconds(400.0);
  EXPECT_LE(cluster.ShareOf("other"), 1) << cluster.plan().reason;  // 1: it is being tried
  cluster["other"].slowdown = 1.0;
  cluster.RunSeconds(400.0);
  EXPECT_GT(cluster.ShareOf("other"), 40) << cluster.plan().reason;
}

TEST(BalancerEnergyTest, TakesADeviceBackThatRecoversLittleByLittle) {
  BalancerOptions options = EnergyOptions({});
  options.epochs = 200;
  ClusterModel cluster(options);
  cluster.Join("thrifty", {.seconds_per_sample = 0.01, .power = kThrifty});
  cluster.Join("other", {.seconds_per_sample = 0.01, .power = kThrifty});
  cluster["other"].slowdown = 30.0;
  cluster.RunSeconds(400.0);
  EXPECT_LE(cluster.ShareOf("other"), 1) << cluster.plan().reason;
  for (double& slow = cluster["other"].slowdown; slow > 1.0; slow *= 0.96) cluster.RunSeconds(15.0);
  cluster["other"].slowdown = 1.0;
  cluster.RunSeconds(100.0);
  EXPECT_GT(cluster.ShareOf("other"), 40) << cluster.plan().reason;
}

TEST(BalancerEnergyTest, NeverTriesADeviceThatIsLeftOutForItsWatts) {
  ClusterModel cluster(EnergyOptions({}));
  cluster.Join("thrifty", {.seconds_per_sample = 0.01, .power = kThrifty});
  cluster.Join("wasteful", {.seconds_per_sample = 0.005, .power = kWasteful});
  const std::size_t plans = cluster.plans().size();
  cluster.RunSeconds(100.0);
  EXPECT_EQ(cluster.plans().size(), plans);
}

}  // namespace
}  // namespace motley::tune
