#include <gtest/gtest.h>

#include <csignal>
#include <nlohmann/json.hpp>

#include "motley/base/rng.h"
#include "motley/run/checkpoint.h"
#include "motley/telemetry/events.h"
#include "tests/app/process.h"

namespace motley::app {
namespace {

namespace fs = std::filesystem;

constexpr int kKills = 50;
constexpr int kSamples = 320;
constexpr int kEpochs = 4;
constexpr double kLongestLife = 0.3;  // seconds: some die before the first step, some after many

std::vector<std::string> TrainArguments() {
  return {"train",
          "--set",
          "data.train=idx:data",
          "--set",
          "train.batch=16",
          "--set",
          "train.learning_rate=0.001",
          "--set",
          "train.epochs=" + std::to_string(kEpochs),
          "--set",
          "checkpoint.every_seconds=0.02",
          "--out",
          "run",
          "--resume",
          "auto"};
}

// A run that has just written its first checkpoint. What a kernel's measurement chose is in it, so
// copies of this folder compute the same bits.
void MakeBeginning(const fs::path& folder) {
  WriteSmallIdx(folder / "data", kSamples, 40);
  Child child(folder, TrainArguments());
  ASSERT_TRUE(child.WaitUntil([&] { return fs::exists(folder / "run/checkpoints/latest"); }, 30.0));
  child.Signal(SIGKILL);
  child.Wait(10.0);
}

fs::path Copy(const fs::path& beginning, const fs::path& to) {
  fs::copy(beginning, to, fs::copy_options::recursive | fs::copy_options::copy_symlinks);
  return to;
}

std::string FinalState(const fs::path& folder) {
  return Content(folder / "run/checkpoints/latest/state.safetensors");
}

// The events as a reader counts them: what a rolled_back event undoes did not happen.
std::vector<nlohmann::json> EventsThatCount(const fs::path& file) {
  const auto events = telemetry::ReadEvents(file);
  EXPECT_TRUE(events.ok()) << events.status().ToString();
  std::vector<nlohmann::json> counting;
  if (!events.ok()) return counting;
  for (const nlohmann::json& event : *events) {
    if (event["event"] == "rolled_back") {
      std::erase_if(counting, [&](const auto& earlier) { return earlier["step"] > event["step"]; });
    }
    if (event["event"] == "epoch" && event["again"]) {
      std::erase_if(counting, [&](const auto& earlier) {
        return earlier["event"] == "epoch" && earlier["step"] == event["step"];
      });
    }
    counting.push_back(event);
  }
  return counting;
}

void ExpectEveryStepAndEpochOnce(const fs::path& file) {
  std::int64_t last_step = 0, epochs = 0;
  for (const nlohmann::json& event : EventsThatCount(file)) {
    if (event["event"] == "step") {
      EXPECT_GT(event["step"], last_step) << event;
      last_step = event["step"];
    }
    if (event["event"] == "epoch") {
      EXPECT_EQ(event["epoch"], epochs++) << event;
    }
  }
  EXPECT_EQ(last_step, kEpochs * kSamples / 16);
  EXPECT_EQ(epochs, kEpochs);
}

void ExpectWholeLedger(const fs::path& folder) {
  const auto checkpoint = run::FindCheckpoint(folder / "run/checkpoints");
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status().ToString();
  const auto manifest = run::LoadManifest(*checkpoint);
  ASSERT_TRUE(manifest.ok()) << manifest.status().ToString();
  EXPECT_EQ(manifest->samples, kEpochs * kSamples);
  EXPECT_EQ(manifest->epoch, static_cast<std::uint64_t>(kEpochs));
  EXPECT_TRUE(manifest->committed.empty());
}

// One life of the program, ended by kill -9 after a random time. True if it was still running.
bool LiveAndDie(const fs::path& folder, base::Rng& rng) {
  Child child(folder, TrainArguments());
  SleepSeconds(kLongestLife * rng.Uniform());
  child.Signal(SIGKILL);
  const Outcome outcome = child.Wait(10.0);
  EXPECT_TRUE(outcome.signal == SIGKILL || outcome.exit_code == 0) << outcome.out << outcome.err;
  return outcome.signal == SIGKILL;
}

void ExpectEndsLike(const std::string& expected_state, const fs::path& folder) {
  const Outcome outcome = RunMotley(folder, TrainArguments());
  EXPECT_EQ(outcome.exit_code, 0) << outcome.out << outcome.err;
  EXPECT_TRUE(FinalState(folder) == expected_state) << "other weights after being killed";
  ExpectEveryStepAndEpochOnce(folder / "run/events.jsonl");
  ExpectWholeLedger(folder);
}

TEST(ProgramKillTest, ResumesFromFiftyKillsWithTheWeightsOfAnUninterruptedRun) {
  const TemporaryFolder temporary;
  const fs::path beginning = temporary.path() / "beginning";
  ASSERT_NO_FATAL_FAILURE(MakeBeginning(beginning));
  const fs::path untouched = Copy(beginning, temporary.path() / "untouched");
  ASSERT_EQ(RunMotley(untouched, TrainArguments()).exit_code, 0);
  const std::string expected = FinalState(untouched);
  ASSERT_FALSE(expected.empty());

  base::Rng rng(base::Key({50}));
  // A run that ends before its fiftieth kill is compared, and another one takes the rest.
  int kills = 0;
  for (int attempt = 0; kills < kKills; ++attempt) {
    ASSERT_LT(attempt, kKills) << "only " << kills << " of the kills hit a running program";
    const fs::path folder = Copy(beginning, temporary.path() / std::to_string(attempt));
    while (kills < kKills && LiveAndDie(folder, rng)) ++kills;
    ExpectEndsLike(expected, folder);
    if (testing::Test::HasFailure()) return;
  }
}

}  // namespace
}  // namespace motley::app
