#include "motley/tune/monitor.h"

#include <gtest/gtest.h>

namespace motley::tune {
namespace {

// Steps of 0.1 s with these ratios, one after the other.
void See(Monitor& monitor, double& now, int steps, double ratio, double pressure = 0.0) {
  for (int i = 0; i < steps; ++i) monitor.Add(now += 0.1, ratio, pressure);
}

TEST(MonitorTest, SaysNothingBeforeItHasSeenEnough) {
  Monitor monitor;
  EXPECT_FALSE(monitor.Ready(false));
  EXPECT_FALSE(monitor.Unsteady());
  EXPECT_FALSE(monitor.Undecided());
  EXPECT_FALSE(monitor.pressed());
  double now = 0.0;
  See(monitor, now, 5, 1.0);
  EXPECT_FALSE(monitor.Ready(false));
  See(monitor, now, 20, 1.0);
  EXPECT_TRUE(monitor.Ready(false));
  EXPECT_DOUBLE_EQ(monitor.Pace(false), 1.0);
}

TEST(MonitorTest, NeedsFourStepsHoweverLongTheyTake) {
  Monitor monitor;
  for (int i = 0; i < 3; ++i) monitor.Add(10.0 * i, 2.0, 0.0);
  EXPECT_FALSE(monitor.Ready(false));
  monitor.Add(30.0, 2.0, 0.0);
  ASSERT_TRUE(monitor.Ready(false));
  EXPECT_DOUBLE_EQ(monitor.Pace(false), 2.0);
}

TEST(MonitorTest, TakesNoNoticeOfOneSlowStep) {
  Monitor monitor;
  double now = 0.0;
  See(monitor, now, 20, 1.0);
  See(monitor, now, 1, 9.0);
  See(monitor, now, 5, 1.0);
  ASSERT_TRUE(monitor.Ready(false));
  EXPECT_DOUBLE_EQ(monitor.Pace(false), 1.0);
}

TEST(MonitorTest, TakesAnUnsteadyDeviceAtItsMeanAndOnlyAfterAWhile) {
  Monitor monitor;
  double now = 0.0;
  for (int i = 0; i < 5; ++i) {
    See(monitor, now, 5, 1.0);
    See(monitor, now, 5, 3.0);
  }
  EXPECT_TRUE(monitor.Unsteady());
  EXPECT_FALSE(monitor.Ready(false));
  for (int i = 0; i < 5; ++i) {
    See(monitor, now, 5, 1.0);
    See(monitor, now, 5, 3.0);
  }
  ASSERT_TRUE(monitor.Ready(false));
  EXPECT_NEAR(monitor.Pace(false), 2.0, 0.1);
}

TEST(MonitorTest, HasNoPaceWhileTheSpeedIsChanging) {
  Monitor monitor;
  double now = 0.0;
  See(monitor, now, 100, 1.0);
  See(monitor, now, 10, 2.0);
  EXPECT_FALSE(monitor.Unsteady());
  EXPECT_FALSE(monitor.Ready(false));
  EXPECT_TRUE(monitor.Undecided());
  EXPECT_FALSE(monitor.LongPace().has_value());
  See(monitor, now, 10, 2.0);
  ASSERT_TRUE(monitor.Ready(false));
  EXPECT_DOUBLE_EQ(monitor.Pace(false), 2.0);
}

TEST(MonitorTest, TellsASmallChangeAfterALongLook) {
  Monitor monitor;
  double now = 0.0;
  See(monitor, now, 50, 1.07);
  EXPECT_FALSE(monitor.LongPace().has_value());
  See(monitor, now, 50, 1.07);
  EXPECT_DOUBLE_EQ(monitor.LongPace().value_or(0.0), 1.07);
}

TEST(MonitorTest, HalfASecondIsEnoughInAHurry) {
  Monitor monitor;
  double now = 0.0;
  See(monitor, now, 20, 1.0);
  See(monitor, now, 7, 2.0, 0.5);
  EXPECT_TRUE(monitor.pressed());
  ASSERT_TRUE(monitor.Ready(true));
  EXPECT_DOUBLE_EQ(monitor.Pace(true), 2.0);
}

TEST(MonitorTest, InAHurryOneSlowStepMeansNothing) {
  Monitor monitor;
  double now = 0.0;
  See(monitor, now, 20, 1.0);
  monitor.Add(now += 0.45, 1.3, 0.5);
  monitor.Add(now += 0.45, 1.05, 0.5);
  EXPECT_TRUE(monitor.pressed());
  ASSERT_TRUE(monitor.Ready(true));
  EXPECT_DOUBLE_EQ(monitor.Pace(true), 1.05);
}

TEST(MonitorTest, IsPressedByMoreThanTheUsualPressureOnly) {
  Monitor monitor;
  double now = 0.0;
  for (int i = 0; i < 200; ++i) {
    monitor.Add(now += 0.1, 1.0, i % 4 < 2 ? 0.25 : 0.4);
    ASSERT_FALSE(monitor.pressed()) << i;
  }
  See(monitor, now, 2, 1.0, 0.7);
  EXPECT_TRUE(monitor.pressed());
}

TEST(MonitorTest, IsPressedWhenTheDeviceHadToStop) {
  Monitor monitor;
  double now = 0.0;
  See(monitor, now, 20, 1.0, 0.95);
  EXPECT_FALSE(monitor.pressed());
  for (int i = 0; i < 2; ++i) monitor.AddStopped(now += 0.5, 5.0);
  EXPECT_TRUE(monitor.pressed());
}

TEST(MonitorTest, IsNotUnsteadyBecauseOfSpikes) {
  Monitor monitor;
  double now = 0.0;
  for (int i = 0; i < 20; ++i) {
    See(monitor, now, 4, 1.0);
    See(monitor, now, 1, 1.6);
    ASSERT_FALSE(monitor.Unsteady()) << i;
  }
}

TEST(MonitorTest, TakesAnUnsteadyDeviceAsItIsOnceItHasKeptItsSpeed) {
  Monitor monitor;
  double now = 0.0;
  for (int i = 0; i < 10; ++i) {
    See(monitor, now, 5, 1.0);
    See(monitor, now, 5, 3.0);
  }
  ASSERT_TRUE(monitor.Unsteady());
  See(monitor, now, 20, 1.0);
  EXPECT_TRUE(monitor.Unsteady());
  See(monitor, now, 7, 1.0);
  EXPECT_FALSE(monitor.Unsteady());
  ASSERT_TRUE(monitor.Ready(false));
  EXPECT_DOUBLE_EQ(monitor.Pace(false), 1.0);
}

TEST(MonitorTest, HasAPaceInNoiseThatIsFarFromThePlan) {
  // As a quota makes it: 50 % between the steps, but all of them slower by far.
  const auto ready = [](double planned) {
    Monitor monitor;
    monitor.Forget(planned);
    double now = 0.0;
    for (int i = 0; i < 30; ++i) See(monitor, now, 1, i % 3 == 0 ? 2.4 : 1.6);
    return monitor.Ready(false);
  };
  EXPECT_TRUE(ready(1.0));
  EXPECT_TRUE(ready(4.0));
  EXPECT_FALSE(ready(1.9));
}

TEST(MonitorTest, ForgetsWhenThePlanChanges) {
  Monitor monitor;
  double now = 0.0;
  See(monitor, now, 30, 2.0, 1.0);
  monitor.Forget(2.0);
  EXPECT_FALSE(monitor.Ready(false));
  EXPECT_FALSE(monitor.pressed());
}

}  // namespace
}  // namespace motley::tune
