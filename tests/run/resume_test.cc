// Interrupts, checkpoints and resumes of a training run, and the events that tell of them.

#include <gtest/gtest.h>

#include <atomic>
#include <map>

#include "motley/run/trainer.h"
#include "motley/telemetry/events.h"
#include "tests/run/linear.h"

namespace motley::run {
namespace {

using Hooks = Trainer::Hooks;

class ResumeTest : public testing::Test {
 protected:
  ResumeTest() : scratch_("resume_test") {
    options_.epochs = 3;
    options_.sgd.weight_decay = 0.01F;
    options_.schedule = *optim::Schedule::Parse("cosine:3", 5);
    options_.checkpoints = scratch_.path() / "checkpoints";
    options_.checkpoint_seconds = 1e9;
    options_.job = {{"model", "linear"}};
    device_.after_step = [this](const engine::StepRequest& request, engine::StepResult&) {
      // Statistics that depend on the batch, so that the buffers are tested as well.
      for (float& sum : request.buffer_sums) sum = request.batch->images[0];
      clock_.Advance(0.25);
    };
  }

  base::Result<TrainReport> Run(TrainState state, Hooks hooks = {}) {
    hooks.on_epoch = [this](std::uint64_t epoch, const Evaluation&) { ++evaluations_[epoch]; };
    return Trainer(options_, device_, data_, clock_).Run(std::move(state), hooks);
  }
  TrainState Fresh() const { return Trainer::Fresh(model_, *data_.train); }
  TrainState Latest() const {
    const auto found = FindCheckpoint(options_.checkpoints);
    EXPECT_TRUE(found.ok()) << found.status().ToString();
    auto state = LoadCheckpoint(*found, device_.graph());
    EXPECT_TRUE(state.ok()) << state.status().ToString();
    return std::move(state).value();
  }
  // Trains to the end, interrupted after every `every` steps.
  TrainReport RunInPieces(std::int64_t every) {
    TrainState state = Fresh();
    for (int piece = 0; piece < 20; ++piece) {
      std::atomic<bool> interrupt = false;
      std::int64_t steps = 0;
      Hooks hooks;
      hooks.interrupt = &interrupt;
      hooks.on_step = [&](const Progress&) { interrupt = ++steps == every; };
      auto report = Run(std::move(state), hooks);
      EXPECT_TRUE(report.ok()) << report.status().ToString();
      if (!report.ok()) return {};
      if (report->reason != StopReason::kInterrupted) return std::move(report).value();
      state = Latest();
    }
    ADD_FAILURE() << "the run does not come to an end";
    return {};
  }
  static std::vector<nlohmann::json> Events(const std::filesystem::path& file) {
    return telemetry::ReadEvents(file).value();
  }
  static void ExpectSameBits(const TrainState& a, const TrainState& b) {
    EXPECT_EQ(a.weights, b.weights);
    EXPECT_EQ(a.velocity, b.velocity);
    EXPECT_EQ(a.buffers, b.buffers);
    EXPECT_EQ(a.step, b.step);
    EXPECT_EQ(a.samples, b.samples);
    EXPECT_EQ(a.epoch, b.epoch);
    EXPECT_EQ(a.test.loss, b.test.loss);
  }

  ScratchFolder scratch_;
  base::VirtualClock clock_;
  graph::Model model_ = LinearModel(/*batch_norm=*/true);
  LinearDevice device_{LinearGraph(/*batch_norm=*/true)};
  data::DataPair data_ = Patterns(30);  // batches of 8, 8, 8, 6
  TrainOptions options_ = LinearOptions(8);
  std::map<std::uint64_t, int> evaluations_;
};

TEST_F(ResumeTest, AnInterruptedRunEndsWithTheSameBitsAndLosesNoEvaluation) {
  const auto whole = Run(Fresh());
  ASSERT_TRUE(whole.ok()) << whole.status().ToString();
  EXPECT_EQ(whole->state.step, 12);
  for (std::int64_t every = 1; every <= 12; ++every) {
    std::filesystem::remove_all(options_.checkpoints);
    evaluations_.clear();
    const TrainReport pieces = RunInPieces(every);
    EXPECT_EQ(pieces.reason, StopReason::kEpochs);
    ExpectSameBits(pieces.state, whole->state);
    EXPECT_EQ(evaluations_, (std::map<std::uint64_t, int>{{0, 1}, {1, 1}, {2, 1}})) << every;
  }
}

TEST_F(ResumeTest, AnInterruptSavesTheVerySampleWhereItStands) {
  std::atomic<bool> interrupt = false;
  Hooks hooks;
  hooks.interrupt = &interrupt;
  hooks.on_step = [&](const Progress& progress) { interrupt = progress.step == 6; };
  const auto report = Run(Fresh(), hooks);
  ASSERT_TRUE(report.ok());
  EXPECT_EQ(report->reason, StopReason::kInterrupted);
  const TrainState state = Latest();
  EXPECT_EQ(state.step, 6);
  EXPECT_EQ(state.samples, 46);
  EXPECT_EQ(state.epoch, 1U);
  EXPECT_EQ(state.committed, (std::vector<data::Ledger::Range>{{0, 16}}));
  EXPECT_EQ(state.job, options_.job);
  EXPECT_EQ(state.kernel_choices, device_.kernel_choices());
  EXPECT_EQ(state.test.samples, 40);  // the evaluation of epoch 0 is not forgotten
}

TEST_F(ResumeTest, AnInterruptDuringTheEvaluationRepeatsItOnResume) {
  const auto whole = Run(Fresh());
  ASSERT_TRUE(whole.ok());
  std::filesystem::remove_all(options_.checkpoints);
  evaluations_.clear();
  std::atomic<bool> interrupt = false;
  Hooks hooks;
  hooks.interrupt = &interrupt;
  device_.on_forward = [&] { interrupt = true; };
  const auto report = Run(Fresh(), hooks);
  ASSERT_TRUE(report.ok()) << report.status().ToString();
  EXPECT_EQ(report->reason, StopReason::kInterrupted);
  EXPECT_TRUE(evaluations_.empty());
  EXPECT_EQ(Latest().epoch, 0U);
  EXPECT_EQ(Latest().committed, (std::vector<data::Ledger::Range>{{0, 30}}));
  device_.on_forward = nullptr;
  const auto resumed = Run(Latest());
  ASSERT_TRUE(resumed.ok());
  ExpectSameBits(resumed->state, whole->state);
  EXPECT_EQ(evaluations_, (std::map<std::uint64_t, int>{{0, 1}, {1, 1}, {2, 1}}));
}

TEST_F(ResumeTest, AFinishedJobReturnsAtOnceWithItsResult) {
  const auto whole = Run(Fresh());
  ASSERT_TRUE(whole.ok());
  device_.after_step = [](const auto&, auto&) { FAIL() << "a step after the end"; };
  const auto again = Run(Latest());
  ASSERT_TRUE(again.ok());
  EXPECT_EQ(again->reason, StopReason::kEpochs);
  EXPECT_EQ(again->test.accuracy, whole->test.accuracy);
  EXPECT_EQ(again->samples, 0);
  ExpectSameBits(again->state, whole->state);
}

TEST_F(ResumeTest, CheckpointsComeByTheClockAtEpochEndsAndWhenAskedFor) {
  options_.checkpoint_seconds = 0.5;  // every second step
  options_.keep_checkpoints = 100;
  std::atomic<bool> now = false;
  Hooks hooks;
  hooks.checkpoint_now = &now;
  hooks.on_step = [&](const Progress& progress) { now = progress.step == 5; };
  ASSERT_TRUE(Run(Fresh(), hooks).ok());
  EXPECT_FALSE(now);
  std::vector<std::int64_t> steps;
  for (std::int64_t step = 0; step <= 12; ++step) {
    if (LoadManifest(options_.checkpoints / ("ckpt-" + std::to_string(step))).ok()) {
      steps.push_back(step);
    }
  }
  EXPECT_EQ(steps, (std::vector<std::int64_t>{2, 4, 5, 7, 8, 10, 12}));
}

TEST_F(ResumeTest, EventsTellTheWholeStory) {
  const std::filesystem::path file = scratch_.path() / "events.jsonl";
  auto events = std::move(telemetry::EventWriter::Open(file, "first")).value();
  Hooks hooks;
  hooks.events = events.get();
  ASSERT_TRUE(Run(Fresh(), hooks).ok());
  std::map<std::string, int> counts;
  for (const auto& event : Events(file)) {
    ++counts[event.at("event").get<std::string>()];
    EXPECT_TRUE(event.contains("step") && event.contains("epoch")) << event;
    if (event.at("event") == "step") {
      for (const char* key : {"loss", "lr", "samples", "samples_per_second"}) {
        EXPECT_TRUE(event.at(key).is_number()) << event;
      }
    }
  }
  // Four steps a second and four steps an epoch: one step event an epoch.
  EXPECT_EQ(
      counts,
      (std::map<std::string, int>{
          {"run_started", 1}, {"step", 3}, {"epoch", 3}, {"checkpoint", 3}, {"run_finished", 1}}));
  const auto last = Events(file).back();
  EXPECT_EQ(last.at("reason"), "epochs");
  EXPECT_EQ(last.at("time"), 3.0);
}

TEST_F(ResumeTest, GoingBackMarksTheLaterEventsAsRolledBack) {
  const std::filesystem::path file = scratch_.path() / "events.jsonl";
  options_.keep_checkpoints = 100;
  for (const bool resumed : {false, true}) {
    auto events = std::move(telemetry::EventWriter::Open(file, "r")).value();
    Hooks hooks;
    hooks.events = events.get();
    auto state = resumed ? LoadCheckpoint(options_.checkpoints / "ckpt-8", device_.graph())
                         : base::Result<TrainState>(Fresh());
    ASSERT_TRUE(state.ok()) << state.status().ToString();
    ASSERT_TRUE(Run(std::move(state).value(), hooks).ok());
  }
  std::vector<nlohmann::json> rolled_back;
  for (const auto& event : Events(file)) {
    if (event.at("event") == "rolled_back") rolled_back.push_back(event);
  }
  ASSERT_EQ(rolled_back.size(), 1U);
  EXPECT_EQ(rolled_back[0].at("step"), 8);
  EXPECT_EQ(rolled_back[0].at("from_step"), 12);
}

TEST_F(ResumeTest, AnEvaluationThatIsRepeatedSaysSo) {
  const std::filesystem::path file = scratch_.path() / "events.jsonl";
  std::atomic<bool> interrupt = false;
  const auto RunWithEvents = [&](TrainState state) {
    auto events = std::move(telemetry::EventWriter::Open(file, "r")).value();
    Hooks hooks;
    hooks.interrupt = &interrupt;
    hooks.events = events.get();
    return Run(std::move(state), hooks);
  };
  device_.on_forward = [&] { interrupt = true; };  // the checkpoint stands before the evaluation
  ASSERT_TRUE(RunWithEvents(Fresh()).ok());
  device_.on_forward = nullptr;
  const TrainState before_evaluation = Latest();
  interrupt = false;
  // Twice from the same checkpoint, as after a kill between the event and the next checkpoint.
  ASSERT_TRUE(RunWithEvents(before_evaluation).ok());
  options_.epochs = 1;
  ASSERT_TRUE(RunWithEvents(before_evaluation).ok());
  std::vector<std::pair<std::int64_t, bool>> told;
  for (const auto& event : Events(file)) {
    if (event.at("event") == "epoch") told.emplace_back(event.at("step"), event.at("again"));
  }
  EXPECT_EQ(told, (std::vector<std::pair<std::int64_t, bool>>{
                      {4, true}, {8, false}, {12, false}, {4, true}}));
}

TEST_F(ResumeTest, AFailureIsAnEventToo) {
  const std::filesystem::path file = scratch_.path() / "events.jsonl";
  auto events = std::move(telemetry::EventWriter::Open(file, "r")).value();
  Hooks hooks;
  hooks.events = events.get();
  device_.after_step = [](const auto&, engine::StepResult& result) { result.samples_done = 0; };
  ASSERT_FALSE(Run(Fresh(), hooks).ok());
  EXPECT_EQ(Events(file).back().at("event"), "run_failed");
}

}  // namespace
}  // namespace motley::run
