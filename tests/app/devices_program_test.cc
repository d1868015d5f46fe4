// Several devices in one job, with the real program.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sched.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "tests/app/job_program_test.h"

namespace motley::app {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

class DevicesProgramTest : public JobProgramTest {};

constexpr const char* kTwoThrottled = R"(
[data]
train = "glyphs"
[train]
epochs = 1
[[device]]
name = "big"
threads = 1
speed = 0.8
watts_idle = 10
watts_busy = 50
[[device]]
name = "small"
threads = 1
speed = 0.4
watts_idle = 1
watts_busy = 4
)";

TEST_F(DevicesProgramTest, TrainsOnTwoEmulatedDevicesAndAccountsForBoth) {
  WriteJob(kTwoThrottled);
  const Outcome outcome = Run({"train", "job.toml", "--out", "run"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.out << outcome.err;
  const json summary = Summary("run");
  ASSERT_TRUE(summary.is_object());
  EXPECT_EQ(summary.at("samples"), 8000);
  EXPECT_GE(summary.at("steps"), 125);  // more when a step had to stop at its deadline
  EXPECT_EQ(summary.at("energy_source"), "estimated");
  EXPECT_EQ(summary.at("bytes_sent").at("private_data"), 0);
  ASSERT_EQ(summary.at("devices").size(), 2U);
  std::int64_t samples = 0;
  double joules = 0.0;
  for (const json& device : summary.at("devices")) {
    EXPECT_EQ(device.at("energy_source"), "estimated");
    EXPECT_GT(device.at("samples"), 0);
    EXPECT_GT(device.at("joules"), 0.0);
    EXPECT_TRUE(Says(device.at("kind"), "emulated")) << device.at("kind");
    samples += device.at("samples").get<std::int64_t>();
    joules += device.at("joules").get<double>();
  }
  EXPECT_EQ(samples, 8000);
  EXPECT_NEAR(summary.at("joules").get<double>(), joules, 1e-6 * joules);
  EXPECT_GE(summary.at("retunes").size(), 1U);

  const Outcome why = Run({"why", "run"});
  EXPECT_EQ(why.exit_code, 0) << why.err;
  for (const char* words : {"begins to train lenet", "because ", "shares ", "ended: epochs"}) {
    EXPECT_TRUE(Says(why.out, words)) << words << " in:\n" << why.out;
  }
  const Outcome as_json = Run({"why", "run", "--json"});
  EXPECT_EQ(as_json.exit_code, 0);
  const json events = json::parse(as_json.out, nullptr, false);
  ASSERT_TRUE(events.is_array()) << as_json.out;
  const auto decisions = std::count_if(events.begin(), events.end(), [](const json& event) {
    return event.at("event") == "decision" && event.contains("predicted_step_seconds");
  });
  EXPECT_EQ(static_cast<std::size_t>(decisions), summary.at("retunes").size());
}

TEST_F(DevicesProgramTest, WhyTellsEveryKindOfDecisionAsWhatItIs) {
  fs::create_directory(folder() / "run");
  std::ofstream(folder() / "run" / "events.jsonl")
      << R"({"v":1,"time":1.0,"run":"1-1","event":"decision","step":5,"epoch":0,"reason":"b, which )"
      << R"(has no share, is tried again with one sample","before":"a 9, b 0","after":"a 8, b 1",)"
      << R"("predicted_step_seconds":1.5})"
      << "\n"
      << R"({"v":1,"time":2.0,"run":"1-1","event":"decision","step":6,"epoch":0,"reason":"the )"
      << R"(gradient noise scale is known now","before":"learning rate times 0.625",)"
      << R"("after":"learning rate times 0.856","predicted_step_seconds":0.5})"
      << "\n"
      << R"({"v":1,"time":3.0,"run":"1-1","event":"decision","step":7,"epoch":0,"reason":"b )"
      << R"(joined","before":"ranges of the model: coordinator | coordinator","after":"ranges of )"
      << R"(the model: coordinator | b"})"
      << "\n"
      << R"({"v":1,"time":4.0,"run":"1-1","event":"outcome","step":8,"epoch":0,"message":)"
      << R"("decision 3 was replaced after 2 steps, too few to measure it","decision":3})"
      << "\n";
  const Outcome why = Run({"why", "run"});
  ASSERT_EQ(why.exit_code, 0) << why.err;
  for (const char* words :
       {"because b, which has no share, is tried again with one sample: shares a 9, b 0 became a "
        "8, b 1; predicted 1.5 s per step",
        "because the gradient noise scale is known now: learning rate times 0.625 became learning "
        "rate times 0.856; predicted 0.5 s per step",
        "because b joined: ranges of the model: coordinator | coordinator became ranges of the "
        "model: coordinator | b",
        "decision 3 was replaced after 2 steps, too few to measure it"}) {
    EXPECT_TRUE(Says(why.out, words)) << words << " in:\n" << why.out;
  }
}

TEST_F(DevicesProgramTest, ARunOnSeveralDevicesCanBeResumed) {
  WriteJob(kTwoThrottled);
  ASSERT_EQ(Run({"train", "job.toml", "--out", "run"}).exit_code, 0);
  const Outcome more = Run({"train", "--resume", "run", "--set", "train.epochs=2"});
  ASSERT_EQ(more.exit_code, 0) << more.out << more.err;
  EXPECT_EQ(Summary("run").at("samples"), 16000);
}

TEST_F(DevicesProgramTest, TwoGroupsTrainWithoutWaitingForEachOther) {
  WriteJob(std::string(kTwoThrottled) + "[cluster]\ngroups = 2\n");
  const Outcome outcome = Run({"train", "job.toml", "--out", "run"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.out << outcome.err;
  const json summary = Summary("run");
  EXPECT_EQ(summary.at("samples"), 8000);
  EXPECT_EQ(summary.at("groups"), 2);
  EXPECT_GT(summary.at("staleness").at("mean"), 0.5);
  const Outcome why = Run({"why", "run"});
  EXPECT_TRUE(Says(why.out, "momentum")) << why.out;
}

constexpr const char* kFourGroups = R"(
[data]
train = "idx:data"
[train]
batch = 2
epochs = 2
learning_rate = 0.001
[[device]]
name = "d"
count = 4
fixed_ms = 0
sample_ms = 10
service = "exponential"
[cluster]
groups = 4
)";

TEST_F(DevicesProgramTest, AMergedHeadTrainsInTheCoordinator) {
  WriteJob(std::string(kTwoThrottled) + "[cluster]\nmerged_head = true\n");
  const Outcome outcome = Run({"train", "job.toml", "--out", "run"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.out << outcome.err;
  const json summary = Summary("run");
  EXPECT_EQ(summary.at("samples"), 8000);
  // lenet: 800 numbers of every sample cross, there and back.
  const double expected = 2.0 * 8000 * 800 * 4;
  EXPECT_NEAR(summary.at("bytes_sent").at("activations").get<double>(), expected, 0.05 * expected);

  WriteJob("[data]\ntrain = \"glyphs\"\n[cluster]\nmerged_head = true\n");
  const Outcome one = Run({"train", "job.toml", "--out", "one"});
  EXPECT_EQ(one.exit_code, 2);
  EXPECT_TRUE(Says(one.err, "one device only")) << one.err;
  EXPECT_FALSE(fs::exists(folder() / "one"));
}

TEST_F(DevicesProgramTest, AMergedHeadTrainsOnTheVirtualClock) {
  WriteSmallIdx(folder() / "data", 160, 40);
  WriteJob(std::string(kFourGroups) + "merged_head = true\n");
  const Outcome outcome = Run({"simulate", "job.toml", "--out", "run"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.out << outcome.err;
  const Outcome timed = Run({"simulate", "job.toml", "--out", "timed", "--time-only"});
  ASSERT_EQ(timed.exit_code, 0) << timed.out << timed.err;
  for (const char* run : {"run", "timed"}) {
    const json summary = Summary(run);
    EXPECT_EQ(summary.at("samples"), 320);
    EXPECT_EQ(summary.at("bytes_sent").at("activations"), 2 * 320 * 800 * 4);
    EXPECT_NEAR(summary.at("seconds").get<double>(), Summary("run").at("seconds").get<double>(),
                1e-9);
  }
}

TEST_F(DevicesProgramTest, PredictsSecondsPerUpdateWithAndWithoutAMergedHead) {
  WriteSmallIdx(folder() / "data", 160, 40);
  WriteJob(kFourGroups);
  const Outcome outcome = Run({"simulate", "job.toml", "--predict", "--json"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  const json rows = json::parse(outcome.out).at("seconds_per_update");
  ASSERT_EQ(rows.size(), 3U);
  EXPECT_EQ(rows[2].at("groups"), 4);
  // Two samples of 10 ms on each of four devices that do not wait.
  EXPECT_NEAR(rows[2].at("closed_form").get<double>(), 0.005, 0.0025);
  EXPECT_GT(rows[0].at("merged_closed_form"), 0.0);
  const Outcome table = Run({"simulate", "job.toml", "--predict"});
  EXPECT_TRUE(Says(table.out, "merged head")) << table.out;
  EXPECT_FALSE(fs::exists(folder() / "runs"));
}

TEST_F(DevicesProgramTest, PredictsTheUpdatesOfUnequalGroupsAsTheVirtualRunHasThem) {
  WriteSmallIdx(folder() / "data", 1600, 1);
  // Two fast devices, each as fast as five of the others, and links that count.
  WriteJob(
      "[data]\ntrain = \"idx:data\"\n[train]\nbatch = 40\nepochs = 2\ntune = \"once\"\n"
      "[[device]]\nname = \"fast\"\ncount = 2\nfixed_ms = 0\nsample_ms = 1\n"
      "[[device]]\nname = \"slow\"\ncount = 10\nfixed_ms = 0\nsample_ms = 5\n"
      "[network]\nbandwidth_gbit = 5\nserver_ms = 1\n");
  const Outcome predicted = Run({"simulate", "job.toml", "--predict", "--json"});
  ASSERT_EQ(predicted.exit_code, 0) << predicted.err;
  for (const json& row : json::parse(predicted.out).at("seconds_per_update")) {
    const int groups = row.at("groups");
    if (groups > 4) continue;  // the groups of slow devices hardly make any update
    const std::string run = "run" + std::to_string(groups);
    const Outcome outcome = Run({"simulate", "job.toml", "--time-only", "--out", run, "--set",
                                 "cluster.groups=" + std::to_string(groups)});
    ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
    const json summary = Summary(run);
    const double measured =
        summary.at("seconds").get<double>() / summary.at("steps").get<double>();
    EXPECT_NEAR(row.at("queueing").get<double>(), measured, 0.15 * measured) << groups;
  }
}

TEST_F(DevicesProgramTest, ASpeedOrAPowerThatCannotBeIsRefusedByItsKey) {
  const std::pair<std::string, std::string> mistakes[] = {
      {"speed = 0", "job.toml:6:1: device.speed is 0"},
      {"speed = -0.5", "job.toml:6:1: device.speed is -0.5"},
      {"watts_idle = -1\nwatts_busy = 5", "job.toml:6:1: device.watts_idle is -1"},
      {"watts_idle = 1\nwatts_busy = -5", "job.toml:7:1: device.watts_busy is -5"}};
  for (const auto& [lines, words] : mistakes) {
    WriteJob("[data]\ntrain = \"glyphs\"\n[[device]]\n[[device]]\nname = \"csd\"\n" + lines + "\n");
    for (const char* verb : {"train", "simulate", "serve"}) {
      const Outcome outcome = Run({verb, "job.toml", "--out", "run"});
      EXPECT_EQ(outcome.exit_code, 2) << verb;
      EXPECT_TRUE(Says(outcome.err, words)) << outcome.err;
    }
  }
  const Outcome flag = Run({"train", "--out", "run", "--set", "device.speed=0"});
  EXPECT_EQ(flag.exit_code, 2);
  EXPECT_TRUE(Says(flag.err, "--set device.speed: device.speed is 0")) << flag.err;
  EXPECT_FALSE(fs::exists(folder() / "run"));
}

// The cores that this process may use.
std::vector<int> UsableCores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  EXPECT_EQ(sched_getaffinity(0, sizeof(set), &set), 0);
  std::vector<int> cores;
  for (int core = 0; core < CPU_SETSIZE; ++core) {
    if (CPU_ISSET(static_cast<std::size_t>(core), &set)) cores.push_back(core);
  }
  return cores;
}

// How many threads of a process may run on `core` and nowhere else.
int ThreadsOnlyOn(pid_t process, int core) {
  const std::string wanted = "\nCpus_allowed_list:\t" + std::to_string(core) + "\n";
  int threads = 0;
  std::error_code gone;
  const fs::path tasks = fs::path("/proc") / std::to_string(process) / "task";
  for (const fs::directory_entry& task : fs::directory_iterator(tasks, gone)) {
    threads += Says(Content(task.path() / "status"), wanted) ? 1 : 0;
  }
  return threads;
}

TEST_F(DevicesProgramTest, TheThreadsOfADeviceWithAListOfCoresMayUseTheseOnly) {
  const std::vector<int> usable = UsableCores();
  const int first = usable.front(), last = usable.back();
  const std::string one = std::to_string(last), two = std::to_string(first) + ", " + one;
  struct Case {
    std::string run, devices;
    int on_first, on_last;  // lanes
  };
  // One device is trained on in another way than several.
  const Case cases[] = {
      {"one", "[[device]]\ncores = [" + two + "]\n", 1, 1},
      {"two",
       "[[device]]\nname = \"a\"\ncores = [" + two + "]\n[[device]]\nname = \"b\"\ncores = [" +
           one + "]\n",
       1, 2},
  };
  for (const Case& wanted : cases) {
    WriteJob("[data]\ntrain = \"glyphs\"\n[train]\nepochs = 1000\n" + wanted.devices);
    Child child(folder(), {"train", "job.toml", "--out", wanted.run});
    const auto trains = [&] {
      return Says(Content(folder() / wanted.run / "events.jsonl"), "\"event\":\"step\"");
    };
    ASSERT_TRUE(child.WaitUntil(trains, 60.0)) << child.Wait(0.0).err;
    if (first == last) continue;  // every thread is bound to it anyway
    EXPECT_EQ(ThreadsOnlyOn(child.pid(), first), wanted.on_first) << wanted.run;
    EXPECT_EQ(ThreadsOnlyOn(child.pid(), last), wanted.on_last) << wanted.run;
  }
}

TEST_F(DevicesProgramTest, ACoreThatIsNotThereIsRefusedByItsKey) {
  for (const char* first : {"", "[[device]]\n"}) {
    WriteJob(std::string("[data]\ntrain = \"glyphs\"\n") + first +
             "[[device]]\nname = \"bound\"\ncores = [65535]\n");
    const Outcome outcome = Run({"train", "job.toml", "--out", "run"});
    EXPECT_EQ(outcome.exit_code, 2) << outcome.err;
    EXPECT_TRUE(Says(outcome.err,
                     *first == '\0' ? "job.toml:5:1: device.cores" : "job.toml:6:1: device.cores"))
        << outcome.err;
    EXPECT_FALSE(fs::exists(folder() / "run"));
  }
}

constexpr const char* kThreeVirtual = R"(
[data]
train = "idx:data"
[train]
batch = 16
epochs = 2
learning_rate = 0.001
[[device]]
name = "host"
fixed_ms = 10
sample_ms = 5
watts_idle = 30
watts_busy = 90
[[device]]
name = "csd"
count = 2
speed = 0.25
fixed_ms = 10
sample_ms = 5
watts_idle = 1
watts_busy = 4
private = "idx:private-{i}"
[[interruption]]
device = "host"
at_seconds = 1
for_seconds = 2
slowdown = 4
[network]
latency_us = 1000
)";

TEST_F(DevicesProgramTest, SimulatesThreeDevicesTheSameEveryTime) {
  WriteSmallIdx(folder() / "data", 160, 40);
  WriteSmallIdx(folder() / "private-0", 24, 8);
  WriteSmallIdx(folder() / "private-1", 24, 8);
  WriteJob(kThreeVirtual);
  for (const char* run : {"a", "b"}) {
    const Outcome outcome = Run({"simulate", "job.toml", "--out", run});
    ASSERT_EQ(outcome.exit_code, 0) << outcome.out << outcome.err;
  }
  const json a = Summary("a"), b = Summary("b");
  ASSERT_TRUE(a.is_object());
  for (const char* key :
       {"accuracy", "steps", "samples", "seconds", "joules", "devices", "bytes_sent", "retunes"}) {
    EXPECT_EQ(a.at(key), b.at(key)) << key;
  }
  // Kernels are chosen by measurement, and another one rounds otherwise.
  const double loss = a.at("loss");
  EXPECT_NEAR(b.at("loss"), loss, 1e-4 * loss);
  EXPECT_EQ(a.at("samples"), 2 * (160 + 2 * 24));
  EXPECT_EQ(a.at("steps"), 2 * 13);
  ASSERT_EQ(a.at("devices").size(), 3U);
  // 26 steps of 16 samples: at the very best 1.5 x the host, so 26 * 16 / 1.5 * 5 ms.
  EXPECT_GT(a.at("seconds"), 1.3);
  for (const json& device : a.at("devices")) EXPECT_GT(device.at("samples"), 0) << device;
  EXPECT_GE(a.at("devices")[1].at("samples"), 2 * 24);
}

TEST_F(DevicesProgramTest, WhyTellsOfTrialsAndTheSummaryOnlyOfNewShares) {
  WriteSmallIdx(folder() / "data", 160, 40);
  WriteJob(
      "[data]\ntrain = \"idx:data\"\n[train]\nbatch = 16\nepochs = 4\nlearning_rate = 0.001\n"
      "[[device]]\nname = \"host\"\nfixed_ms = 0\nsample_ms = 50\n"
      "[[device]]\nname = \"slow\"\nfixed_ms = 0\nsample_ms = 1000\n"
      "[network]\nbandwidth_gbit = 1000000\nlatency_us = 0\n");
  const Outcome outcome = Run({"simulate", "job.toml", "--out", "run"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.out << outcome.err;
  const Outcome why = Run({"why", "run"});
  for (const char* words :
       {"because slow, which has no share, is tried again with one sample: shares host 16, slow 0 "
        "became host 15, slow 1; predicted 1",
        "because slow is still too slow: with 1 s for one sample it would not make steps of 800 ms "
        "5 % shorter: shares host 15, slow 1 became host 16, slow 0; predicted 0.8 s per step",
        "decision 1 was replaced before its first step",
        "decision 3: 1 s per step were predicted"}) {
    EXPECT_TRUE(Says(why.out, words)) << words << " in:\n" << why.out;
  }
  for (const json& retune : Summary("run").at("retunes")) {
    EXPECT_TRUE(Says(retune.at("reason"), "joined")) << retune;
  }
}

TEST_F(DevicesProgramTest, PricesSamplesThatAreMovedAndPrivateOnesThatAreNot) {
  WriteSmallIdx(folder() / "data", 160, 40);
  for (const char* name : {"private-0", "private-1"}) WriteSmallIdx(folder() / name, 8, 8);
  std::string job = kThreeVirtual;
  job.replace(job.find("speed = 0.25"), 0, "streamed = true\n");
  WriteJob(job + "bandwidth_gbit = 2\njoules_per_gigabyte = 10\n");
  for (const char* mode : {"with", "without"}) {
    std::vector<std::string> arguments = {"simulate", "job.toml", "--out", mode};
    if (mode == std::string("without")) arguments.emplace_back("--time-only");
    const Outcome outcome = Run(arguments);
    ASSERT_EQ(outcome.exit_code, 0) << outcome.out << outcome.err;
    const json summary = Summary(mode), &moving = summary.at("moving");
    // 28 x 28 bytes of each; the private ones of two epochs are on the devices.
    std::int64_t streamed = 0;
    for (const int i : {1, 2}) {
      streamed += summary.at("devices")[i].at("samples").get<std::int64_t>() - 2 * 8;
    }
    EXPECT_GT(streamed, 0);
    const json& moved = moving.at("classes").at("public_data");
    EXPECT_EQ(moved.at("bytes"), 784 * streamed);
    EXPECT_NEAR(moved.at("joules").get<double>(), 784e-9 * static_cast<double>(streamed) * 10,
                1e-12);
    EXPECT_EQ(summary.at("bytes_sent").at("private_data"), 0);
    const json& carried = moving.at("private_data_if_carried");
    EXPECT_EQ(carried.at("bytes"), 784 * 16);
    EXPECT_NEAR(carried.at("link_seconds").get<double>(), 784 * 16 * 8 / 2e9, 1e-12);
    EXPECT_NEAR(summary.at("joules").get<double>(),
                summary.at("joules_of_devices").get<double>() + moving.at("joules").get<double>(),
                1e-9);
  }
}

TEST_F(DevicesProgramTest, SimulatesGroupsAndCorrectsTheMomentum) {
  WriteSmallIdx(folder() / "data", 160, 40);
  WriteJob(kFourGroups);
  const Outcome outcome = Run({"simulate", "job.toml", "--out", "run"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.out << outcome.err;
  const json summary = Summary("run");
  EXPECT_EQ(summary.at("groups"), 4);
  EXPECT_EQ(summary.at("samples"), 320);
  const json& staleness = summary.at("staleness");
  EXPECT_NEAR(staleness.at("mean"), 3.0, 0.5);
  EXPECT_NEAR(staleness.at("implied_momentum"), 0.75, 0.05);
  EXPECT_TRUE(staleness.at("coordinate_momentum").is_number());
  std::int64_t updates = 0;
  for (const json& count : staleness.at("histogram")) updates += count.get<std::int64_t>();
  EXPECT_EQ(updates, summary.at("steps"));
  const Outcome why = Run({"why", "run"});
  EXPECT_TRUE(Says(why.out, "momentum 0.233 became momentum 0.15")) << why.out;

  // The same without gradients: the same times, and nothing that was not computed.
  const Outcome clock = Run({"simulate", "job.toml", "--out", "clock", "--time-only"});
  ASSERT_EQ(clock.exit_code, 0) << clock.out << clock.err;
  const json only = Summary("clock");
  EXPECT_EQ(only.at("seconds"), summary.at("seconds"));
  EXPECT_EQ(only.at("staleness").at("histogram"), staleness.at("histogram"));
  EXPECT_TRUE(only.at("accuracy").is_null());
  EXPECT_FALSE(fs::exists(folder() / "clock" / "checkpoints"));

  // And with a bound that it would exceed.
  EXPECT_GT(staleness.at("histogram").size(), 4U);
  const Outcome bounded = Run({"simulate", "job.toml", "--out", "bounded", "--time-only", "--set",
                               "cluster.max_staleness=3"});
  ASSERT_EQ(bounded.exit_code, 0) << bounded.out << bounded.err;
  EXPECT_EQ(Summary("bounded").at("samples"), 320);
  EXPECT_EQ(Summary("bounded").at("staleness").at("histogram").size(), 4U);
}

TEST_F(DevicesProgramTest, SimulatesTheFailureOfADevice) {
  WriteSmallIdx(folder() / "data", 160, 40);
  WriteJob(std::string(kFourGroups) +
           "[[device]]\nname = \"brief\"\nfixed_ms = 1\nsample_ms = 1\nfails_at_seconds = 0.1\n");
  const Outcome outcome = Run({"simulate", "job.toml", "--out", "run"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.out << outcome.err;
  const json summary = Summary("run");
  EXPECT_EQ(summary.at("samples"), 320);
  const json& brief = summary.at("devices").back();
  EXPECT_EQ(brief.at("name"), "brief");
  EXPECT_GT(brief.at("samples"), 0);
  EXPECT_LT(brief.at("samples"), 80);
  EXPECT_LE(brief.at("compute_seconds").get<double>() + brief.at("wait_seconds").get<double>(),
            0.11);
}

TEST_F(DevicesProgramTest, RefusesMoreGroupsThanDevicesAndATargetWithoutGradients) {
  WriteSmallIdx(folder() / "data", 160, 40);
  WriteJob(kFourGroups);
  Outcome outcome = Run({"simulate", "job.toml", "--out", "run", "--set", "cluster.groups=5"});
  EXPECT_EQ(outcome.exit_code, 2);
  EXPECT_TRUE(Says(outcome.err, "--set cluster.groups: 5 groups of 4 devices")) << outcome.err;
  WriteJob("[data]\ntrain = \"idx:data\"\n[train]\ntarget_accuracy = 0.9\n");
  outcome = Run({"simulate", "job.toml", "--out", "run", "--time-only"});
  EXPECT_EQ(outcome.exit_code, 2);
  EXPECT_TRUE(Says(outcome.err, "job.toml:4")) << outcome.err;
  EXPECT_FALSE(fs::exists(folder() / "run"));
}

}  // namespace
}  // namespace motley::app
