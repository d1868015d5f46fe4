// Private data of several devices, with the real program.
#include <gtest/gtest.h>

#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>

#include "motley/data/open.h"
#include "motley/graph/onnx.h"
#include "tests/app/process.h"
#include "tests/data/test_files.h"

namespace motley::app {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

bool Says(const std::string& text, const std::string& words) {
  return text.find(words) != std::string::npos;
}

class PrivateProgramTest : public testing::Test {
 protected:
  const fs::path& folder() const { return temporary_.path(); }
  void WriteJob(const std::string& toml) const { std::ofstream(folder() / "job.toml") << toml; }
  Outcome Run(const std::vector<std::string>& arguments) const {
    return RunMotley(folder(), arguments);
  }
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

 private:
  TemporaryFolder temporary_;
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

}  // namespace
}  // namespace motley::app
