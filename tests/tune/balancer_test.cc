#include "motley/tune/balancer.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <map>

#include "tests/tune/cluster_model.h"

namespace motley::tune {
namespace {

// Three devices with 4 : 2 : 1 of the speed and steps of about 0.3 s.
class ThreeDevices : public ClusterModel {
 public:
  explicit ThreeDevices(const BalancerOptions& options = {.batch = 700}, std::uint64_t seed = 1)
      : ClusterModel(options, seed) {
    Join("fast", {.seconds_per_sample = 0.00075});
    Join("middle", {.seconds_per_sample = 0.0015});
    Join("slow", {.seconds_per_sample = 0.003});
  }
};

void ExpectNear(std::int64_t share, double expected) {
  EXPECT_NEAR(static_cast<double>(share), expected, 0.03 * expected + 1.0);
}

TEST(BalancerTest, IsBalancedFromTheFirstStepOn) {
  ThreeDevices cluster;
  EXPECT_EQ(cluster.ShareOf("fast"), 400);
  EXPECT_EQ(cluster.ShareOf("middle"), 200);
  EXPECT_EQ(cluster.ShareOf("slow"), 100);
  EXPECT_NEAR(cluster.plan().predicted_seconds, 0.3, 1e-9);
  const std::size_t plans = cluster.plans().size();
  cluster.RunSeconds(60.0);
  EXPECT_EQ(cluster.plans().size(), plans);
}

TEST(BalancerTest, TakesAnUnprobedDeviceForTheMeanAndThenAsItIs) {
  ClusterModel cluster({.batch = 300});
  cluster.Join("known", {.seconds_per_sample = 0.001});
  cluster.Join("unknown", {.seconds_per_sample = 0.002, .probed = false});
  EXPECT_EQ(cluster.ShareOf("unknown"), 150);
  EXPECT_TRUE(Says(cluster.plan(), "assumed")) << cluster.plan().reason;
  EXPECT_TRUE(cluster.RunToNextPlan().InTime());
  ExpectNear(cluster.ShareOf("unknown"), 100);
}

TEST(BalancerTest, MovesSamplesAwayFromASlowedDeviceAndBackAgain) {
  ThreeDevices cluster;
  cluster.RunSeconds(10.0);
  cluster["fast"].slowdown = 2.0;
  const auto slowed = cluster.RunToNextPlan();
  EXPECT_TRUE(slowed.InTime()) << slowed.seconds << " s, " << slowed.steps << " steps";
  EXPECT_EQ(cluster.Batch(), 700);
  ExpectNear(cluster.ShareOf("fast"), 280);
  ExpectNear(cluster.ShareOf("middle"), 280);
  ExpectNear(cluster.ShareOf("slow"), 140);
  EXPECT_TRUE(Says(cluster.plan(), "fast needs 1.5 ms per sample instead of 0.75 ms"))
      << cluster.plan().reason;

  cluster.RunSeconds(10.0);
  cluster["fast"].slowdown = 1.0;
  const auto recovered = cluster.RunToNextPlan();
  EXPECT_TRUE(recovered.InTime()) << recovered.seconds << " s, " << recovered.steps << " steps";
  ExpectNear(cluster.ShareOf("fast"), 400);
  EXPECT_EQ(cluster.plan().learning_rate_factor, 1.0);
}

TEST(BalancerTest, ReactsInTimeToAnyDeviceAndAnyLengthOfStep) {
  for (const double scale : {0.05, 0.3, 1.0, 5.0}) {
    for (const std::string name : {"a", "b"}) {
      ClusterModel cluster({.batch = 200});
      cluster.Join("a", {.fixed_seconds = 0.01 * scale, .seconds_per_sample = 0.005 * scale});
      cluster.Join("b", {.fixed_seconds = 0.02 * scale, .seconds_per_sample = 0.01 * scale});
      cluster.RunSteps(50);
      cluster[name].slowdown = 2.0;
      const auto waited = cluster.RunToNextPlan(600.0);
      EXPECT_TRUE(waited.InTime()) << scale << ": " << waited.seconds << " s, " << waited.steps;
      ExpectNear(cluster.ShareOf("a"), name == "a" ? 100.0 : 160.0);
    }
  }
}

TEST(BalancerTest, LeavesThePlanAloneAfterOneSlowStep) {
  ThreeDevices cluster;
  cluster.RunSeconds(5.0);
  const std::size_t plans = cluster.plans().size();
  for (int i = 0; i < 10; ++i) {
    cluster["middle"].slowdown = 6.0;
    cluster.Step();
    cluster["middle"].slowdown = 1.0;
    cluster.RunSeconds(12.0);
    cluster.stall = 2.0;  // all of them: the network, or the machine was suspended
    cluster.RunSeconds(12.0);
  }
  EXPECT_EQ(cluster.plans().size(), plans);
}

TEST(BalancerTest, LeavesThePlanAloneInABurstOfFewLongSteps) {
  for (const auto& [slowdown, steps] : {std::pair{1.2, 3}, {1.3, 3}, {1.4, 3}, {1.4, 5}}) {
    ThreeDevices cluster({.batch = 1600});  // 0.7 s
    cluster.RunSeconds(10.0);
    const std::size_t plans = cluster.plans().size();
    for (int i = 0; i < 10; ++i) {
      cluster["middle"].slowdown = slowdown;
      cluster.RunSteps(steps);
      cluster["middle"].slowdown = 1.0;
      cluster.RunSeconds(12.0);
    }
    EXPECT_EQ(cluster.plans().size(), plans) << slowdown << ", " << steps << " steps";
  }
}

TEST(BalancerTest, LeavesThePlanAloneInNoise) {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    ThreeDevices cluster({.batch = 700}, seed);
    const std::size_t plans = cluster.plans().size();
    cluster.noise = 0.05;
    cluster.RunSeconds(60.0);
    EXPECT_EQ(cluster.plans().size(), plans) << "seed " << seed;
  }
}

TEST(BalancerTest, SeesThroughNoise) {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    ThreeDevices cluster({.batch = 700}, seed);
    cluster.noise = 0.05;
    cluster.RunSeconds(10.0);
    cluster["fast"].slowdown = 2.0;
    EXPECT_TRUE(cluster.RunToNextPlan().InTime()) << "seed " << seed;
    EXPECT_NEAR(static_cast<double>(cluster.ShareOf("fast")), 280.0, 28.0) << "seed " << seed;
  }
}

TEST(BalancerTest, DoesNotFollowASpeedThatGoesUpAndDown) {
  for (const std::int64_t batch : {70, 700}) {
    for (const double period : {0.5, 1.0, 1.4, 2.0, 2.4, 2.8}) {
      const std::string which = fmt::format("{} samples, every {} s", batch, period);
      ThreeDevices cluster({.batch = batch});
      const auto alternate = [&](double now) {
        cluster["fast"].slowdown = std::fmod(now, 2.0 * period) < period ? 1.0 : 3.0;
      };
      cluster.RunSeconds(5.0);
      const std::size_t plans = cluster.plans().size();
      cluster.RunSeconds(60.0, alternate);
      const std::size_t settled = cluster.plans().size();
      // What turns more slowly takes longer to know.
      EXPECT_LE(settled - plans, period > 2.0 ? 6U : 4U) << which;
      cluster.RunSeconds(30.0, alternate);
      EXPECT_LE(cluster.plans().size() - settled, 1U) << which;
      // It is taken for less than it is at its best.
      EXPECT_LT(cluster.ShareOf("fast"), batch * 380 / 700) << which;
    }
  }
}

// By how much the devices' true compute times differ with the present shares.
double TrueSpread(ClusterModel& cluster) {
  double first = std::numeric_limits<double>::infinity(), last = 0.0;
  for (const plan::Share& share : cluster.plan().shares) {
    const ModelDevice& device = cluster[share.device];
    const double seconds =
        device.slowdown * device.seconds_per_sample * static_cast<double>(share.samples);
    first = std::min(first, seconds);
    last = std::max(last, seconds);
  }
  return (last - first) / last;
}

TEST(BalancerTest, RefinesAwayASmallDifferenceThatLasts) {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    ThreeDevices cluster({.batch = 700}, seed);
    cluster.noise = 0.03;
    cluster.RunSeconds(20.0);
    const std::size_t plans = cluster.plans().size();
    cluster["slow"].slowdown = 0.85;  // steps could be 2.5 % shorter: too little for haste
    cluster.RunSeconds(100.0);
    EXPECT_LT(TrueSpread(cluster), 0.05) << "seed " << seed;
    EXPECT_LE(cluster.plans().size() - plans, 3U) << "seed " << seed;
    EXPECT_TRUE(Says(cluster.plan(), "the compute times of")) << cluster.plan().reason;
  }
}

TEST(BalancerTest, RefinesTheOthersInSpiteOfADeviceWhoseTimesVary) {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    ThreeDevices cluster({.batch = 700}, seed);
    cluster.noise = 0.015;
    cluster["slow"].slowdown = 0.92;
    base::Rng rng(seed);
    cluster.RunSeconds(20.0, [&](double) {
      cluster["fast"].slowdown = 0.86 + 0.01 * static_cast<double>(rng.Below(29));
    });
    const double middle = 0.0015 * static_cast<double>(cluster.ShareOf("middle"));
    const double slow = 0.92 * 0.003 * static_cast<double>(cluster.ShareOf("slow"));
    EXPECT_NEAR(slow / middle, 1.0, 0.04) << "seed " << seed;
    EXPECT_LE(cluster.decisions(), 3 + 3) << "seed " << seed;  // they joined, and these
  }
}

TEST(BalancerTest, LearnsThatCommunicationTakesLessThanAtJoining) {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    ClusterModel cluster({.batch = 700}, seed);
    cluster.tells_exchange = seed % 2 == 0;
    cluster.noise = 0.015;
    cluster.Join("hurried", {.seconds_per_sample = 0.001, .communication_seconds = 0.04});
    cluster.Join("other", {.seconds_per_sample = 0.001, .communication_seconds = 0.01});
    cluster["hurried"].communication_seconds = 0.01;
    EXPECT_EQ(cluster.ShareOf("hurried"), 335) << "seed " << seed;
    cluster.RunSeconds(60.0);
    EXPECT_GE(cluster.ShareOf("hurried"), 345) << "seed " << seed;
    EXPECT_LE(cluster.ShareOf("hurried"), 355) << "seed " << seed;
  }
}

TEST(BalancerTest, FollowsALinkThatBecomesSlowAndFastAgain) {
  ClusterModel cluster({.batch = 700});
  cluster.Join("near", {.seconds_per_sample = 0.001, .communication_seconds = 0.01});
  cluster.Join("far", {.seconds_per_sample = 0.001, .communication_seconds = 0.01});
  cluster.noise = 0.01;
  cluster.RunSeconds(20.0);
  const std::size_t plans = cluster.plans().size();
  cluster["far"].communication_seconds = 0.15;
  cluster.RunSeconds(30.0);
  ASSERT_GT(cluster.plans().size(), plans);
  ExpectNear(cluster.ShareOf("far"), 280);
  EXPECT_TRUE(Says(cluster.plans()[plans], "the exchange with far takes 150 ms instead of"))
      << cluster.plans()[plans].reason;
  cluster["far"].communication_seconds = 0.01;
  cluster.RunSeconds(30.0);
  ExpectNear(cluster.ShareOf("far"), 350);
  EXPECT_LE(cluster.plans().size() - plans, 4U);
}

TEST(BalancerTest, DoesNotFollowALinkThatGoesUpAndDown) {
  for (const double period : {0.5, 1.0, 2.0, 3.0}) {
    ClusterModel cluster({.batch = 700});
    cluster.Join("near", {.seconds_per_sample = 0.001, .communication_seconds = 0.01});
    cluster.Join("far", {.seconds_per_sample = 0.001, .communication_seconds = 0.01});
    cluster.noise = 0.01;
    const std::size_t plans = cluster.plans().size();
    cluster.RunSeconds(120.0, [&](double now) {
      cluster["far"].communication_seconds = std::fmod(now, 2.0 * period) < period ? 0.01 : 0.15;
    });
    EXPECT_LE(cluster.plans().size() - plans, 1U) << "every " << period << " s";
  }
}

TEST(BalancerTest, FindsOutThatALinkWasOnlySlowAtJoining) {
  ClusterModel cluster({.batch = 700});
  cluster.Join("near", {.seconds_per_sample = 0.001, .communication_seconds = 0.01});
  cluster.Join("far", {.seconds_per_sample = 0.001, .communication_seconds = 2.0});
  EXPECT_EQ(cluster.ShareOf("far"), 0);
  cluster["far"].communication_seconds = 0.01;
  cluster.RunSeconds(60.0);
  ExpectNear(cluster.ShareOf("far"), 350);
}

TEST(BalancerTest, RefinesRarelyWhenASmallDifferenceComesAndGoes) {
  for (const double period : {2.0, 5.0, 13.0, 30.0}) {
    ThreeDevices cluster;
    cluster.noise = 0.02;
    const std::size_t plans = cluster.plans().size();
    cluster.RunSeconds(600.0, [&](double now) {
      cluster["slow"].slowdown = std::fmod(now, 2.0 * period) < period ? 1.0 : 0.88;
    });
    EXPECT_LE(cluster.plans().size() - plans, 24U) << "every " << period << " s";
  }
}

// What two shared cores make of a device: one step in twenty, or two after each other, takes
// longer.
class Spikes {
 public:
  Spikes(ClusterModel& cluster, std::uint64_t seed) : cluster_(cluster), rng_(seed) {}

  void operator()(double) {
    for (const std::string name : {"fast", "middle", "slow"}) {
      int& left = left_[name];
      left = left > 0 ? left - 1 : static_cast<int>(rng_.Below(40) == 0) + (rng_.Below(40) == 0);
      cluster_[name].slowdown = lasting[name] * (left > 0 ? 1.45 : 1.0);
      cluster_[name].pressure = pressure + 0.01 * static_cast<double>(rng_.Below(20));
    }
  }

  std::map<std::string, double> lasting{{"fast", 1.0}, {"middle", 1.0}, {"slow", 1.0}};
  double pressure = 0.15;

 private:
  ClusterModel& cluster_;
  base::Rng rng_;
  std::map<std::string, int> left_;
};

TEST(BalancerTest, LeavesThePlanAloneOnABusyMachine) {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    ThreeDevices cluster({.batch = 700}, seed);
    const std::size_t plans = cluster.plans().size();
    cluster.noise = 0.02;
    Spikes spikes(cluster, seed);
    cluster.RunSeconds(120.0, std::ref(spikes));
    EXPECT_LE(cluster.plans().size() - plans, 1U) << "seed " << seed;
    for (const std::string name : {"fast", "middle", "slow"}) cluster[name].slowdown = 1.0;
    EXPECT_LT(TrueSpread(cluster), 0.05) << "seed " << seed;
  }
}

// Spikes at the moment of the change may hide it for a while: 95 of 100 in time, none out of reach.
TEST(BalancerTest, ReactsInTimeOnABusyMachineInBothDirections) {
  int reactions = 0, late = 0;
  for (const std::int64_t batch : {200, 700}) {
    for (std::uint64_t seed = 1; seed <= 40; ++seed) {
      ThreeDevices cluster({.batch = batch}, seed);
      cluster.noise = 0.02;
      Spikes spikes(cluster, seed);
      cluster.RunSeconds(15.0, std::ref(spikes));
      const auto react = [&](double slowdown, double noise) {
        spikes.lasting["fast"] = slowdown;
        cluster.noise = noise;
        const auto waited = cluster.RunToNextPlan(60.0, std::ref(spikes));
        ++reactions;
        late += waited.InTime() ? 0 : 1;
        EXPECT_LE(waited.steps, 20) << fmt::format("{} samples, seed {}, to {}: {} s", batch, seed,
                                                   slowdown, waited.seconds);
        cluster.RunSeconds(20.0, std::ref(spikes));
      };
      react(2.0, 0.08);
      react(1.0, 0.02);
      react(4.0, 0.08);
      react(1.0, 0.02);
    }
  }
  EXPECT_LE(20 * late, reactions) << late << " of " << reactions << " late";
}

TEST(BalancerTest, NeverRetunesWhenTunedOnce) {
  ThreeDevices cluster({.batch = 700, .keep = false});
  const std::size_t plans = cluster.plans().size();
  cluster["fast"].slowdown = 4.0;
  cluster["fast"].pressure = 0.9;
  cluster.RunSeconds(60.0);
  EXPECT_EQ(cluster.plans().size(), plans);
  EXPECT_EQ(cluster.ShareOf("fast"), 400);
  EXPECT_EQ(cluster.NotesOf("outcome").size(), 2U);  // the last plan, and those before it
}

TEST(BalancerTest, SendsAHopelessDeviceToTheBenchAndTriesItAgain) {
  ThreeDevices cluster;
  cluster.RunSeconds(5.0);
  cluster["slow"].slowdown = 500.0;  // 1.5 s for one sample
  cluster.RunSteps(20);
  EXPECT_EQ(cluster.ShareOf("slow"), 0);
  EXPECT_EQ(cluster.Batch(), 700);
  const auto decisions = cluster.NotesOf("decision");
  EXPECT_NE(decisions.back().message.find("slow gets nothing: "), std::string::npos)
      << decisions.back().message;

  cluster["slow"].slowdown = 1.0;
  cluster.RunSeconds(60.0);
  EXPECT_EQ(cluster.ShareOf("slow"), 100);
  EXPECT_TRUE(Says(cluster.plan(), "slow was tried again")) << cluster.plan().reason;
}

TEST(BalancerTest, TryingAgainCostsAtMostAFewPercent) {
  ThreeDevices cluster;
  cluster["slow"].slowdown = 500.0;
  cluster.RunSteps(20);
  ASSERT_EQ(cluster.ShareOf("slow"), 0);
  const double began = cluster.now();
  int steps = 0;
  for (; cluster.now() - began < 600.0; ++steps) cluster.Step();
  const double without = 0.35;  // a step of the other two
  EXPECT_GT(steps * without, 0.94 * (cluster.now() - began));
}

TEST(BalancerTest, SparesADeviceThatDidNothingAtItsTrialForAWhile) {
  // As with a deadline: the tried device hands in nothing, and is in no part of the step.
  base::VirtualClock clock;
  Balancer balancer({.batch = 100}, clock);
  const auto join = [&](const std::string& name, double seconds_per_sample) {
    return balancer.OnEvent(plan::DeviceJoined{
        .device = name, .curve = plan::SpeedCurve{.seconds_per_sample = seconds_per_sample}});
  };
  (void)join("good", 0.001);
  auto plan = join("bad", 10.0);
  ASSERT_TRUE(plan.has_value());
  int tried = 0;
  for (std::int64_t step = 1; step <= 6000; ++step) {
    clock.Advance(0.1);
    plan::StepDone done{.step = step, .seconds = 0.1};
    for (const plan::Share& share : plan->shares) {
      if (share.device != "bad") done.parts.push_back({share.device, share.samples, 0.1, 0.0});
      if (share.device == "bad" && share.samples > 0) done.short_step = true;
    }
    // Else there would be no deadline.
    EXPECT_NEAR(plan->predicted_seconds, done.short_step ? 10.0 : 0.1, 0.01) << plan->reason;
    tried += done.short_step ? 1 : 0;
    if (auto next = balancer.OnEvent(done)) plan = std::move(next);
  }
  EXPECT_GE(tried, 1);
  EXPECT_LE(tried, 4);  // in 600 s, at 10 s each
}

TEST(BalancerTest, ShrinksBatchAndLearningRateWhenMemoryIsTooSmall) {
  ClusterModel cluster({.batch = 256});
  cluster.Join("a", {.cap = 96});
  cluster.Join("b", {.cap = 64});
  EXPECT_EQ(cluster.Batch(), 160);
  EXPECT_DOUBLE_EQ(cluster.plan().learning_rate_factor, 160.0 / 256.0);
  EXPECT_TRUE(Says(cluster.plan(), "in proportion")) << cluster.plan().reason;
  cluster.Join("c", {});
  EXPECT_EQ(cluster.Batch(), 256);
  EXPECT_EQ(cluster.plan().learning_rate_factor, 1.0);
}

TEST(BalancerTest, KeepsMultiplesOfTheBatchNormBatch) {
  ClusterModel cluster({.batch = 256, .multiple = 32});
  cluster.Join("a", {.seconds_per_sample = 0.001});
  cluster.Join("b", {.seconds_per_sample = 0.0037});
  EXPECT_EQ(cluster.ShareOf("a"), 224);
  EXPECT_EQ(cluster.ShareOf("b"), 32);
  cluster["a"].slowdown = 4.0;
  EXPECT_TRUE(cluster.RunToNextPlan().planned);
  EXPECT_EQ(cluster.ShareOf("a") % 32, 0);
  EXPECT_EQ(cluster.Batch(), 256);
}

TEST(BalancerTest, GivesEveryDeviceItsPrivateSamples) {
  // 10,000 in all, 2,000 of them on the slowest device: a fifth of every batch.
  ClusterModel cluster({.batch = 100, .public_samples = 8000});
  cluster.Join("fast", {.seconds_per_sample = 0.001});
  cluster.Join("csd", {.seconds_per_sample = 0.1, .private_samples = 2000});
  EXPECT_EQ(cluster.ShareOf("csd"), 20);
  cluster["csd"].slowdown = 3.0;
  cluster.RunSeconds(60.0);
  EXPECT_EQ(cluster.ShareOf("csd"), 20);
  EXPECT_EQ(cluster.Batch(), 100);
}

TEST(BalancerTest, FollowsThePrivateSamplesWhenThereIsNothingElse) {
  ClusterModel cluster({.batch = 100});
  cluster.Join("a", {.seconds_per_sample = 0.001, .private_samples = 3000});
  cluster.Join("b", {.seconds_per_sample = 0.01, .private_samples = 1000});
  EXPECT_EQ(cluster.ShareOf("a"), 75);
  EXPECT_EQ(cluster.ShareOf("b"), 25);
}

TEST(BalancerTest, NotesEveryDecisionAndWhatCameOfIt) {
  ThreeDevices cluster;
  cluster.RunSeconds(10.0);
  cluster["fast"].slowdown = 2.0;
  cluster.RunSeconds(10.0);
  const auto decisions = cluster.NotesOf("decision"), outcomes = cluster.NotesOf("outcome");
  ASSERT_EQ(decisions.size(), 4U);  // three joined, one slowed down
  ASSERT_EQ(outcomes.size(), 3U);   // the first two together
  EXPECT_EQ(outcomes[0].message, "decisions 1 to 2 were replaced before their first step");
  EXPECT_EQ(Number(outcomes[1], "decision"), 3.0);
  for (const plan::Note& note : decisions) {
    EXPECT_GT(Number(note, "predicted_step_seconds"), 0.0);
    EXPECT_EQ(Number(note, "learning_rate_factor"), 1.0);
  }
  EXPECT_EQ(Number(decisions.back(), "decision"), 4.0);
  EXPECT_EQ(Number(outcomes.back(), "decision"), 4.0);
  EXPECT_NEAR(Number(outcomes.back(), "measured_step_seconds"),
              Number(outcomes.back(), "predicted_step_seconds"), 0.02);
  EXPECT_LT(Number(outcomes.back(), "compute_spread"), 0.05);
  EXPECT_NE(decisions.back().message.find("fast 280"), std::string::npos)
      << decisions.back().message;
}

TEST(BalancerTest, ReactsSoonerWhenTheKernelSaysWhy) {
  const auto react = [](double pressure) {
    ClusterModel cluster({.batch = 300});
    cluster.Join("a", {.seconds_per_sample = 0.0005});
    cluster.Join("b", {.seconds_per_sample = 0.001});
    cluster.RunSeconds(5.0);
    cluster["a"].slowdown = 2.0;
    cluster["a"].pressure = pressure;
    const auto waited = cluster.RunToNextPlan();
    EXPECT_TRUE(waited.InTime());
    ExpectNear(cluster.ShareOf("a"), 150);
    return waited.seconds;
  };
  const double alone = react(0.0), pressed = react(0.5);
  EXPECT_LT(pressed, 1.0);
  EXPECT_LT(pressed, 0.6 * alone);
}

TEST(BalancerTest, ReactsAfterOneLongStepWhenTheKernelWarnsInTheMiddleOfIt) {
  const auto steps = [](double beat) {
    ClusterModel cluster({.batch = 6000});  // 2 s
    cluster.beat = beat;
    cluster.Join("a", {.seconds_per_sample = 0.0005});
    cluster.Join("b", {.seconds_per_sample = 0.001});
    cluster.RunSeconds(20.0);
    cluster["a"].slowdown = 2.0;
    cluster["a"].pressure = 0.5;
    const int waited = cluster.RunToNextPlan().steps;
    ExpectNear(cluster.ShareOf("a"), 3000);
    EXPECT_TRUE(Says(cluster.plan(), "the kernel sa")) << cluster.plan().reason;
    EXPECT_EQ(Says(cluster.plan(), "said in the middle of the step"), beat > 0.0);
    return waited;
  };
  EXPECT_EQ(steps(0.5), 1);
  EXPECT_EQ(steps(0.0), 2);
}

TEST(BalancerTest, DoesNotFollowPressureThatComesAndGoes) {
  for (const std::int64_t batch : {700, 2100, 6000}) {  // 0.3 to 2.6 s
    for (const double steps : {2.0, 4.0, 6.0}) {
      const double period = steps * 0.3 * static_cast<double>(batch) / 700.0;
      const std::string which = fmt::format("{} samples, every {} s", batch, period);
      ThreeDevices cluster({.batch = batch});
      cluster.beat = 0.5;
      const auto alternate = [&](double now) {
        const bool slow = std::fmod(now, 2.0 * period) >= period;
        cluster["fast"].slowdown = slow ? 3.0 : 1.0;
        cluster["fast"].pressure = slow ? 0.7 : 0.0;
      };
      cluster.RunSeconds(5.0);
      cluster.RunSeconds(60.0, alternate);
      const std::size_t settled = cluster.plans().size();
      cluster.RunSeconds(60.0, alternate);
      EXPECT_LE(cluster.plans().size() - settled, 3U) << which;
    }
  }
}

TEST(BalancerTest, IsNotHurriedByPressureThatSlowsNobodyDown) {
  ThreeDevices cluster;
  const std::size_t plans = cluster.plans().size();
  cluster["fast"].pressure = 0.8;
  cluster.beat = 0.1;
  cluster.noise = 0.05;
  cluster.RunSeconds(60.0);
  EXPECT_EQ(cluster.plans().size(), plans);
}

TEST(BalancerTest, PlansAnewWhenADeviceComesOrGoes) {
  ThreeDevices cluster;
  cluster.RunSeconds(1.0);
  cluster.Lose("fast", "its connection broke");
  ExpectNear(cluster.ShareOf("middle"), 467);
  ExpectNear(cluster.ShareOf("slow"), 233);
  EXPECT_TRUE(Says(cluster.plan(), "fast is gone: its connection broke")) << cluster.plan().reason;
  cluster.RunSeconds(1.0);
  cluster.Join("fast", {.seconds_per_sample = 0.00075});
  EXPECT_EQ(cluster.ShareOf("fast"), 400);
  for (const std::string name : {"fast", "middle", "slow"}) cluster.Lose(name, "gone");
  EXPECT_TRUE(cluster.plan().shares.empty());
}

TEST(BalancerTest, KeepsWhatItKnowsOfTheOthersWhenADeviceComes) {
  ThreeDevices cluster;
  cluster["fast"].slowdown = 2.0;
  cluster.RunSeconds(10.0);
  ExpectNear(cluster.ShareOf("fast"), 280);
  cluster.Join("new", {.seconds_per_sample = 0.0015});
  ExpectNear(cluster.ShareOf("fast"), 200);
  ExpectNear(cluster.ShareOf("new"), 200);
}

}  // namespace
}  // namespace motley::tune
