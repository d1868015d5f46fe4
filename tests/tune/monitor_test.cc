#include "motley/tune/monitor.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <optional>
#include <utility>
#include <vector>

#include "motley/base/rng.h"

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

TEST(MonitorTest, NeedsSevenStepsHoweverLongTheyTake) {
  Monitor monitor;
  for (int i = 0; i < 6; ++i) monitor.Add(10.0 * i, 2.0, 0.0);
  EXPECT_FALSE(monitor.Ready(false));
  monitor.Add(60.0, 2.0, 0.0);
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

TEST(MonitorTest, OneStepIsEnoughWhenTheKernelWarnedInTheMiddleOfIt) {
  Monitor monitor;
  double now = 0.0;
  See(monitor, now, 20, 1.0);
  for (int i = 0; i < 3; ++i) monitor.Warn(now += 0.5, 0.5);
  monitor.Add(now += 0.3, 1.6, 0.1);
  EXPECT_TRUE(monitor.pressed());
  ASSERT_TRUE(monitor.Ready(true));
  EXPECT_DOUBLE_EQ(monitor.Pace(true), 1.6);
  // Without another warning the next one is like any other.
  monitor.Add(now += 0.1, 1.6, 0.1);
  EXPECT_FALSE(monitor.pressed());
}

TEST(MonitorTest, AWarningThatWasShortOrIsOverMeansNothing) {
  const std::vector<std::vector<double>> pressures = {
      {0.5}, {0.5, 0.1, 0.5}, {0.5, 0.5, 0.5, 0.1}, {0.1, 0.1, 0.1}};
  for (const std::vector<double>& beats : pressures) {
    Monitor monitor;
    double now = 0.0;
    See(monitor, now, 20, 1.0);
    for (const double pressure : beats) monitor.Warn(now += 0.5, pressure);
    monitor.Add(now += 0.3, 1.6, 0.1);
    EXPECT_FALSE(monitor.pressed()) << beats.size() << " beats";
  }
  Monitor monitor;  // the last heartbeat is long ago
  double now = 0.0;
  See(monitor, now, 20, 1.0);
  for (int i = 0; i < 3; ++i) monitor.Warn(now += 0.5, 0.5);
  monitor.Add(now += 5.0, 1.6, 0.1);
  EXPECT_FALSE(monitor.pressed());
}

TEST(MonitorTest, AWarningFromBeforeTheStepMeansNothing) {
  Monitor monitor;
  double now = 0.0;
  See(monitor, now, 20, 1.0);
  for (int i = 0; i < 3; ++i) monitor.Warn(now += 0.5, 0.5);  // while the model was tested
  monitor.StepBegan(now += 0.1);
  monitor.Add(now += 0.1, 1.6, 0.1);
  EXPECT_FALSE(monitor.pressed());
}

TEST(MonitorTest, IsNotWarnedByTheUsualPressure) {
  Monitor monitor;
  double now = 0.0;
  monitor.Warn(now, 1.0);  // before anything is usual
  for (int i = 0; i < 200; ++i) monitor.Add(now += 0.1, 1.0, i % 4 < 2 ? 0.25 : 0.4);
  for (int i = 0; i < 3; ++i) monitor.Warn(now += 0.5, 0.4);
  monitor.Add(now += 0.3, 1.6, 0.4);
  EXPECT_FALSE(monitor.pressed());
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
  See(monitor, now, 28, 1.0);
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

// The obvious twin: drops what is too old at every step.
class PlainMonitor {
 public:
  void Add(double now, double ratio) {
    seen_.emplace_back(now, ratio);
    while (seen_.size() > 16 && now - seen_.front().first > 8.0) seen_.pop_front();
    now_ = now;
    last_.push_back(ratio);
    ++steps_;
    if (last_.size() < 3) return;
    std::vector<double> three(last_.begin(), last_.end());
    std::sort(three.begin(), three.end());
    last_.pop_front();
    FollowTurns(now, three[1]);
  }
  void Forget() { seen_.clear(); }
  bool Unsteady() const {
    if (turns_.size() < 4) return false;
    return now_ - turns_.back().first < 3.0 || steps_ - turns_.back().second < 8;
  }
  // Of an unsteady device.
  std::optional<double> Mean() const {
    if (seen_.size() < 16 || seen_.back().first - seen_.front().first < 6.4) return std::nullopt;
    double sum = 0.0;
    for (const auto& [time, ratio] : seen_) sum += ratio;
    return sum / static_cast<double>(seen_.size());
  }

 private:
  void FollowTurns(double now, double ratio) {
    const bool turned = rising_ ? ratio < extreme_ / 1.35 : ratio > extreme_ * 1.35;
    if (turned) {
      rising_ = !rising_;
      turns_.emplace_back(now, steps_);
    }
    const double further = rising_ ? std::max(extreme_, ratio) : std::min(extreme_, ratio);
    extreme_ = turned ? ratio : further;
    while (!turns_.empty() && now - turns_.front().first > 14.0 &&
           steps_ - turns_.front().second > 16) {
      turns_.pop_front();
    }
  }

  std::deque<std::pair<double, double>> seen_;
  std::deque<std::pair<double, int>> turns_;
  std::deque<double> last_;
  double now_ = 0.0, extreme_ = 0.0;
  bool rising_ = true;
  int steps_ = 0;
};

TEST(MonitorTest, SaysOfAnUnsteadyDeviceWhatItsPlainTwinSays) {
  base::Rng rng(21);
  int unsteady = 0, means = 0;
  for (int run = 0; run < 40; ++run) {
    Monitor monitor;
    PlainMonitor plain;
    double now = 0.0;
    const double pause = run % 4 == 0 ? 1.0 : 0.2;
    for (int step = 0; step < 300; ++step) {
      const bool calm = step / 60 % 2 == 1;
      const double ratio = calm ? 1.0 + 0.1 * rng.Uniform() : 0.5 + 2.0 * rng.Uniform();
      now += pause * rng.Uniform();
      monitor.Add(now, ratio, 0.0);
      plain.Add(now, ratio);
      if (rng.Below(100) == 0) monitor.Forget(1.0), plain.Forget();
      ASSERT_EQ(monitor.Unsteady(), plain.Unsteady()) << run << ", " << step;
      if (!plain.Unsteady()) continue;
      ++unsteady;
      ASSERT_EQ(monitor.Ready(false), plain.Mean().has_value()) << run << ", " << step;
      if (!plain.Mean()) continue;
      ++means;
      ASSERT_DOUBLE_EQ(monitor.Pace(false), *plain.Mean());
    }
  }
  EXPECT_GT(unsteady, 3000);
  EXPECT_GT(means, 1000);
  EXPECT_LT(unsteady, 11000);
}

}  // namespace
}  // namespace motley::tune
