#include "motley/plan/hosts.h"

#include <gtest/gtest.h>

namespace motley::plan {
namespace {

using Names = std::vector<std::string>;

TEST(HostsTest, AreTheNearestByTheNetworkAndAmongEqualsTheFirst) {
  const std::vector<HostCandidate> all = {{"far", 0.5}, {"near", 0.1}, {"a", 0.2}, {"b", 0.2}};
  EXPECT_EQ(ChooseHosts(all, {}, 1), (Names{"near"}));
  EXPECT_EQ(ChooseHosts(all, {}, 3), (Names{"near", "a", "b"}));
}

TEST(HostsTest, WhoHoldsARangeKeepsIt) {
  const std::vector<HostCandidate> all = {{"far", 0.5}, {"near", 0.1}, {"a", 0.2}};
  EXPECT_EQ(ChooseHosts(all, {"gone", "far"}, 2), (Names{"near", "far"}));
}

TEST(HostsTest, HoldOneRangeEachAndTheRestStaysWithTheCoordinator) {
  EXPECT_EQ(ChooseHosts({{"a", 0.1}}, {}, 3), (Names{"a", "", ""}));
  EXPECT_EQ(ChooseHosts({{"a", 0.1}}, {"", "a", "a"}, 3), (Names{"", "a", ""}));
  EXPECT_EQ(ChooseHosts({}, {"a"}, 1), (Names{""}));
}

}  // namespace
}  // namespace motley::plan
