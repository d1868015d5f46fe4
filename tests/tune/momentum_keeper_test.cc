#include "motley/tune/momentum_keeper.h"

#include <gtest/gtest.h>

#include <cmath>

#include "motley/base/rng.h"

namespace motley::tune {
namespace {

// Passes on the plans of a test: the number of devices, each in a group of its own.
class Planner final : public plan::Controller {
 public:
  explicit Planner(int& groups) : groups_(groups) {}
  std::optional<plan::Plan> OnEvent(const plan::Event&) override {
    if (groups_ == told_) return std::nullopt;
    told_ = groups_;
    plan::Plan plan;
    for (int g = 0; g < groups_; ++g) plan.shares.push_back({"d" + std::to_string(g), 8, g});
    return plan;
  }
  std::vector<plan::Note> TakeNotes() override { return {{"outcome", "from the planner", {}, {}}}; }

 private:
  int& groups_;
  int told_ = 0;
};

class MomentumKeeperTest : public testing::Test {
 protected:
  // An update of such a staleness; the plan that it leads to.
  std::optional<plan::Plan> Update(std::int64_t staleness) {
    plan::StepDone done;
    done.staleness = staleness;
    return keeper_.OnEvent(done);
  }
  int Decisions() {
    int decisions = 0;
    for (const plan::Note& note : keeper_.TakeNotes())
      decisions += note.event == "decision" ? 1 : 0;
    return decisions;
  }

  int groups_ = 1;
  MomentumKeeper keeper_{std::make_unique<Planner>(groups_), 0.9};
};

TEST_F(MomentumKeeperTest, LeavesOneGroupAlone) {
  const auto plan = Update(0);
  ASSERT_TRUE(plan);
  EXPECT_FALSE(plan->momentum);
  for (int i = 0; i < 1000; ++i) EXPECT_FALSE(Update(0));
  EXPECT_EQ(Decisions(), 0);
}

TEST_F(MomentumKeeperTest, BeginsWithWhatTheTheoryExpects) {
  groups_ = 4;
  const auto plan = Update(0);
  ASSERT_TRUE(plan && plan->momentum);
  EXPECT_NEAR(*plan->momentum, 0.9 - 0.75, 1e-12);
  const auto notes = keeper_.TakeNotes();
  ASSERT_EQ(notes.size(), 2U);
  EXPECT_EQ(notes[0].event, "outcome");
  EXPECT_EQ(notes[1].event, "decision");
  EXPECT_NE(notes[1].message.find("momentum 0.15"), std::string::npos) << notes[1].message;
}

TEST_F(MomentumKeeperTest, FollowsTheMeasuredStaleness) {
  groups_ = 8;
  (void)Update(0);
  // One group makes most of the updates: the others are slow, and the mean is 1.
  std::optional<plan::Plan> last;
  int plans = 0;
  for (int i = 0; i < 1000; ++i) {
    if (auto plan = Update(i % 10 == 0 ? 10 : 0)) last = std::move(plan), ++plans;
  }
  ASSERT_TRUE(last);
  EXPECT_EQ(plans, 1);
  EXPECT_NEAR(*last->momentum, 0.9 - 0.5, 0.03);
  EXPECT_EQ(last->shares.size(), 8U);
  // It changes: now all are alike.
  for (int i = 0; i < 1000; ++i) {
    if (auto plan = Update(7)) last = std::move(plan), ++plans;
  }
  EXPECT_NEAR(*last->momentum, 0.9 - 0.875, 0.03);
  EXPECT_LE(plans, 4);
}

TEST_F(MomentumKeeperTest, DoesNotFollowNoise) {
  groups_ = 16;
  (void)Update(0);
  (void)Decisions();
  base::Rng rng(1);
  std::vector<double> momenta;
  for (int i = 0; i < 20000; ++i) {
    // Geometric with mean 15.
    const double staleness = std::log(1.0 - rng.Uniform()) / std::log(1.0 - 1.0 / 16.0);
    if (auto plan = Update(static_cast<std::int64_t>(staleness))) {
      momenta.push_back(*plan->momentum);
    }
  }
  EXPECT_TRUE(momenta.empty()) << momenta.size();
}

TEST_F(MomentumKeeperTest, GoesNegativeAndSaysWhenThatIsNotEnough) {
  groups_ = 16;
  const auto plan = Update(0);
  ASSERT_TRUE(plan && plan->momentum);
  EXPECT_NEAR(*plan->momentum, -0.0375, 1e-12);
  int many = 16;
  MomentumKeeper low(std::make_unique<Planner>(many), -0.5);
  const auto clamped = low.OnEvent(plan::StepDone{});
  ASSERT_TRUE(clamped && clamped->momentum);
  EXPECT_EQ(*clamped->momentum, -0.9);
  EXPECT_NE(low.TakeNotes().back().message.find("fewer groups"), std::string::npos);
}

TEST_F(MomentumKeeperTest, GoesBackWithTheGroups) {
  groups_ = 4;
  (void)Update(0);
  groups_ = 1;
  const auto plan = Update(3);
  ASSERT_TRUE(plan);
  EXPECT_FALSE(plan->momentum);
  groups_ = 2;
  EXPECT_NEAR(Update(0)->momentum.value(), 0.4, 1e-12);
}

double Number(const plan::Note& note, const std::string& key) {
  for (const auto& [name, value] : note.numbers) {
    if (name == key) return value;
  }
  ADD_FAILURE() << note.message << " has no " << key;
  return 0.0;
}

TEST_F(MomentumKeeperTest, TellsOfEveryDecisionWhatCameOfIt) {
  groups_ = 4;
  (void)Update(0);
  (void)keeper_.TakeNotes();
  for (int i = 0; i < 99; ++i) (void)Update(2);
  auto notes = keeper_.TakeNotes();  // the first is the planner's, each time
  ASSERT_EQ(notes.size(), 3U) << "0.9 - 2/3 is another momentum than 0.9 - 3/4";
  EXPECT_EQ(notes[1].event, "outcome");
  EXPECT_EQ(Number(notes[1], "momentum_decision"), 1.0);
  EXPECT_EQ(Number(notes[1], "predicted_staleness"), 3.0);
  EXPECT_NEAR(Number(notes[1], "measured_staleness"), 2.0, 0.03);
  EXPECT_NEAR(Number(notes[1], "total_momentum"), 0.15 + 2.0 / 3.0, 0.01);
  EXPECT_EQ(notes[2].event, "decision");
  EXPECT_EQ(Number(notes[2], "momentum_decision"), 2.0);
  // The second is replaced before it is measured, the third meets the end of the job.
  (void)Update(2);
  groups_ = 2;
  (void)Update(2);
  notes = keeper_.TakeNotes();
  ASSERT_EQ(notes.size(), 3U);
  EXPECT_EQ(Number(notes[1], "momentum_decision"), 2.0);
  EXPECT_NE(notes[1].message.find("was replaced early"), std::string::npos) << notes[1].message;
  (void)keeper_.OnEvent(plan::JobEnded{});
  notes = keeper_.TakeNotes();
  ASSERT_EQ(notes.size(), 2U);
  EXPECT_EQ(Number(notes[1], "momentum_decision"), 3.0);
  EXPECT_NE(notes[1].message.find("stood to the end"), std::string::npos) << notes[1].message;
}

}  // namespace
}  // namespace motley::tune
