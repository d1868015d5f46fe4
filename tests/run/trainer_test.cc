#include "motley/run/trainer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <set>

#include "tests/run/linear.h"

namespace motley::run {
namespace {

using Hooks = Trainer::Hooks;

// A training job of the linear model on a clock that stands still unless a test moves it.
class TrainerTest : public testing::Test {
 protected:
  TrainerTest() : scratch_("trainer_test") {}

  base::Result<TrainReport> Train(const Hooks& hooks = {}) {
    return Resume(Trainer::Fresh(model_, *data_.train), hooks);
  }
  base::Result<TrainReport> Resume(TrainState state, const Hooks& hooks = {}) {
    return Trainer(options_, device_, data_, clock_).Run(std::move(state), hooks);
  }
  TrainReport MustTrain(const Hooks& hooks = {}) {
    auto report = Train(hooks);
    EXPECT_TRUE(report.ok()) << report.status().ToString();
    return report.ok() ? std::move(report).value() : TrainReport();
  }
  // Every step takes so long.
  void StepsTake(double seconds) {
    device_.after_step = [this, seconds](const auto&, auto&) { clock_.Advance(seconds); };
  }
  // Makes the mean gradient 1 everywhere, whatever the batch.
  void GradientIsOne() {
    device_.after_step = [](const engine::StepRequest& request, engine::StepResult& result) {
      std::fill(request.gradient.begin(), request.gradient.end(),
                static_cast<float>(result.samples_done));
    };
  }

  ScratchFolder scratch_;
  base::VirtualClock clock_;
  graph::Model model_ = LinearModel();
  LinearDevice device_{LinearGraph()};
  data::DataPair data_ = Patterns(50);
  TrainOptions options_ = LinearOptions(8);
};

TEST_F(TrainerTest, TakesEverySampleExactlyOncePerEpochInANewOrder) {
  for (const std::int64_t batch : {1, 7, 8, 25, 50, 64}) {
    options_ = LinearOptions(batch);
    options_.epochs = 3;
    std::map<std::uint64_t, std::vector<data::SampleId>> ids;
    std::vector<std::int64_t> sizes;
    device_.after_step = [&](const engine::StepRequest& request, engine::StepResult&) {
      auto& epoch = ids[request.batch->epoch];
      epoch.insert(epoch.end(), request.batch->ids.begin(), request.batch->ids.end());
      sizes.push_back(request.batch->size());
    };
    const TrainReport report = MustTrain();
    EXPECT_EQ(report.reason, StopReason::kEpochs);
    EXPECT_EQ(report.state.samples, 150);
    EXPECT_EQ(report.state.epoch, 3U);
    EXPECT_EQ(report.state.step, 3 * ((50 + batch - 1) / batch));
    ASSERT_EQ(ids.size(), 3U);
    for (const auto& [epoch, taken] : ids) {
      EXPECT_EQ(taken.size(), 50U);
      EXPECT_EQ(std::set(taken.begin(), taken.end()).size(), 50U);
    }
    EXPECT_NE(ids[0], ids[1]);
    EXPECT_EQ(sizes.back(), 50 % batch == 0 ? std::min<std::int64_t>(batch, 50) : 50 % batch);
  }
}

TEST_F(TrainerTest, LearnsThePatterns) {
  options_.epochs = 20;
  std::vector<double> accuracies;
  Hooks hooks;
  hooks.on_epoch = [&](std::uint64_t epoch, const Evaluation& test) {
    EXPECT_EQ(epoch, accuracies.size());
    EXPECT_EQ(test.samples, 40);
    accuracies.push_back(test.accuracy);
  };
  const TrainReport report = MustTrain(hooks);
  EXPECT_EQ(accuracies.size(), 20U);
  EXPECT_GT(report.test.accuracy, 0.9);
  EXPECT_EQ(report.test.accuracy, accuracies.back());
  EXPECT_EQ(report.samples, 20 * 50);
}

TEST_F(TrainerTest, NoGoalMeansOneEpoch) {
  const TrainReport report = MustTrain();
  EXPECT_EQ(report.reason, StopReason::kEpochs);
  EXPECT_EQ(report.state.samples, 50);
}

TEST_F(TrainerTest, DividesTheGradientByTheTrueSizeOfTheLastBatch) {
  data_ = Patterns(10);  // batches of 8 and 2
  options_.sgd = {.learning_rate = 0.5F, .momentum = 0.0F};
  GradientIsOne();
  const TrainReport report = MustTrain();
  for (std::size_t i = 0; i < model_.weights.size(); ++i) {
    EXPECT_FLOAT_EQ(report.state.weights[i], model_.weights[i] - 0.5F - 0.5F);
  }
}

TEST_F(TrainerTest, FollowsTheScheduleByFractionsOfAnEpoch) {
  data_ = Patterns(16);  // two batches
  options_.epochs = 2;
  options_.sgd = {.learning_rate = 1.0F, .momentum = 0.0F};
  options_.schedule = *optim::Schedule::Parse("step:0.5,1:0.25", 1);
  GradientIsOne();
  const TrainReport report = MustTrain();
  EXPECT_NEAR(report.state.weights[0], model_.weights[0] - 1.0 - 0.25 - 2 * 0.0625, 1e-5);
}

TEST_F(TrainerTest, RunningStatisticsMoveByTheMomentumOfTheirNode) {
  data_ = Patterns(10);
  model_ = LinearModel(/*batch_norm=*/true);
  LinearDevice device(LinearGraph(/*batch_norm=*/true));
  device.after_step = [](const engine::StepRequest& request, engine::StepResult& result) {
    const auto n = static_cast<float>(result.samples_done);
    request.buffer_sums[0] = n * 8.0F;   // mean
    request.buffer_sums[1] = n * 16.0F;  // variance
  };
  const auto report =
      Trainer(options_, device, data_, clock_).Run(Trainer::Fresh(model_, *data_.train), {});
  ASSERT_TRUE(report.ok()) << report.status().ToString();
  // Two steps from (0, 1) with momentum 0.25.
  EXPECT_FLOAT_EQ(report->state.buffers[0], 0.75F * 2.0F + 0.25F * 8.0F);
  EXPECT_FLOAT_EQ(report->state.buffers[1], 0.75F * (0.75F + 4.0F) + 4.0F);
}

TEST_F(TrainerTest, StopsAtTheTarget) {
  options_.epochs = 100;
  options_.target_accuracy = 0.8;
  std::vector<double> accuracies;
  Hooks hooks;
  hooks.on_epoch = [&](std::uint64_t, const Evaluation& test) {
    accuracies.push_back(test.accuracy);
  };
  const TrainReport report = MustTrain(hooks);
  EXPECT_EQ(report.reason, StopReason::kTarget);
  EXPECT_LT(report.state.epoch, 100U);
  EXPECT_GE(accuracies.back(), 0.8);
  for (std::size_t i = 0; i + 1 < accuracies.size(); ++i) EXPECT_LT(accuracies[i], 0.8);
}

TEST_F(TrainerTest, AnOldEvaluationDoesNotStopARunInTheMiddleOfAnEpoch) {
  options_.target_accuracy = 0.0;
  TrainState state = Trainer::Fresh(model_, *data_.train);
  state.committed = {{0, 8}};
  state.step = 1;
  state.samples = 8;
  state.test = {0.5, 0.9, 40};
  const auto report = Resume(std::move(state));
  ASSERT_TRUE(report.ok()) << report.status().ToString();
  EXPECT_EQ(report->reason, StopReason::kTarget);
  EXPECT_EQ(report->samples, 42);
  EXPECT_NE(report->test.accuracy, 0.9);
}

TEST_F(TrainerTest, StopsByTimeBetweenStepsAndEvaluatesWhatItHas) {
  options_.max_seconds = 10.0;
  StepsTake(3.0);
  const TrainReport report = MustTrain();
  EXPECT_EQ(report.reason, StopReason::kTime);
  EXPECT_EQ(report.state.step, 4);  // at 12 s
  EXPECT_DOUBLE_EQ(report.state.seconds, 12.0);
  EXPECT_EQ(report.state.committed, (std::vector<data::Ledger::Range>{{0, 32}}));
  EXPECT_EQ(report.test.samples, 40);
}

TEST_F(TrainerTest, TimeOfEarlierProcessesCounts) {
  options_.max_seconds = 10.0;
  StepsTake(1.0);
  TrainState state = Trainer::Fresh(model_, *data_.train);
  state.seconds = 7.0;
  const auto report = Resume(std::move(state));
  ASSERT_TRUE(report.ok());
  EXPECT_EQ(report->state.step, 3);
  EXPECT_DOUBLE_EQ(report->seconds, 3.0);
}

TEST_F(TrainerTest, TheTargetAtTheTimeLimitCountsAsReached) {
  options_.max_seconds = 2.0;
  options_.target_accuracy = 0.0;
  StepsTake(1.0);
  EXPECT_EQ(MustTrain().reason, StopReason::kTarget);
}

TEST_F(TrainerTest, ALossThatIsNoNumberEndsTheRunBeforeACheckpoint) {
  options_.checkpoints = scratch_.path() / "checkpoints";
  options_.checkpoint_seconds = 0.0;
  int steps = 0;
  device_.after_step = [&](const engine::StepRequest&, engine::StepResult& result) {
    if (++steps == 5) result.loss_sum = std::numeric_limits<double>::quiet_NaN();
  };
  const auto report = Train();
  ASSERT_FALSE(report.ok());
  const std::string message = report.status().ToString();
  for (const char* part : {"step 5", "learning rate 0.1", "lower train.learning_rate"}) {
    EXPECT_NE(message.find(part), std::string::npos) << message;
  }
  const auto found = FindCheckpoint(options_.checkpoints);
  ASSERT_TRUE(found.ok());
  EXPECT_EQ(LoadManifest(*found)->step, 4);
}

TEST_F(TrainerTest, WeightsThatAreNoNumbersReachNoCheckpoint) {
  options_.checkpoints = scratch_.path() / "checkpoints";
  options_.checkpoint_seconds = 0.0;
  int steps = 0;
  device_.after_step = [&](const engine::StepRequest& request, engine::StepResult&) {
    if (++steps == 3) request.gradient[0] = std::numeric_limits<float>::infinity();
  };
  const auto report = Train();
  ASSERT_FALSE(report.ok());
  EXPECT_NE(report.status().message().find("step 3"), std::string::npos)
      << report.status().message();
  EXPECT_EQ(LoadManifest(*FindCheckpoint(options_.checkpoints))->step, 2);
}

TEST_F(TrainerTest, WeightsThatAreNoNumbersAtTheEpochsEndReachNoCheckpoint) {
  options_.checkpoints = scratch_.path() / "checkpoints";
  device_.after_step = [&](const engine::StepRequest& request, engine::StepResult&) {
    request.gradient[0] = std::numeric_limits<float>::quiet_NaN();
  };
  options_.batch = 50;  // one step
  const auto report = Train();
  ASSERT_FALSE(report.ok());
  EXPECT_NE(report.status().message().find("step 1"), std::string::npos)
      << report.status().message();
  EXPECT_FALSE(FindCheckpoint(options_.checkpoints).ok());
}

TEST_F(TrainerTest, AStepThatLeftSamplesOutIsAnError) {
  device_.after_step = [](const auto&, engine::StepResult& result) { --result.samples_done; };
  const auto report = Train();
  ASSERT_FALSE(report.ok());
  EXPECT_NE(report.status().message().find("step 1: device 'linear' did 7 of 8"), std::string::npos)
      << report.status().message();
}

TEST_F(TrainerTest, DataThatDoNotFitTheNetAreRefusedWithBothShapes) {
  options_.train_transform.pad = 1;
  const auto report = Train();
  ASSERT_FALSE(report.ok());
  EXPECT_NE(report.status().message().find("1x5x5"), std::string::npos);
  EXPECT_NE(report.status().message().find("1x3x3"), std::string::npos);
}

TEST_F(TrainerTest, ACheckpointOfOtherDataIsRefused) {
  const TrainState state = Trainer::Fresh(model_, *Patterns(51).train);
  const auto report = Resume(state);
  ASSERT_FALSE(report.ok());
  EXPECT_NE(report.status().message().find("51 samples"), std::string::npos);
}

TEST_F(TrainerTest, ProgressTellsRateAndTimeLeft) {
  options_.epochs = 2;
  StepsTake(2.0);
  std::vector<Progress> seen;
  Hooks hooks;
  hooks.on_step = [&](const Progress& progress) { seen.push_back(progress); };
  MustTrain(hooks);
  ASSERT_EQ(seen.size(), 14U);
  EXPECT_EQ(seen[0].steps_total, 14);
  EXPECT_EQ(seen[13].step, 14);
  EXPECT_EQ(seen[13].epoch, 1U);
  EXPECT_DOUBLE_EQ(seen[2].samples_per_second, 4.0);   // 8 samples in 2 s
  EXPECT_DOUBLE_EQ(seen[2].seconds_left, 76.0 / 4.0);  // 26 of this epoch, 50 of the next
  EXPECT_GT(seen[2].loss, 0.0);
  EXPECT_DOUBLE_EQ(seen[13].seconds_left, 0.0);
}

TEST_F(TrainerTest, TimeLeftIsTheNearerOfTheTwoGoalsAndUnknownForATarget) {
  StepsTake(2.0);
  std::vector<Progress> seen;
  Hooks hooks;
  hooks.on_step = [&](const Progress& progress) { seen.push_back(progress); };
  options_.epochs = 100;
  options_.max_seconds = 10.0;
  MustTrain(hooks);
  EXPECT_DOUBLE_EQ(seen[1].seconds_left, 6.0);
  options_.epochs.reset();
  options_.max_seconds.reset();
  options_.target_accuracy = 0.0;
  seen.clear();
  MustTrain(hooks);
  EXPECT_LT(seen[1].seconds_left, 0.0);
  EXPECT_EQ(seen[1].steps_total, 0);
}

TEST(EvaluateTest, CountsEverySampleOnceWhateverTheBatch) {
  LinearDevice device(LinearGraph());
  const graph::Model model = LinearModel();
  const auto data = Patterns(1, 41);
  const data::Transform transform = LinearOptions(1).test_transform;
  const auto one = Evaluate(device, model.weights, {}, data.test, transform, 1, 1);
  ASSERT_TRUE(one.ok());
  EXPECT_EQ(one->samples, 41);
  for (const std::int64_t batch : {7, 41, 100}) {
    const auto many = Evaluate(device, model.weights, {}, data.test, transform, batch, 2);
    ASSERT_TRUE(many.ok());
    EXPECT_NEAR(many->loss, one->loss, 1e-12);
    EXPECT_EQ(many->accuracy, one->accuracy);
    EXPECT_EQ(many->samples, 41);
  }
}

}  // namespace
}  // namespace motley::run
