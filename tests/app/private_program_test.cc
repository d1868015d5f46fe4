// Private data of several devices, with the real program.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <sstream>

#include "motley/data/open.h"
#include "motley/graph/onnx.h"
#include "tests/app/job_program_test.h"
#include "tests/data/test_files.h"

namespace motley::app {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

class PrivateProgramTest : public JobProgramTest {
 protected:
  void ExpectRefused(const std::string& words, const std::string& more) const {
    for (const std::vector<std::string>& verb : std::vector<std::vector<std::string>>{
             {"train"}, {"train", "--dry-run"}, {"simulate"}, {"serve"}}) {
      std::vector<std::string> arguments = verb;
      arguments.insert(arguments.end(), {"job.toml", "--out", "run"});
      const Outcome outcome = Run(arguments);
      EXPECT_EQ(outcome.exit_code, 2) << verb.back();
      EXPECT_TRUE(Says(outcome.err, words)) << outcome.err;
      EXPECT_TRUE(Says(outcome.err, more)) << outcome.err;
      EXPECT_FALSE(fs::exists(folder() / "run"));
    }
  }
};

TEST_F(PrivateProgramTest, AFolderThatDoesNotExistIsRefusedByItsKey) {
  WriteJob(R"([data]
train = "glyphs"
[[device]]
[[device]]
name = "csd"
private = "nowhere"
)");
  ExpectRefused("job.toml:6:1: device.private", "nowhere");
}

TEST_F(PrivateProgramTest, AFolderWithAnotherClassListIsRefusedByItsKey) {
  WriteSmallIdx(folder() / "other-0", 8, 4);
  WriteSmallIdx(folder() / "other-1", 8, 4);
  WriteJob(R"([data]
train = "glyphs"
[[device]]
[[device]]
name = "csd"
count = 2
private = "other-{i}"
)");
  ExpectRefused("job.toml:7:1: device.private: data 'idx:other-0'",
                "its class 0 is '0', and the job's is 'arc'");
}

TEST_F(PrivateProgramTest, ARefusalNamesTheRowOfTheDeviceAndNotOneWithASimilarName) {
  WriteSmallIdx(folder() / "data", 160, 40);
  WriteSmallIdx(folder() / "own-0", 8, 4);
  WriteSmallIdx(folder() / "own-1", 8, 4);
  WriteJob(R"([data]
train = "idx:data"
[[device]]
name = "csd"
count = 2
private = "own-{i}"
[[device]]
name = "csd-b"
private = "nowhere"
)");
  ExpectRefused("job.toml:9:1: device.private", "nowhere");
}

// --- Two classes on each device -----------------------------------------------------------------

using Wanted = std::function<bool(std::int64_t index, std::int32_t label)>;

// A part of an IDX folder: the samples of `set` that `wanted` takes.
void WritePart(const fs::path& folder, const std::string& part, const data::Dataset& set,
               const Wanted& wanted) {
  std::string pixels, labels;
  for (std::int64_t i = 0; i < set.size(); ++i) {
    const auto id = static_cast<data::SampleId>(i);
    if (!wanted(i, set.label(id))) continue;
    const std::vector<std::uint8_t> image = data::DecodeOrDie(set, id);
    pixels.append(image.begin(), image.end());
    labels += static_cast<char>(set.label(id));
  }
  const auto count = static_cast<std::uint32_t>(labels.size());
  fs::create_directories(folder);
  std::ofstream(folder / (part + "-images-idx3-ubyte"), std::ios::binary)
      << data::Idx({count, 28, 28}, pixels);
  std::ofstream(folder / (part + "-labels-idx1-ubyte"), std::ios::binary)
      << data::Idx({count}, labels);
}

// Like lenet, but small, because each step sends all of it to all: no batch norm.
graph::Graph SmallNet() {
  graph::GraphBuilder net("small", {1, 28, 28});
  auto at = net.input();
  for (const int width : {12, 24, 48}) {
    at = net.Conv("conv" + std::to_string(width), at,
                  {.out_channels = width,
                   .kernel_h = 3,
                   .kernel_w = 3,
                   .stride_h = 2,
                   .stride_w = 2,
                   .pad = graph::Padding::Same(1)});
    at = net.Relu("relu" + std::to_string(width), at);
  }
  at = net.FullyConnected("out", net.Flatten("flat", at), {.out_features = 10});
  return std::move(net).Build(at).value();
}

constexpr std::int64_t kAll = 8000, kPublic = 100, kEpochs = 8;

constexpr const char* kTraining = R"(
[model]
onnx = "net.onnx"
[data]
mean = [0.5]
std = [0.25]
[train]
batch = 100
epochs = 8
learning_rate = 0.02
warmup_steps = 80
momentum = 0.9
)";

constexpr const char* kOne = "[[device]]\nthreads = 1\n";
constexpr const char* kFive =
    "[[device]]\nname = \"csd\"\ncount = 5\nthreads = 1\nprivate = \"shard-{i}\"\n";

TEST_F(PrivateProgramTest, DevicesWithTwoClassesEachReachTheAccuracyOfAllDataInOnePlace) {
  const data::DataPair glyphs = data::Open("glyphs", "", {}).value();
  const auto all = [](std::int64_t, std::int32_t) { return true; };
  const auto open = [](std::int64_t i, std::int32_t) { return i < kPublic; };
  WritePart(folder() / "all", "train", *glyphs.train, all);
  WritePart(folder() / "all", "t10k", *glyphs.test, all);
  WritePart(folder() / "open", "train", *glyphs.train, open);
  WritePart(folder() / "open", "t10k", *glyphs.test, all);
  for (int device = 0; device < 5; ++device) {
    WritePart(folder() / ("shard-" + std::to_string(device)), "train", *glyphs.train,
              [device](std::int64_t i, std::int32_t label) {
                return i >= kPublic && label / 2 == device;
              });
  }
  ASSERT_TRUE(
      graph::WriteOnnx(folder() / "net.onnx", graph::InitialModel(SmallNet(), /*seed=*/1)).ok());
  int runs = 0;
  const auto train = [&](const std::string& data, const std::string& devices, int seed) {
    WriteJob(kTraining + devices);
    const Outcome outcome =
        Run({"train", "job.toml", "--json", "--set", "data.train=idx:" + data, "--set",
             "train.seed=" + std::to_string(seed), "--out", "run-" + std::to_string(++runs)});
    EXPECT_EQ(outcome.exit_code, 0) << outcome.out << outcome.err;
    return json::parse(outcome.out, nullptr, false);
  };
  // Six pairs of such runs were up to 0.25 % apart. With a smaller net and no warm-up some are 2 %
  // and more apart, because their training is not stable.
  constexpr int kSeeds = 2;
  double pooled = 0.0, spread = 0.0;
  for (int seed = 1; seed <= kSeeds; ++seed) {
    const json all_here = train("all", kOne, seed), apart = train("open", kFive, seed);
    ASSERT_TRUE(all_here.is_object() && apart.is_object());
    EXPECT_EQ(all_here.at("samples"), kEpochs * kAll);
    EXPECT_EQ(apart.at("samples"), kEpochs * kAll);
    EXPECT_EQ(apart.at("bytes_sent").at("private_data"), 0);
    EXPECT_EQ(apart.at("devices").size(), 5U);
    pooled += all_here.at("accuracy").get<double>() / kSeeds;
    spread += apart.at("accuracy").get<double>() / kSeeds;
  }
  EXPECT_GE(spread, pooled - 0.01);
  // The private samples are what it took.
  EXPECT_GE(spread, train("open", kOne, 1).at("accuracy").get<double>() + 0.5);
}

// A third of all samples is with a device of a twentieth of the speed of one host, or of three.
std::string TooSlow(int hosts) {
  return fmt::format(R"(
[data]
train = "idx:data"
[train]
batch = 24
epochs = 1
learning_rate = 0.001
[[device]]
name = "host"
count = {}
threads = 1
fixed_ms = 0
sample_ms = 1
watts_idle = 1
watts_busy = 2
[[device]]
name = "csd"
threads = 1
speed = 0.05
fixed_ms = 0
sample_ms = 1
watts_idle = 30
watts_busy = 90
private = "idx:private"
)",
                     hosts);
}
constexpr const char* kDoesNotFit =
    "the private samples of csd do not fit: csd must do 8 of them in every step";

// What the decisions before the first step of a run say does not fit, the last of them.
std::string MisfitAtTheStart(const fs::path& run) {
  std::string misfit;
  std::istringstream lines(Content(run / "events.jsonl"));
  for (std::string line; std::getline(lines, line);) {
    const json event = json::parse(line, nullptr, false);
    const bool of_shares = event.contains("predicted_step_seconds");
    if (event.value("event", "") != "decision" || !of_shares || event.value("step", 1) > 0)
      continue;
    misfit = event.value("does_not_fit", "");
  }
  return misfit;
}

TEST_F(PrivateProgramTest, ADryRunSaysThatPrivateSamplesDoNotFit) {
  WriteSmallIdx(folder() / "data", 160, 40);
  WriteSmallIdx(folder() / "private", 80, 8);
  WriteJob(TooSlow(1));
  const Outcome outcome = Run({"train", "job.toml", "--dry-run"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_TRUE(Says(outcome.out, std::string("note   by the speeds that the job states, ") +
                                    kDoesNotFit +
                                    " and does 1 in the time of the others, so steps "
                                    "take 6.96 times as long\n"))
      << outcome.out;
  const std::vector<std::string> as_json = {"train", "job.toml", "--dry-run", "--json"};
  EXPECT_TRUE(Says(json::parse(Run(as_json).out).at("does_not_fit"), kDoesNotFit));
  WriteJob(TooSlow(3));
  const auto with = [&](const std::string& set) {
    std::vector<std::string> arguments = as_json;
    arguments.insert(arguments.end(), {"--set", set});
    return json::parse(Run(arguments).out).at("does_not_fit");
  };
  EXPECT_TRUE(Says(with("train.objective=energy"), "times the joules"));
  EXPECT_TRUE(Says(with("cluster.groups=2"), "csd must do 16 of them in every step"));
  EXPECT_TRUE(with("train.tune=off").is_null());
  EXPECT_FALSE(fs::exists(folder() / "runs"));

  WriteSmallIdx(folder() / "private", 8, 8);
  WriteJob(TooSlow(1));
  EXPECT_TRUE(json::parse(Run(as_json).out).at("does_not_fit").is_null());
}

TEST_F(PrivateProgramTest, TrainingSaysBeforeItsFirstStepThatPrivateSamplesDoNotFit) {
  WriteSmallIdx(folder() / "data", 160, 40);
  WriteSmallIdx(folder() / "private", 80, 8);
  std::string job = TooSlow(1);
  // So slow that what the other one needs for joining does not matter.
  job.replace(job.find("speed = 0.05"), 12, "speed = 0.005");
  WriteJob(job);
  const Outcome outcome = Run({"train", "job.toml", "--out", "run"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.out << outcome.err;
  EXPECT_TRUE(Says(outcome.out, "note: by the speeds that the job states, the private samples"))
      << outcome.out;
  EXPECT_TRUE(Says(MisfitAtTheStart(folder() / "run"), kDoesNotFit))
      << MisfitAtTheStart(folder() / "run");
  EXPECT_TRUE(Says(Run({"why", "run"}).out, kDoesNotFit));
}

TEST_F(PrivateProgramTest, ASimulationSaysBeforeItsFirstStepThatPrivateSamplesDoNotFit) {
  WriteSmallIdx(folder() / "data", 160, 40);
  WriteSmallIdx(folder() / "private", 80, 8);
  WriteJob(TooSlow(3));
  for (const auto& [set, words] : std::vector<std::pair<std::string, std::string>>{
           {"train.objective=time", kDoesNotFit},
           {"train.objective=energy", "times the joules"},
           {"cluster.groups=2", "csd must do 16 of them in every step"}}) {
    const Outcome outcome =
        Run({"simulate", "job.toml", "--time-only", "--out", set, "--set", set});
    ASSERT_EQ(outcome.exit_code, 0) << outcome.out << outcome.err;
    EXPECT_TRUE(Says(MisfitAtTheStart(folder() / set), words)) << outcome.out;
    EXPECT_TRUE(Says(outcome.out, words)) << outcome.out;
  }
}

}  // namespace
}  // namespace motley::app
