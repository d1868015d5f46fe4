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
                        .groups = 2,
                        .staleness = {3, 0, 1},
                        .mean_staleness = 0.5,
                        .interval_seconds = 0.25,
                        .interval_sigma = 0.125,
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
  EXPECT_EQ(json.at("groups"), 2);
  EXPECT_EQ(json.at("staleness").at("mean"), 0.5);
  EXPECT_EQ(json.at("staleness").at("histogram"), (std::vector<int>{3, 0, 1}));
  EXPECT_EQ(json.at("staleness").at("interval_seconds"), 0.25);
  EXPECT_EQ(json.at("staleness").at("interval_sigma"), 0.125);
}

TEST(SummaryTest, AddsUpTheEnergyAndSaysWhereItIsFrom) {
  Summary summary{
      .samples = 100,
      .devices = {
          {.name = "a", .joules_busy = 30.0, .joules_idle = 10.0, .energy_source = "estimated"},
          {.name = "b", .joules_busy = 60.0, .joules_idle = 0.0, .energy_source = "estimated"}}};
  auto json = ToJson(summary);
  EXPECT_EQ(json.at("joules"), 100.0);
  EXPECT_EQ(json.at("joules_per_sample"), 1.0);
  EXPECT_EQ(json.at("energy_source"), "estimated");
  EXPECT_EQ(json.at("devices")[0].at("joules"), 40.0);
  EXPECT_EQ(json.at("devices")[0].at("joules_busy"), 30.0);
  EXPECT_EQ(json.at("devices")[0].at("joules_idle"), 10.0);
  EXPECT_EQ(json.at("devices")[1].at("energy_source"), "estimated");

  summary.devices[1].energy_source = "measured";
  EXPECT_EQ(ToJson(summary).at("energy_source"), "estimated") << "the weakest";

  summary.devices[1].joules_busy = summary.devices[1].joules_idle = std::nullopt;
  summary.devices[1].energy_source = "unknown";
  json = ToJson(summary);
  EXPECT_EQ(json.at("joules"), 40.0);
  EXPECT_TRUE(json.at("energy_source").get<std::string>().starts_with("incomplete"));
  EXPECT_TRUE(json.at("devices")[1].at("joules").is_null());

  summary.devices[0] = summary.devices[1];
  json = ToJson(summary);
  EXPECT_TRUE(json.at("joules").is_null());
  EXPECT_TRUE(json.at("joules_per_sample").is_null());
  EXPECT_EQ(json.at("energy_source"), "unknown");
}

TEST(SummaryTest, PricesWhatIsMoved) {
  const auto json = ToJson({.bytes_sent = {.gradient = 1'500'000'000, .weights = 500'000'000},
                            .moving = {.seconds = 3.0,
                                       .joules_per_gigabyte = 20.0,
                                       .bandwidth_gbit = 4.0,
                                       .private_bytes = 3'000'000'000}});
  const auto& moving = json.at("moving");
  EXPECT_EQ(moving.at("bytes"), 2'000'000'000);
  EXPECT_NEAR(moving.at("joules").get<double>(), 40.0, 1e-9);
  EXPECT_NEAR(moving.at("link_seconds").get<double>(), 4.0, 1e-9);
  EXPECT_EQ(moving.at("seconds"), 3.0);
  EXPECT_EQ(moving.at("energy_source"), "estimated");
  double joules = 0.0, seconds = 0.0;
  std::int64_t bytes = 0;
  for (const auto& [name, cost] : moving.at("classes").items()) {
    EXPECT_EQ(cost.at("bytes"), json.at("bytes_sent").at(name)) << name;
    bytes += cost.at("bytes").get<std::int64_t>();
    joules += cost.at("joules").get<double>();
    seconds += cost.at("link_seconds").get<double>();
  }
  EXPECT_EQ(moving.at("classes").size(), 6U);
  EXPECT_EQ(bytes, 2'000'000'000);
  EXPECT_NEAR(joules, 40.0, 1e-9);
  EXPECT_NEAR(seconds, 4.0, 1e-9);
  const auto& carried = moving.at("private_data_if_carried");
  EXPECT_EQ(carried.at("bytes"), 3'000'000'000);
  EXPECT_NEAR(carried.at("joules").get<double>(), 60.0, 1e-9);
  EXPECT_NEAR(carried.at("link_seconds").get<double>(), 6.0, 1e-9);
}

TEST(SummaryTest, TheWholeIsWhatTheDevicesDrawAndWhatMovingCosts) {
  Summary summary{
      .samples = 10,
      .devices = {{.name = "a", .joules_busy = 60.0, .energy_source = "measured: rapl"}},
      .bytes_sent = {.gradient = 2'000'000'000}};
  auto json = ToJson(summary);
  EXPECT_EQ(json.at("joules"), 60.0);
  EXPECT_EQ(json.at("energy_source"), "measured: rapl");
  summary.moving.joules_per_gigabyte = 20.0;
  json = ToJson(summary);
  EXPECT_NEAR(json.at("joules").get<double>(), 100.0, 1e-9);
  EXPECT_NEAR(json.at("joules_per_sample").get<double>(), 10.0, 1e-9);
  EXPECT_EQ(json.at("joules_of_devices"), 60.0);
  EXPECT_EQ(json.at("energy_source"), "estimated") << "a part of it is";
  EXPECT_EQ(json.at("devices")[0].at("energy_source"), "measured: rapl");

  summary.devices[0].joules_busy.reset();
  json = ToJson(summary);
  EXPECT_TRUE(json.at("joules").is_null()) << "what the devices draw is not known";
}

TEST(SummaryTest, ListsEveryChangeOfPlanAndWhatCouldNotBeReached) {
  const auto json = ToJson({.retunes = {{.at_seconds = 1.5,
                                         .step = 7,
                                         .reason = "a is slower",
                                         .before = "a 10, b 10",
                                         .after = "a 5, b 15"}},
                            .unreachable_samples = 12});
  ASSERT_EQ(json.at("retunes").size(), 1U);
  EXPECT_EQ(json.at("retunes")[0].at("at_seconds"), 1.5);
  EXPECT_EQ(json.at("retunes")[0].at("step"), 7);
  EXPECT_EQ(json.at("retunes")[0].at("reason"), "a is slower");
  EXPECT_EQ(json.at("retunes")[0].at("before"), "a 10, b 10");
  EXPECT_EQ(json.at("retunes")[0].at("after"), "a 5, b 15");
  EXPECT_EQ(json.at("unreachable_samples"), 12);
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
