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
  ASSERT_EQ(notes.size(), 1U);
  EXPECT_NE(notes[0].message.find("a is unfit: nobody reaches it"), std::string::npos);
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

}  // namespace
}  // namespace motley::tune
