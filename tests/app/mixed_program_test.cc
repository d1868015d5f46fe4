// Devices of different kinds in one job, with the real program. For builds with LibTorch.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>

#include "tests/app/process.h"

namespace motley::app {
namespace {

using nlohmann::json;

constexpr int kSteps = 20;

constexpr const char* kTraining = R"(
[data]
train = "idx:data"
[train]
batch = 64
epochs = 2
learning_rate = 0.001
)";
constexpr const char* kOne = "[[device]]\nthreads = 1\n";
constexpr const char* kMixed = R"(
[[device]]
name = "native"
threads = 1
speed = 0.8
[[device]]
name = "torch"
kind = "torch:cpu"
threads = 1
speed = 0.4
)";

// The run is the expected one: no step had to stop at its deadline, and no device was so slow while
// it was measured that it got nothing to do. On a busy machine both happen.
bool WasUndisturbed(const json& summary) {
  const json& devices = summary.at("devices");
  return summary.at("steps") == kSteps &&
         std::all_of(devices.begin(), devices.end(),
                     [](const json& device) { return device.at("samples") > 0; });
}

// Its summary, of an undisturbed run where three attempts have one.
json Train(const std::filesystem::path& folder, const std::string& devices) {
  std::ofstream(folder / "job.toml") << kTraining << devices;
  json summary;
  for (int attempt = 0; attempt < 3; ++attempt) {
    std::filesystem::remove_all(folder / "run");
    const Outcome outcome = RunMotley(folder, {"train", "job.toml", "--out", "run", "--json"});
    EXPECT_EQ(outcome.exit_code, 0) << outcome.out << outcome.err;
    summary = json::parse(outcome.out, nullptr, false);
    if (!summary.is_object() || WasUndisturbed(summary)) break;
  }
  return summary;
}

TEST(MixedProgramTest, ANativeAndATorchDeviceOfOtherSpeedsEndWhereOneDeviceEnds) {
  const TemporaryFolder folder;
  WriteSmallIdx(folder.path() / "data", 640, 200);
  const json one = Train(folder.path(), kOne), mixed = Train(folder.path(), kMixed);
  ASSERT_TRUE(one.is_object() && mixed.is_object());
  EXPECT_EQ(mixed.at("steps"), kSteps);
  EXPECT_EQ(mixed.at("samples"), one.at("samples"));
  const double loss = one.at("loss");
  EXPECT_NEAR(mixed.at("loss").get<double>(), loss, 1e-3 * loss);
  EXPECT_EQ(mixed.at("accuracy"), one.at("accuracy"));
  ASSERT_EQ(mixed.at("devices").size(), 2U);
  for (const json& device : mixed.at("devices")) {
    const std::string kind = device.at("kind");
    EXPECT_EQ(kind.find("torch:cpu") != std::string::npos, device.at("name") == "torch") << kind;
    EXPECT_GT(device.at("samples"), 0) << device;
  }
}

}  // namespace
}  // namespace motley::app
