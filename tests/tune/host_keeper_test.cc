#include "motley/tune/host_keeper.h"

#include <gtest/gtest.h>

#include "motley/plan/equal_shares.h"

namespace motley::tune {
namespace {

using Names = std::vector<std::string>;

plan::DeviceJoined Joined(const std::string& name, double seconds, bool can_host = true) {
  plan::DeviceJoined joined{.device = name};
  joined.communication_seconds = seconds;
  joined.can_host = can_host;
  return joined;
}

TEST(HostKeeperTest, AddsHostsToThePlansOfAnotherAndTellsWhy) {
  HostKeeper keeper(std::make_unique<plan::EqualShares>(32, 1), 3);
  EXPECT_EQ(keeper.OnEvent(Joined("own", 0.0, false))->hosts, Names{});
  keeper.TakeNotes();
  EXPECT_EQ(keeper.OnEvent(Joined("a", 0.2))->hosts, (Names{"a", ""}));
  const auto notes = keeper.TakeNotes();
  ASSERT_EQ(notes.size(), 2U) << "the shares, and the hosts";
  EXPECT_EQ(notes.back().event, "decision");
  EXPECT_NE(notes.back().message.find("coordinator | a | coordinator: a joined"), std::string::npos)
      << notes.back().message;
  EXPECT_EQ(keeper.OnEvent(Joined("b", 0.1))->hosts, (Names{"a", "b"}));
  EXPECT_EQ(keeper.OnEvent(Joined("c", 0.0))->hosts, (Names{"a", "b"})) << "who has one keeps it";
  EXPECT_EQ(keeper.OnEvent(plan::DeviceLost{"a", "silent"})->hosts, (Names{"c", "b"}));
  EXPECT_EQ(keeper.OnEvent(plan::DeviceLost{"c", "left"})->hosts, (Names{"", "b"}));
  EXPECT_FALSE(keeper.OnEvent(plan::StepDone{.step = 1})) << "nothing has changed";
}

TEST(HostKeeperTest, WhoIsUnfitHoldsNoneAnyMoreAndTheNextOneDoes) {
  HostKeeper keeper(std::make_unique<plan::EqualShares>(32, 1), 2);
  EXPECT_EQ(keeper.OnEvent(Joined("a", 0.1))->hosts, (Names{"a"}));
  EXPECT_EQ(keeper.OnEvent(Joined("b", 0.2))->hosts, (Names{"a"}));
  (void)keeper.TakeNotes();
  const auto plan = keeper.OnEvent(plan::HostUnfit{"a", "nobody reaches it"});
  ASSERT_TRUE(plan.has_value());
  EXPECT_EQ(plan->hosts, (Names{"b"}));
  EXPECT_EQ(plan->shares.size(), 2U) << "it goes on computing";
  const auto notes = keeper.TakeNotes();
  ASSERT_EQ(notes.size(), 2U) << "what came of the first, and the second";
  EXPECT_NE(notes[1].message.find("a is unfit: nobody reaches it"), std::string::npos);
}

TEST(HostKeeperTest, WhomOnlyItsOwnMachineReachesHoldsNoneForOthers) {
  HostKeeper keeper(std::make_unique<plan::EqualShares>(32, 1), 2);
  plan::DeviceJoined here = Joined("here", 0.0);
  here.here_only = true;
  EXPECT_EQ(keeper.OnEvent(here)->hosts, (Names{"here"}));
  EXPECT_EQ(keeper.OnEvent(Joined("mute", 0.3, false))->hosts, (Names{""}));
  EXPECT_EQ(keeper.OnEvent(Joined("far", 0.5))->hosts, (Names{"far"}));
  EXPECT_EQ(keeper.OnEvent(plan::DeviceLost{"mute", "left"})->hosts, (Names{"far"}));
  EXPECT_EQ(keeper.OnEvent(plan::DeviceLost{"far", "left"})->hosts, (Names{"here"}));
}

std::vector<plan::Note> OfHosts(HostKeeper& keeper) {
  auto notes = keeper.TakeNotes();
  std::erase_if(notes, [](const plan::Note& note) {
    return note.numbers.empty() || note.numbers[0].first != "host_decision";
  });
  return notes;
}

TEST(HostKeeperTest, TellsOfEveryDecisionWhatCameOfIt) {
  HostKeeper keeper(std::make_unique<plan::EqualShares>(32, 1), 2);
  (void)keeper.OnEvent(Joined("far", 0.3, false));
  (void)keeper.OnEvent(Joined("a", 0.1));
  plan::StepDone step{.step = 1, .seconds = 0.5};
  step.parts = {{"far", 16, 0.2}, {"a", 16, 0.3}};
  (void)keeper.OnEvent(step);
  (void)keeper.OnEvent(Joined("b", 0.2));
  EXPECT_EQ(OfHosts(keeper).size(), 1U) << "nothing has changed, and one step is too few";
  for (int i = 0; i < 9; ++i) (void)keeper.OnEvent(step);
  auto notes = OfHosts(keeper);
  ASSERT_EQ(notes.size(), 1U);
  EXPECT_EQ(notes[0].event, "outcome");
  EXPECT_EQ(notes[0].numbers[1], std::make_pair(std::string("predicted_exchange_seconds"), 0.3));
  EXPECT_EQ(notes[0].numbers[2].first, "measured_exchange_seconds");
  EXPECT_NEAR(notes[0].numbers[2].second, 0.2, 1e-12);
  // One decision is replaced before its first step, the last one meets the end of the job.
  (void)keeper.OnEvent(plan::DeviceLost{"a", "left"});
  (void)keeper.OnEvent(plan::DeviceLost{"b", "left"});
  (void)keeper.OnEvent(plan::JobEnded{});
  notes = OfHosts(keeper);
  ASSERT_EQ(notes.size(), 4U);
  EXPECT_NE(notes[1].message.find("was replaced early: no step"), std::string::npos)
      << notes[1].message;
  EXPECT_NE(notes[3].message.find("stood to the end"), std::string::npos) << notes[3].message;
}

}  // namespace
}  // namespace motley::tune
