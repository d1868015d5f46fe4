#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "motley/base/clock.h"
#include "motley/tune/balancer.h"

namespace motley::tune {
namespace {

// Groups that do not wait for each other, reduced to what a controller sees.
class GroupedCluster {
 public:
  explicit GroupedCluster(int groups) : balancer_({.batch = 100, .groups = groups}, clock_) {}

  void Join(const std::string& name, double seconds_per_sample) {
    slowness_[name] = seconds_per_sample;
    Tell(plan::DeviceJoined{.device = name,
                            .curve = plan::SpeedCurve{.seconds_per_sample = seconds_per_sample}});
  }
  void Lose(const std::string& name) { Tell(plan::DeviceLost{name, "test"}); }
  void Slow(const std::string& name, double factor) { slowness_[name] *= factor; }

  // One step of every group, at the pace of the slowest.
  void Round() {
    double longest = 0.0;
    std::vector<plan::StepDone> steps(static_cast<std::size_t>(groups()));
    for (const plan::Share& share : plan.shares) {
      plan::StepDone& done = steps[static_cast<std::size_t>(share.group)];
      done.group = share.group;
      const double seconds = slowness_[share.device] * static_cast<double>(share.samples);
      done.seconds = std::max(done.seconds, seconds);
      if (share.samples > 0) done.parts.push_back({share.device, share.samples, seconds, 0.0});
      longest = std::max(longest, seconds);
    }
    clock_.Advance(longest);
    for (const plan::StepDone& done : steps) Tell(done);
  }
  int groups() const {
    int last = 0;
    for (const plan::Share& share : plan.shares) last = std::max(last, share.group);
    return last + 1;
  }
  const plan::Share& Of(const std::string& name) const {
    for (const plan::Share& share : plan.shares) {
      if (share.device == name) return share;
    }
    ADD_FAILURE() << name;
    return plan.shares.front();
  }
  plan::Plan plan;

 private:
  void Tell(const plan::Event& event) {
    if (auto next = balancer_.OnEvent(event)) plan = std::move(*next);
  }
  base::VirtualClock clock_;
  Balancer balancer_;
  std::map<std::string, double> slowness_;
};

TEST(BalancerGroupsTest, FormsGroupsThatTakeTheSameTime) {
  GroupedCluster cluster(2);
  cluster.Join("fast", 0.001);
  EXPECT_EQ(cluster.groups(), 1);
  cluster.Join("a", 0.002);
  EXPECT_EQ(cluster.groups(), 2);
  cluster.Join("b", 0.002);
  EXPECT_EQ(cluster.Of("fast").samples, 100);
  EXPECT_EQ(cluster.Of("a").samples, 50);
  EXPECT_EQ(cluster.Of("b").samples, 50);
  EXPECT_EQ(cluster.Of("a").group, cluster.Of("b").group);
  EXPECT_NE(cluster.Of("a").group, cluster.Of("fast").group);
  EXPECT_NEAR(cluster.plan.predicted_seconds, 0.1, 1e-9);
  cluster.Lose("fast");
  EXPECT_EQ(cluster.groups(), 2);
  EXPECT_EQ(cluster.Of("a").samples, 100);
  cluster.Lose("a");
  EXPECT_EQ(cluster.groups(), 1);
}

TEST(BalancerGroupsTest, MovesSamplesInsideOfTheGroupOfASlowedDevice) {
  GroupedCluster cluster(2);
  for (const char* name : {"a", "b", "c", "d"}) cluster.Join(name, 0.002);
  const int group = cluster.Of("a").group;
  cluster.Slow("a", 3.0);
  for (int i = 0; i < 200; ++i) cluster.Round();
  EXPECT_EQ(cluster.groups(), 2);
  EXPECT_EQ(cluster.Of("a").group, group);
  EXPECT_NEAR(static_cast<double>(cluster.Of("a").samples), 25.0, 2.0);
  for (const char* name : {"b", "c", "d"}) {
    const std::int64_t expected = cluster.Of(name).group == group ? 75 : 50;
    EXPECT_NEAR(static_cast<double>(cluster.Of(name).samples), static_cast<double>(expected), 2.0);
  }
  // And back.
  cluster.Slow("a", 1.0 / 3.0);
  for (int i = 0; i < 400; ++i) cluster.Round();
  EXPECT_NEAR(static_cast<double>(cluster.Of("a").samples), 50.0, 2.0);
}

}  // namespace
}  // namespace motley::tune
