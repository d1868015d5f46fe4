// What the balancer notes of trials and of plans that do not last, and the learning rate when the
// batch cannot be kept.
#include <gtest/gtest.h>

#include <map>
#include <string>

#include "motley/tune/balancer.h"
#include "tests/tune/cluster_model.h"

namespace motley::tune {
namespace {

double Value(const plan::Note& note, const std::string& name) {
  for (const auto& [key, value] : note.numbers) {
    if (key == name) return value;
  }
  ADD_FAILURE() << note.message << " has no " << name;
  return 0.0;
}

std::string Text(const plan::Note& note, const std::string& name) {
  for (const auto& [key, value] : note.texts) {
    if (key == name) return value;
  }
  return {};
}

bool Has(const std::string& text, const std::string& words) {
  return text.find(words) != std::string::npos;
}

// 160 of 256 samples fit into its memory.
class SmallMemory : public ClusterModel {
 public:
  explicit SmallMemory(bool keep = true) : ClusterModel({.batch = 256, .keep = keep}) {
    Join("a", {.cap = 96});
    Join("b", {.cap = 64});
  }
};

// Of 160 samples against 256 at this noise scale.
double Gain(double noise) { return (1.0 + noise / 256.0) / (1.0 + noise / 160.0); }

TEST(LearningRateTest, FollowsTheGainWhereTheNoiseIsKnown) {
  ClusterModel cluster({.batch = 256});
  cluster.Join("a", {.cap = 96});
  cluster.Join("b", {.cap = 64});
  cluster.Join("c", {});
  EXPECT_EQ(cluster.plan().learning_rate_factor, 1.0);
  cluster.gradient_noise = 100.0;
  cluster.RunSteps(20);
  EXPECT_EQ(cluster.plan().learning_rate_factor, 1.0) << "the batch is whole";
  cluster.Lose("c", "gone");
  EXPECT_EQ(cluster.Batch(), 160);
  EXPECT_DOUBLE_EQ(cluster.plan().learning_rate_factor, Gain(100.0));
  const plan::Note decision = cluster.NotesOf("decision").back();
  EXPECT_DOUBLE_EQ(Value(decision, "learning_rate_factor"), Gain(100.0));
  EXPECT_TRUE(Has(decision.message,
                  "the devices can do 160 of 256 samples at once, so the learning rate is "
                  "multiplied by 0.856 (the gain at a gradient noise scale of 100 samples)"))
      << decision.message;
}

TEST(LearningRateTest, IsInProportionUntilTheNoiseIsKnownAndDecidedAnewThen) {
  for (const bool keep : {true, false}) {
    SmallMemory cluster(keep);
    EXPECT_DOUBLE_EQ(cluster.plan().learning_rate_factor, 160.0 / 256.0);
    EXPECT_TRUE(Has(cluster.plan().reason, "in proportion: the gradient noise is not known"));
    cluster.RunSteps(30);
    EXPECT_DOUBLE_EQ(cluster.plan().learning_rate_factor, 160.0 / 256.0);
    const std::size_t plans = cluster.plans().size();

    cluster.gradient_noise = 100.0;
    cluster.RunSteps(100);
    ASSERT_EQ(cluster.plans().size(), plans + 1);
    EXPECT_DOUBLE_EQ(cluster.plan().learning_rate_factor, Gain(100.0));
    EXPECT_EQ(cluster.plan().shares, cluster.plans()[plans - 1].shares);
    EXPECT_EQ(cluster.plan().predicted_seconds, cluster.plans()[plans - 1].predicted_seconds);
    const plan::Note decision = cluster.NotesOf("decision").back();
    EXPECT_EQ(Text(decision, "before"), "learning rate times 0.625");
    EXPECT_EQ(Text(decision, "after"), "learning rate times 0.856");
    EXPECT_TRUE(Text(decision, "reason")
                    .starts_with("the gradient noise scale is known now; the "
                                 "devices can do 160 of 256 samples"))
        << Text(decision, "reason");
    EXPECT_EQ(Value(decision, "noise_scale"), 100.0);
    EXPECT_EQ(Value(decision, "decision"), 3.0);
    EXPECT_EQ(Value(cluster.NotesOf("outcome").back(), "decision"), 3.0);
  }
}

TEST(LearningRateTest, FollowsALargeChangeOfTheNoiseAndNoSmallOne) {
  SmallMemory cluster;
  cluster.gradient_noise = 100.0;
  cluster.RunSteps(40);
  const int decisions = cluster.decisions();
  cluster.gradient_noise = 300.0;  // 0.755, by 12 % less
  cluster.RunSteps(100);
  EXPECT_EQ(cluster.decisions(), decisions);
  EXPECT_DOUBLE_EQ(cluster.plan().learning_rate_factor, Gain(100.0));
  cluster.gradient_noise = 3000.0;  // 0.644, by 25 %
  cluster.RunSteps(100);
  EXPECT_EQ(cluster.decisions(), decisions + 1);
  EXPECT_DOUBLE_EQ(cluster.plan().learning_rate_factor, Gain(3000.0));
  EXPECT_TRUE(
      cluster.plan().reason.starts_with("the gradient noise scale is 3e+03 samples, and "
                                        "was 100 when the learning rate was set"))
      << cluster.plan().reason;
}

TEST(LearningRateTest, DoesNotFollowANoiseThatJumps) {
  SmallMemory cluster;
  for (int i = 0; i < 400; ++i) {
    cluster.gradient_noise = i % 2 == 0 ? 10.0 : 10000.0;
    cluster.Step();
  }
  EXPECT_LE(cluster.decisions(), 2 + 400 / 20);
}

TEST(LearningRateTest, OutlivesATrial) {
  // Two groups: one can do 64 of 96 samples in whole multiples, and the other has a device that is
  // not worth having.
  base::VirtualClock clock;
  Balancer balancer({.batch = 96, .multiple = 32, .groups = 2}, clock);
  const auto join = [&](const std::string& name, double seconds_per_sample, std::int64_t cap) {
    return balancer.OnEvent(plan::DeviceJoined{
        .device = name,
        .curve = plan::SpeedCurve{.seconds_per_sample = seconds_per_sample, .cap = cap}});
  };
  (void)join("good", 0.001, plan::kNoCap);
  (void)join("small", 0.001, 63);
  (void)join("smaller", 0.001, 63);
  auto plan = join("bad", 0.05, plan::kNoCap);
  ASSERT_TRUE(plan.has_value());
  ASSERT_DOUBLE_EQ(plan->learning_rate_factor, 64.0 / 96.0);
  int plans = 0;
  for (std::int64_t step = 1; step <= 6000; ++step) {
    clock.Advance(0.1);
    for (int group = 0; group < 2; ++group) {
      plan::StepDone done{.step = step, .group = group, .seconds = 0.1};
      for (const plan::Share& share : plan->shares) {
        if (share.group != group || share.samples == 0 || share.device == "bad") continue;
        done.parts.push_back(
            {share.device, share.samples, 0.001 * static_cast<double>(share.samples), 0.0});
      }
      auto next = balancer.OnEvent(done);
      if (!next) continue;
      ++plans;
      EXPECT_DOUBLE_EQ(next->learning_rate_factor, 64.0 / 96.0) << next->reason;
      plan = std::move(next);
    }
  }
  EXPECT_GE(plans, 2) << "it was tried";
}

// Two good devices, and one that has become so slow that it has no share.
class WithIdle : public ClusterModel {
 public:
  WithIdle() : ClusterModel({.batch = 700}) {
    Join("fast", {.seconds_per_sample = 0.00075});
    Join("middle", {.seconds_per_sample = 0.0015});
    Join("slow", {.seconds_per_sample = 0.003});
    (*this)["slow"].slowdown = 500.0;  // 1.5 s for one sample
    RunSteps(20);
    EXPECT_EQ(ShareOf("slow"), 0);
  }
  // The notes of the next trial, from its decision on.
  std::vector<plan::Note> NextTrial() {
    const std::size_t before = notes().size();
    for (int i = 0; i < 2000; ++i) {
      Step();
      for (std::size_t k = before; k < notes().size(); ++k) {
        if (!Has(Text(notes()[k], "reason"), "is tried again")) continue;
        Step();
        return {notes().begin() + static_cast<std::ptrdiff_t>(k), notes().end()};
      }
    }
    ADD_FAILURE() << "no trial";
    return {};
  }
};

TEST(BalancerLedgerTest, NotesATrialAndThatItWasInVain) {
  WithIdle cluster;
  const double number = static_cast<double>(cluster.decisions());
  const auto notes = cluster.NextTrial();
  ASSERT_EQ(notes.size(), 3U);
  EXPECT_EQ(notes[0].event, "decision");
  EXPECT_EQ(Text(notes[0], "reason"), "slow, which has no share, is tried again with one sample");
  EXPECT_EQ(Text(notes[0], "trial"), "slow");
  EXPECT_EQ(Value(notes[0], "decision"), number + 1.0);
  EXPECT_NEAR(Value(notes[0], "predicted_step_seconds"), 1.5, 0.1);
  EXPECT_TRUE(Has(Text(notes[0], "before"), "slow 0")) << Text(notes[0], "before");
  EXPECT_TRUE(Has(Text(notes[0], "after"), "slow 1")) << Text(notes[0], "after");
  EXPECT_EQ(notes[1].event, "outcome");
  EXPECT_EQ(Value(notes[1], "decision"), number + 1.0);
  EXPECT_NEAR(Value(notes[1], "measured_step_seconds"), 1.5, 1e-6);
  EXPECT_EQ(notes[2].event, "decision");
  EXPECT_TRUE(Has(Text(notes[2], "reason"), "slow is still too slow: with 1.5 s for one sample"))
      << Text(notes[2], "reason");
  EXPECT_EQ(Text(notes[2], "trial"), "slow");
  EXPECT_EQ(Text(notes[2], "before"), Text(notes[0], "after"));
  EXPECT_EQ(Text(notes[2], "after"), Text(notes[0], "before"));
  EXPECT_NEAR(Value(notes[2], "predicted_step_seconds"), 0.35, 0.01);
  EXPECT_EQ(cluster.ShareOf("slow"), 0);
}

TEST(BalancerLedgerTest, NotesATrialAndThatTheDeviceIsBack) {
  WithIdle cluster;
  cluster["slow"].slowdown = 1.0;
  const auto notes = cluster.NextTrial();
  ASSERT_EQ(notes.size(), 3U);
  EXPECT_LT(Value(notes[1], "measured_step_seconds"),
            0.5 * Value(notes[1], "predicted_step_seconds"));
  EXPECT_TRUE(Has(Text(notes[2], "reason"),
                  "slow was tried again and is worth having: 3 ms for one sample"))
      << Text(notes[2], "reason");
  EXPECT_EQ(Text(notes[2], "trial"), "") << "new shares, as any other";
  EXPECT_EQ(cluster.ShareOf("slow"), 100);
}

TEST(BalancerLedgerTest, EveryDecisionHasOneOutcome) {
  WithIdle cluster;
  cluster.gradient_noise = 100.0;
  cluster.RunSeconds(100.0);
  cluster.Lose("middle", "gone");
  cluster.RunSteps(1);
  cluster.Join("middle", {.seconds_per_sample = 0.0015});
  cluster.RunSteps(5);
  cluster.Join("late", {.seconds_per_sample = 0.0015, .cap = 10});
  cluster.Join("later", {.seconds_per_sample = 0.0015});
  cluster.RunSteps(500);
  cluster.Lose("later", "gone");
  cluster.RunSteps(6);
  cluster.End();
  std::map<double, int> outcomes;  // by decision
  for (const plan::Note& note : cluster.NotesOf("outcome")) {
    const double first = Value(note, "decision");
    const bool several = Has(note.message, "before ");
    const double last = several ? Value(note, "last_decision") : first;
    for (double k = first; k <= last; ++k) ++outcomes[k];
  }
  const double present = cluster.decisions();
  for (double k = 1.0; k <= present; ++k) EXPECT_EQ(outcomes[k], 1) << k;
}

TEST(BalancerLedgerTest, TellsWhatAPlanWasThatWasReplacedEarly) {
  ClusterModel cluster({.batch = 300});
  cluster.Join("a", {.seconds_per_sample = 0.001});
  cluster.RunSteps(5);
  cluster.Join("b", {.seconds_per_sample = 0.002});
  cluster.RunSteps(2);
  cluster.Lose("b", "gone");
  const auto outcomes = cluster.NotesOf("outcome");
  ASSERT_EQ(outcomes.size(), 2U);
  EXPECT_EQ(outcomes[0].message,
            "decision 1 was replaced after 5 steps; so far 300 ms per step were predicted and 300 "
            "ms measured (+0 %); the devices' compute times differ by 0.0 %");
  EXPECT_EQ(Value(outcomes[0], "replaced_after_steps"), 5.0);
  EXPECT_EQ(outcomes[1].message, "decision 2 was replaced after 2 steps, too few to measure it");
}

TEST(BalancerLedgerTest, TellsAtTheEndWhatCameOfTheLastDecision) {
  ClusterModel cluster({.batch = 300});
  cluster.Join("a", {.seconds_per_sample = 0.001});
  cluster.RunSteps(5);
  cluster.End();
  ASSERT_EQ(cluster.NotesOf("outcome").size(), 1U);
  const plan::Note ended = cluster.NotesOf("outcome").back();
  EXPECT_TRUE(Has(ended.message,
                  "decision 1 stood to the end, for 5 steps; so far 300 ms per step were "
                  "predicted and 300 ms measured"))
      << ended.message;
  EXPECT_EQ(Value(ended, "ended_after_steps"), 5.0);

  ClusterModel never({.batch = 300});
  never.Join("a", {.seconds_per_sample = 0.001});
  never.Join("b", {.seconds_per_sample = 0.001});
  never.End();
  ASSERT_EQ(never.NotesOf("outcome").size(), 1U);
  EXPECT_EQ(never.NotesOf("outcome").back().message,
            "decisions 1 to 2 were made, and the job ended before their first step");

  ClusterModel told({.batch = 300});
  told.Join("a", {.seconds_per_sample = 0.001});
  told.RunSteps(100);
  told.End();
  EXPECT_EQ(told.NotesOf("outcome").size(), 1U);
}

}  // namespace
}  // namespace motley::tune
