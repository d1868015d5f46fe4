// objective = "energy", with the real program.
#include "tests/app/job_program_test.h"

namespace motley::app {
namespace {

using nlohmann::json;

class EnergyProgramTest : public JobProgramTest {};

constexpr const char* kHungryAndThrifty = R"(
[data]
train = "idx:data"
[train]
batch = 16
epochs = 4
learning_rate = 0.001
[[device]]
name = "hungry"
fixed_ms = 0
sample_ms = 1
watts_idle = 5
watts_busy = 100
[[device]]
name = "thrifty"
count = 2
fixed_ms = 0
sample_ms = 10
watts_idle = 1
watts_busy = 4
[network]
latency_us = 10
bandwidth_gbit = 100
joules_per_gigabyte = 5
)";

TEST_F(EnergyProgramTest, TheEnergyObjectiveCostsFewerJoulesAndKeepsItsDeadline) {
  WriteSmallIdx(folder() / "data", 160, 40);
  WriteJob(kHungryAndThrifty);
  const auto simulate = [&](const std::string& run, std::vector<std::string> more) {
    std::vector<std::string> arguments = {"simulate", "job.toml", "--time-only", "--out", run};
    arguments.insert(arguments.end(), more.begin(), more.end());
    const Outcome outcome = Run(arguments);
    EXPECT_EQ(outcome.exit_code, 0) << outcome.out << outcome.err;
    return Summary(run);
  };
  const json time = simulate("time", {});
  const json energy = simulate("energy", {"--set", "train.objective=energy"});
  // 640 samples: 0.53 s by all of them, 3.2 s by the two thrifty ones.
  const json soon =
      simulate("soon", {"--set", "train.objective=energy", "--set", "train.deadline_seconds=1.5"});
  ASSERT_TRUE(time.is_object() && energy.is_object() && soon.is_object());
  EXPECT_LT(energy.at("joules").get<double>(), 0.8 * time.at("joules").get<double>());
  EXPECT_LT(soon.at("joules"), time.at("joules"));
  EXPECT_GT(soon.at("joules"), energy.at("joules"));
  EXPECT_GT(energy.at("seconds"), 3.0);
  EXPECT_LE(soon.at("seconds"), 1.5);
  EXPECT_GT(soon.at("seconds"), time.at("seconds"));

  // Left out, it still draws its idle watts to the end; tests of the model are for all devices.
  const json& hungry = energy.at("devices")[0];
  EXPECT_EQ(hungry.at("samples"), 0);
  EXPECT_NEAR(
      hungry.at("joules_idle").get<double>(),
      5.0 * (energy.at("seconds").get<double>() - hungry.at("compute_seconds").get<double>()),
      1e-6);

  // What a step was predicted to cost is what the accounts say, but for the tests of the model.
  const Outcome why = Run({"why", "energy", "--json"});
  double predicted = 0.0, found = 0.0;
  for (const json& event : json::parse(why.out)) {
    // Plans that were replaced before a step have cost nothing.
    if (event.at("event") != "outcome" || !event.contains("step_joules")) continue;
    EXPECT_EQ(event.at("energy_source"), "estimated");
    predicted = event.at("predicted_step_joules");
    found = event.at("step_joules");
  }
  EXPECT_GT(predicted, 0.0);
  EXPECT_NEAR(found, predicted, 0.01 * predicted);
  const double tests = (100.0 + 2 * 4.0) * hungry.at("compute_seconds").get<double>();
  EXPECT_NEAR(energy.at("joules").get<double>() - tests, found * energy.at("steps").get<double>(),
              0.01 * energy.at("joules").get<double>());
  EXPECT_TRUE(Says(Run({"why", "energy"}).out, " J per step")) << why.out;
}

constexpr const char* kThriftyAlone = R"(
[data]
train = "glyphs"
[train]
epochs = 1
objective = "energy"
[[device]]
name = "hungry"
threads = 1
speed = 0.6
watts_idle = 1
watts_busy = 1000
[[device]]
name = "thrifty"
threads = 1
speed = 0.6
watts_idle = 1
watts_busy = 4
)";

TEST_F(EnergyProgramTest, ADeviceThatIsLeftOutIsChargedForIdling) {
  WriteJob(kThriftyAlone);
  const Outcome outcome = Run({"train", "job.toml", "--out", "run"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.out << outcome.err;
  const json summary = Summary("run");
  EXPECT_EQ(summary.at("samples"), 8000);
  const json &hungry = summary.at("devices")[0], &thrifty = summary.at("devices")[1];
  ASSERT_EQ(hungry.at("name"), "hungry");
  EXPECT_EQ(hungry.at("samples"), 0);
  EXPECT_EQ(thrifty.at("samples"), 8000);
  EXPECT_GT(hungry.at("joules_idle"), 0.0);
  EXPECT_GT(thrifty.at("joules_busy"), 0.0);
  const Outcome why = Run({"why", "run"});
  EXPECT_TRUE(Says(why.out, "left out: hungry")) << why.out;
}

}  // namespace
}  // namespace motley::app
