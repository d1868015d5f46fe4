// kill -9 at random instants: every resume goes on, no sample is lost or doubled, and the weights
// end as those of a run that nobody touched.

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <csignal>
#include <cstring>
#include <map>
#include <set>
#include <thread>

#include "motley/base/file.h"
#include "motley/base/rng.h"
#include "motley/run/trainer.h"
#include "motley/telemetry/events.h"
#include "tests/run/linear.h"

namespace motley::run {
namespace {

constexpr int kKills = 50;
// 100 steps an epoch, the last one smaller; an epoch lasts longer than the time between two
// checkpoints, so that most of them stand in the middle of one.
constexpr std::int64_t kTrain = 995, kBatch = 10, kEpochs = 60;

// One committed step, as a child tells it: written in one piece, so that it is there or not.
struct Record {
  std::int64_t step = 0;
  std::uint64_t epoch = 0;
  std::int64_t count = 0;
  std::array<data::SampleId, kBatch> ids{};
  bool operator==(const Record&) const = default;
};

class KillTest : public testing::Test {
 protected:
  KillTest() : scratch_("kill_test") {
    options_.epochs = kEpochs;
    options_.checkpoints = scratch_.path() / "checkpoints";
    options_.checkpoint_seconds = 0.05;
  }

  // Trains from the newest checkpoint to the end. Exits; called in a child only.
  [[noreturn]] void TrainAndExit(std::chrono::microseconds step_time) const {
    LinearDevice device(LinearGraph(/*batch_norm=*/true));
    TrainState state = Trainer::Fresh(LinearModel(/*batch_norm=*/true), *data_.train);
    if (const auto found = FindCheckpoint(options_.checkpoints); found.ok()) {
      auto loaded = LoadCheckpoint(*found, device.graph());
      if (!loaded.ok()) ::_exit(11);
      state = std::move(loaded).value();
    }
    auto events = telemetry::EventWriter::Open(EventsFile(), "child");
    if (!events.ok()) ::_exit(12);
    const int log = ::open(LogFile().c_str(), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0644);
    Record record;
    device.after_step = [&](const engine::StepRequest& request, engine::StepResult&) {
      const data::Batch& batch = *request.batch;
      record = {.step = 0, .epoch = batch.epoch, .count = batch.size()};
      std::copy(batch.ids.begin(), batch.ids.end(), record.ids.begin());
      if (step_time.count() > 0) std::this_thread::sleep_for(step_time);
    };
    Trainer::Hooks hooks;
    hooks.events = events->get();
    hooks.on_step = [&](const Progress& progress) {
      record.step = progress.step;
      if (::write(log, &record, sizeof(record)) != sizeof(record)) ::_exit(13);
    };
    base::RealClock clock;
    const auto report = Trainer(options_, device, data_, clock).Run(std::move(state), hooks);
    ::_exit(report.ok() && report->reason == StopReason::kEpochs ? 0 : 14);
  }

  // The child's wait status; killed after `life` unless that is zero.
  int RunChild(std::chrono::microseconds step_time, std::chrono::microseconds life) const {
    const pid_t child = ::fork();
    if (child == 0) TrainAndExit(step_time);
    EXPECT_GT(child, 0);
    if (life.count() > 0) {
      std::this_thread::sleep_for(life);
      ::kill(child, SIGKILL);
    }
    int status = -1;
    EXPECT_EQ(::waitpid(child, &status, 0), child);
    return status;
  }

  // Every record that was written, the last one of each step; a step that was done again must have
  // had the same samples.
  std::map<std::int64_t, Record> ReadLog() const {
    const std::string bytes = base::ReadFile(LogFile()).value();
    std::map<std::int64_t, Record> steps;
    for (std::size_t at = 0; at + sizeof(Record) <= bytes.size(); at += sizeof(Record)) {
      Record record;
      std::memcpy(&record, bytes.data() + at, sizeof(record));
      const auto [entry, inserted] = steps.emplace(record.step, record);
      EXPECT_EQ(entry->second, record) << "step " << record.step;
    }
    return steps;
  }

  std::filesystem::path EventsFile() const { return scratch_.path() / "events.jsonl"; }
  std::filesystem::path LogFile() const { return scratch_.path() / "log"; }

  ScratchFolder scratch_;
  data::DataPair data_ = Patterns(kTrain);
  TrainOptions options_ = LinearOptions(kBatch);
};

TEST_F(KillTest, AnyInstantLeavesARunThatEndsAsIfUntouched) {
  base::Rng rng(2024);
  double longest_life = 0.15;  // seconds; grows while a busy machine lets no child get anywhere
  std::int64_t last = 0, inside_an_epoch = 0;
  for (int kill = 0; kill < kKills; ++kill) {
    const std::chrono::microseconds life(
        static_cast<std::int64_t>(1e6 * (0.001 + longest_life * rng.Uniform())));
    longest_life = std::min(2.0, 1.5 * longest_life);
    const int status = RunChild(std::chrono::microseconds(1500), life);
    ASSERT_TRUE(WIFSIGNALED(status)) << "kill " << kill << ": ended by itself, " << status;
    const auto found = FindCheckpoint(options_.checkpoints);
    if (!found.ok()) {
      ASSERT_EQ(last, 0) << "the checkpoint is gone: " << found.status().message();
      continue;
    }
    const auto state = LoadCheckpoint(*found, LinearGraph(/*batch_norm=*/true));
    ASSERT_TRUE(state.ok()) << state.status().ToString();
    EXPECT_GE(state->step, last);
    if (state->step > last) longest_life = 0.15;
    last = state->step;
    inside_an_epoch += state->committed.empty() ? 0 : 1;
  }
  EXPECT_GT(inside_an_epoch, kKills / 4);
  EXPECT_LT(last, kEpochs * 100);  // or the later kills tested nothing
  ASSERT_EQ(RunChild(std::chrono::microseconds(0), std::chrono::microseconds(0)), 0);

  // The ledger: every sample once an epoch.
  std::map<std::uint64_t, std::multiset<data::SampleId>> epochs;
  for (const auto& [step, record] : ReadLog()) {
    epochs[record.epoch].insert(record.ids.begin(), record.ids.begin() + record.count);
  }
  ASSERT_EQ(epochs.size(), static_cast<std::size_t>(kEpochs));
  for (const auto& [epoch, ids] : epochs) {
    EXPECT_EQ(ids.size(), static_cast<std::size_t>(kTrain)) << "epoch " << epoch;
    EXPECT_EQ(std::set(ids.begin(), ids.end()).size(), ids.size()) << "epoch " << epoch;
  }
  EXPECT_TRUE(telemetry::ReadEvents(EventsFile()).ok());

  const auto end = LoadCheckpoint(*FindCheckpoint(options_.checkpoints), LinearGraph(true));
  ASSERT_TRUE(end.ok());
  LinearDevice device(LinearGraph(/*batch_norm=*/true));
  TrainOptions untouched = options_;
  untouched.checkpoints.clear();
  base::RealClock clock;
  const auto whole = Trainer(untouched, device, data_, clock)
                         .Run(Trainer::Fresh(LinearModel(/*batch_norm=*/true), *data_.train), {});
  ASSERT_TRUE(whole.ok());
  EXPECT_EQ(end->step, whole->state.step);
  EXPECT_EQ(end->weights, whole->state.weights);
  EXPECT_EQ(end->velocity, whole->state.velocity);
  EXPECT_EQ(end->buffers, whole->state.buffers);
  EXPECT_EQ(end->test.loss, whole->state.test.loss);
}

}  // namespace
}  // namespace motley::run
