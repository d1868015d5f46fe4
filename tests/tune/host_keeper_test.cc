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

}  // namespace
}  // namespace motley::tune
