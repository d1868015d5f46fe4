// What a plan says of private samples that do not fit into it.
#include <gtest/gtest.h>

#include <string>

#include "motley/base/rng.h"
#include "tests/tune/cluster_model.h"

namespace motley::tune {
namespace {

// Of the last decision; empty when everything fits. What is said there is also in its reason.
std::string Misfit(const ClusterModel& cluster) {
  const std::vector<plan::Note> decisions = cluster.NotesOf("decision");
  if (decisions.empty()) return {};
  for (const auto& [key, value] : decisions.back().texts) {
    if (key != "does_not_fit") continue;
    EXPECT_NE(cluster.plan().reason.find(value), std::string::npos) << cluster.plan().reason;
    EXPECT_NE(decisions.back().message.find(value), std::string::npos);
    return value;
  }
  return {};
}

TEST(BalancerPrivateTest, SaysBeforehandWhoIsTooSlowForItsPrivateSamples) {
  // A fifth of every batch, which takes 2 s; without that a step would take 0.1 s.
  ClusterModel cluster({.batch = 100, .public_samples = 8000});
  cluster.Join("fast", {.seconds_per_sample = 0.001});
  EXPECT_EQ(Misfit(cluster), "");
  cluster.Join("csd", {.seconds_per_sample = 0.1, .private_samples = 2000});
  EXPECT_EQ(Misfit(cluster),
            "the private samples of csd do not fit: csd must do 20 of them in every step and does "
            "1 in the time of the others, so steps take 20 times as long");
  cluster.Lose("csd", "gone");
  EXPECT_EQ(Misfit(cluster), "");
}

TEST(BalancerPrivateTest, SaysNothingOfPrivateSamplesThatFit) {
  ClusterModel cluster({.batch = 100, .public_samples = 8000});
  cluster.Join("fast", {.seconds_per_sample = 0.001});
  cluster.Join("csd", {.seconds_per_sample = 0.004, .private_samples = 2000});
  EXPECT_EQ(cluster.ShareOf("csd"), 20);
  EXPECT_EQ(Misfit(cluster), "");
}

TEST(BalancerPrivateTest, NamesAFewOfMany) {
  ClusterModel cluster({.batch = 100, .public_samples = 8000});
  cluster.Join("fast", {.seconds_per_sample = 0.001});
  for (int i = 0; i < 10; ++i) {
    cluster.Join(fmt::format("csd-{}", i), {.seconds_per_sample = 0.1, .private_samples = 400});
  }
  const std::string misfit = Misfit(cluster);
  EXPECT_NE(misfit.find("csd-0, csd-1, csd-2, csd-3 and 6 more do not fit"), std::string::npos)
      << misfit;
}

TEST(BalancerPrivateTest, SaysSoOfSeveralGroups) {
  // The slow one makes 20 of the 100 samples of its group's steps, in 0.4 s; the others make a
  // step of their own in 0.1 s.
  ClusterModel cluster({.batch = 100, .groups = 2, .public_samples = 9000});
  for (const char* name : {"a", "b", "c"}) cluster.Join(name, {.seconds_per_sample = 0.002});
  EXPECT_EQ(Misfit(cluster), "");
  cluster.Join("csd", {.seconds_per_sample = 0.02, .private_samples = 1000});
  const std::string misfit = Misfit(cluster);
  EXPECT_NE(misfit.find("csd must do 20 of them in every step"), std::string::npos) << misfit;
  EXPECT_NE(misfit.find("so steps take 1.2"), std::string::npos) << misfit;
}

TEST(BalancerPrivateTest, SaysThatAGroupHasNoRoomForThem) {
  // More than half of all samples are with one device of two groups.
  ClusterModel cluster({.batch = 100, .groups = 2, .public_samples = 4000});
  cluster.Join("a", {.seconds_per_sample = 0.002});
  cluster.Join("csd", {.seconds_per_sample = 0.002, .private_samples = 6000});
  const std::string misfit = Misfit(cluster);
  EXPECT_NE(misfit.find("120 samples of a batch for their private data"), std::string::npos)
      << misfit;
}

TEST(BalancerPrivateTest, SaysThatMemoryIsTooSmallForThem) {
  ClusterModel cluster({.batch = 100, .public_samples = 8000});
  cluster.Join("fast", {.seconds_per_sample = 0.001});
  cluster.Join("csd", {.seconds_per_sample = 0.001, .cap = 8, .private_samples = 2000});
  EXPECT_EQ(Misfit(cluster),
            "the private samples of csd do not fit: csd should do 20 of them in every step and has "
            "memory for 8, so that smaller steps at the end of an epoch do the rest");
}

TEST(BalancerPrivateTest, NoShareIsMoreThanAMemoryHoldsWhateverIsPrivate) {
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    SCOPED_TRACE(seed);
    base::Rng rng(base::Key({seed, 5}));
    const auto number = [&](std::uint64_t below) {
      return static_cast<std::int64_t>(rng.Below(below));
    };
    const std::int64_t multiple = number(3) == 0 ? 8 : 1;
    const bool energy = number(3) == 0;
    const std::int64_t groups = energy ? 1 : 1 + number(3);
    ClusterModel cluster({.batch = multiple * (8 + number(40)),
                          .multiple = multiple,
                          .groups = static_cast<int>(groups),
                          .public_samples = number(3000),
                          .epochs = 2,
                          .objective = energy ? Objective::kEnergy : Objective::kTime});
    const std::int64_t count = groups + number(4);
    for (std::int64_t i = 0; i < count; ++i) {
      ModelDevice device{.seconds_per_sample = 0.001 * static_cast<double>(1 + number(30)),
                         .cap = number(2) == 0 ? plan::kNoCap : multiple + number(60),
                         .private_samples = number(2) == 0 ? 0 : number(4000)};
      if (energy) device.power = plan::PowerProfile{.watts_idle = 1.0, .watts_busy = 5.0};
      cluster.Join("d" + std::to_string(i), device);
    }
    cluster["d0"].slowdown = 3.0;
    cluster.RunSteps(40);
    for (const plan::Plan& plan : cluster.plans()) {
      for (const plan::Share& share : plan.shares) {
        EXPECT_LE(share.samples, cluster[share.device].cap) << plan.reason;
        EXPECT_EQ(share.most, cluster[share.device].cap);
      }
    }
  }
}

constexpr plan::PowerProfile kSparing{.watts_idle = 1.0, .watts_busy = 5.0};
constexpr plan::PowerProfile kDear{.watts_idle = 100.0, .watts_busy = 400.0};

BalancerOptions ForEnergy(std::optional<double> deadline) {
  return {.batch = 100,
          .public_samples = 8000,
          .epochs = 2,
          .objective = Objective::kEnergy,
          .deadline_seconds = deadline};
}

TEST(BalancerPrivateTest, SaysWhatTheyCostInJoules) {
  ClusterModel cluster(ForEnergy({}));
  cluster.Join("thrifty", {.seconds_per_sample = 0.01, .power = kSparing});
  EXPECT_EQ(Misfit(cluster), "");
  cluster.Join("wasteful", {.seconds_per_sample = 0.005, .private_samples = 2000, .power = kDear});
  const std::string misfit = Misfit(cluster);
  EXPECT_NE(misfit.find("wasteful must do 20 of them in every step and would do 0 otherwise, so a "
                        "step takes"),
            std::string::npos)
      << misfit;
  EXPECT_NE(misfit.find("times the joules"), std::string::npos) << misfit;
}

TEST(BalancerPrivateTest, SaysThatTheDeadlineIsMissedBecauseOfThem) {
  // 20,000 samples in 200 steps: 2 s each for the private ones, 1 s without them.
  ClusterModel cluster(ForEnergy(250.0));
  cluster.Join("thrifty", {.seconds_per_sample = 0.01, .power = kSparing});
  cluster.Join("slow", {.seconds_per_sample = 0.1, .private_samples = 2000, .power = kSparing});
  const std::string misfit = Misfit(cluster);
  EXPECT_NE(misfit.find("so the deadline is missed"), std::string::npos) << misfit;
}

}  // namespace
}  // namespace motley::tune
