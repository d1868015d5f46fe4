#include "motley/telemetry/summary.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>

#include "motley/base/file.h"

namespace motley::telemetry {
namespace {

TEST(SummaryTest, HasTheFieldsThatReadersRelyOn) {
  const Summary summary{.version = "0.1.0",
                        .stop = "epochs",
                        .accuracy = 0.99,
                        .loss = 0.03,
                        .epochs = 5,
                        .steps = 1175,
                        .samples = 300'000,
                        .seconds = 60.0,
                        .samples_per_second = 5000.0,
                        .devices = {{"host", "native", 300'000, 1.0, 50.0, 1.0}},
                        .bytes_sent = {.gradient = 7, .control = 3}};
  const auto json = ToJson(summary);
  EXPECT_EQ(json.begin().key(), "v");
  for (const char* key : {"v", "version", "stop", "accuracy", "loss", "epochs", "steps", "samples",
                          "seconds", "samples_per_second", "devices", "bytes_sent"}) {
    EXPECT_TRUE(json.contains(key)) << key;
  }
  ASSERT_EQ(json.at("devices").size(), 1U);
  for (const char* key : {"name", "kind", "samples", "share", "compute_seconds", "wait_seconds"}) {
    EXPECT_TRUE(json.at("devices")[0].contains(key)) << key;
  }
  for (const char* key :
       {"gradient", "weights", "activations", "public_data", "private_data", "control"}) {
    EXPECT_TRUE(json.at("bytes_sent").contains(key)) << key;
  }
  EXPECT_EQ(json.at("bytes_sent").at("gradient"), 7);
  EXPECT_EQ(json.at("accuracy"), 0.99);
  EXPECT_EQ(json.at("devices")[0].at("share"), 1.0);
}

TEST(SummaryTest, ARunWithoutAnEvaluationHasNoAccuracy) {
  EXPECT_TRUE(ToJson(Summary()).at("accuracy").is_null());
  EXPECT_TRUE(ToJson(Summary()).at("loss").is_null());
}

TEST(SummaryTest, ReplacesTheFileOfAnEarlierProcess) {
  const std::filesystem::path file =
      testing::TempDir() + "/summary_test_" + std::to_string(::getpid()) + ".json";
  ASSERT_TRUE(WriteSummary(file, {.steps = 1}).ok());
  ASSERT_TRUE(WriteSummary(file, {.steps = 2}).ok());
  const auto json = nlohmann::json::parse(*base::ReadFile(file));
  EXPECT_EQ(json.at("steps"), 2);
  std::filesystem::remove(file);
}

}  // namespace
}  // namespace motley::telemetry
