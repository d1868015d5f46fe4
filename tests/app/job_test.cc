#include "apps/motley/job.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "apps/motley/job_keys.h"
#include "apps/motley/suggest.h"

namespace motley::app {
namespace {

Job Parsed(const std::string& toml) {
  auto resolved = ParseJob(toml, "job.toml");
  EXPECT_TRUE(resolved.ok()) << resolved.status().ToString();
  return resolved.ok() ? resolved->job : Job{};
}

std::string Refusal(const std::string& toml) {
  const auto resolved = ParseJob(toml, "job.toml");
  EXPECT_FALSE(resolved.ok()) << "accepted: " << toml;
  return resolved.status().ToString();
}

TEST(JobTest, AnEmptyFileIsTheDefaultJob) {
  EXPECT_EQ(Parsed(""), Job{});
  EXPECT_EQ(Parsed("").model.zoo, "lenet");
  EXPECT_EQ(Parsed("").data.train, "mnist");
}

TEST(JobTest, ReadsEveryKey) {
  const Job job = Parsed(R"(
[model]
zoo = "resnet18"
weights = "start.safetensors"
[data]
train = "images:cifar.tar.gz"
test = "images:test"
resize = "40x48"
pad = 4
crop = "32x30"
flip = true
mean = [0.5, 0.4, 0]
std = [0.25, 0.25, 1]
threads = 2
[train]
batch = 128
learning_rate = 0.1
momentum = -0.5
weight_decay = 5e-4
schedule = "step:3,5:0.2"
warmup_steps = 100
epochs = 7
target_accuracy = 0.75
max_seconds = 600
bn_batch = 32
seed = 42
[[device]]
name = "cpu"
kind = "native"
threads = 2
[cluster]
min_workers = 4
trusted_network = true
heartbeat_seconds = 0.5
[checkpoint]
every_seconds = 0.5
keep = 9
)");
  EXPECT_EQ(job.model.zoo, "resnet18");
  EXPECT_EQ(job.data.resize, (ImageSize{40, 48}));
  EXPECT_EQ(job.data.crop, (ImageSize{32, 30}));
  EXPECT_EQ(job.data.mean, (std::vector<double>{0.5, 0.4, 0.0}));
  EXPECT_TRUE(job.data.flip);
  EXPECT_EQ(job.train.momentum, -0.5);
  EXPECT_EQ(job.train.epochs, 7);
  EXPECT_EQ(job.train.max_seconds, 600.0);
  ASSERT_EQ(job.devices.size(), 1U);
  EXPECT_EQ(job.devices[0].name, "cpu");
  EXPECT_EQ(job.cluster.min_workers, 4);
  EXPECT_TRUE(job.cluster.trusted_network);
  EXPECT_EQ(job.cluster.heartbeat_seconds, 0.5);
  EXPECT_EQ(job.checkpoint.every_seconds, 0.5);
  EXPECT_EQ(job.checkpoint.keep, 9);
}

TEST(JobTest, WritesAJobThatReadsBackTheSame) {
  Job job = Parsed("[data]\nresize = \"8x9\"\nmean = [0.1, 0.25]\nstd = [1, 2]\n");
  job.data.train = "images:a \"quoted\"\\path\n\x7f";
  job.train.learning_rate = 1.0 / 3.0;
  job.train.target_accuracy = 0.991;
  EXPECT_EQ(Parsed(ToToml(job)), job);
  EXPECT_EQ(Parsed(ToToml(Job{})), Job{});
}

TEST(JobTest, KnowsWhetherADeviceIsListed) {
  EXPECT_TRUE(Parsed("").devices.empty());
  EXPECT_TRUE(Parsed("[cluster]\nmin_workers = 2").devices.empty());
  EXPECT_EQ(Parsed("[[device]]").devices.size(), 1U);
  EXPECT_EQ(Parsed("[[device]]\nthreads = 2").devices.size(), 1U);
  for (const char* toml : {"", "[[device]]", "[[device]]\nthreads = 2"}) {
    EXPECT_EQ(Parsed(ToToml(Parsed(toml))), Parsed(toml)) << "a resumed run reads it back";
  }
  const auto flag = LoadJob({.file = "", .sets = {"device.threads=1"}, .environment = {}});
  ASSERT_TRUE(flag.ok()) << flag.status().ToString();
  EXPECT_EQ(flag->job.devices.size(), 1U);
}

TEST(JobTest, AJobWithoutAGoalStopsAfterFiveEpochs) {
  EXPECT_EQ(EpochLimit(Parsed("")), 5);
  EXPECT_EQ(EpochLimit(Parsed("[train]\nepochs = 2")), 2);
  EXPECT_EQ(EpochLimit(Parsed("[train]\ntarget_accuracy = 0.9")), std::nullopt);
  EXPECT_EQ(EpochLimit(Parsed("[train]\nmax_seconds = 9")), std::nullopt);
}

struct RefusalCase {
  std::string toml;
  std::vector<std::string> says;
};

void PrintTo(const RefusalCase& refusal, std::ostream* out) { *out << refusal.toml.substr(0, 60); }

// ".a.a.a…", so many times.
std::string DottedParts(int count) {
  std::string text;
  for (int i = 0; i < count; ++i) text += ".a";
  return text;
}

class JobRefusalTest : public testing::TestWithParam<RefusalCase> {};

TEST_P(JobRefusalTest, NamesThePlaceAndTheFix) {
  const std::string message = Refusal(GetParam().toml);
  for (const std::string& words : GetParam().says) {
    EXPECT_NE(message.find(words), std::string::npos) << "'" << words << "' in: " << message;
  }
}

INSTANTIATE_TEST_SUITE_P(
    Table, JobRefusalTest,
    testing::Values(
        RefusalCase{"[train]\nbacth = 3",
                    {"job.toml:2:1", "train.bacth", "did you mean train.batch?"}},
        RefusalCase{"[train]\n\n  lerning_rate = 3",
                    {"job.toml:3:3", "did you mean train.learning_rate?"}},
        RefusalCase{"a" + DottedParts(200000) + " = 1", {"job.toml:1", "dots"}},
        RefusalCase{"[a" + DottedParts(200000) + "]", {"job.toml:1", "dots"}},
        RefusalCase{"batch = 3", {"job.toml:1:1", "unknown key batch", "train.batch"}},
        RefusalCase{"[model]\nseed = 3", {"job.toml:2:1", "train.seed", "belongs to train"}},
        RefusalCase{"[trian]\nbatch = 3", {"job.toml:1:", "[trian]", "did you mean [train]?"}},
        RefusalCase{"[cluster]\ngroups = 0", {"job.toml:2:1", "cluster.groups", "1 to 1024"}},
        RefusalCase{"[cluster]\ngroups = 2\n[train]\nobjective = \"energy\"",
                    {"job.toml:2:1", "cluster.groups", "energy", "fix:"}},
        RefusalCase{"[cluster]\ngroups = 2\n[train]\nnesterov = true",
                    {"job.toml:4:1", "train.nesterov", "staleness", "fix:"}},
        RefusalCase{"[[device]]\nservice = \"poisson\"",
                    {"job.toml:2:1", "device.service", "exponential"}},
        RefusalCase{"[[device]]\nservice = \"lognormal:9\"",
                    {"job.toml:2:1", "device.service", "standard deviation"}},
        RefusalCase{"[network]\nserver_ms = -1", {"job.toml:2:1", "network.server_ms"}},
        RefusalCase{"[cluster]\nmin_workers = 0", {"job.toml:2:1", "cluster.min_workers is 0"}},
        RefusalCase{"[cluster]\nheartbeat_seconds = 0", {"cluster.heartbeat_seconds is 0"}},
        RefusalCase{"[cluster]\ntrusted_network = 1", {"true or false"}},
        RefusalCase{"[[device]]\nname = \"my host\"", {"job.toml:2:1", "is no name", "letters"}},
        RefusalCase{"[train]\nbatch = \"many\"",
                    {"job.toml:2:1", "train.batch is 'many'", "whole number from 1"}},
        RefusalCase{"[train]\nbatch = 2.5", {"train.batch is 2.5", "whole number"}},
        RefusalCase{"[train]\nbatch = 0", {"train.batch is 0", "from 1 to"}},
        RefusalCase{"[train]\nmomentum = 1", {"train.momentum is 1", "above -1 and below 1"}},
        RefusalCase{"[train]\nlearning_rate = nan", {"train.learning_rate is nan"}},
        RefusalCase{"[train]\nmax_seconds = inf", {"train.max_seconds is inf"}},
        RefusalCase{"[train]\nseed = -1", {"train.seed is -1"}},
        RefusalCase{"[train]\nseed = 2020-01-01", {"train.seed is a date"}},
        RefusalCase{"[train]\nschedule = \"linear\"", {"job.toml:2:1", "train.schedule"}},
        RefusalCase{"[train]\nbatch = 100\nbn_batch = 32",
                    {"job.toml:3:1", "32 does not divide train.batch = 100"}},
        RefusalCase{"[train]\nnesterov = true\nmomentum = 0.0", {"job.toml:2:1", "Nesterov"}},
        RefusalCase{"[data]\nresize = \"32\"", {"data.resize is '32'", "HEIGHTxWIDTH"}},
        RefusalCase{"[data]\ncrop = \"0x9\"", {"data.crop is '0x9'"}},
        RefusalCase{"[data]\nmean = [0.5, \"x\"]", {"data.mean is a list of something else"}},
        RefusalCase{"[data]\nmean = [0.5]\nstd = [0.5, 0.5]", {"job.toml:3:1", "data.std"}},
        RefusalCase{"[data]\nstd = [0]", {"data.std holds 0"}},
        RefusalCase{"[data]\ntrain = \"\"", {"data.train: may not be empty"}},
        RefusalCase{"[model]\nzoo = \"lenet\"\nonnx = \"a.onnx\"",
                    {"job.toml:3:1", "keep one of model.zoo and model.onnx"}},
        RefusalCase{"[model]\nzoo = \"\"", {"job.toml:2:1", "no network is named"}},
        RefusalCase{"[device]\nthreads = 1", {"job.toml:1:", "[[device]]"}},
        RefusalCase{"[[train]]\nbatch = 1", {"[train]"}},
        RefusalCase{"train = 3", {"job.toml:1:", "[train]"}},
        RefusalCase{"[train]\nbatch = 1\nbatch = 2", {"job.toml:3:", "batch"}},
        RefusalCase{"[train\nbatch = 1", {"job.toml:1:"}}, RefusalCase{"[[[1]]]", {"job.toml:1:3"}},
        RefusalCase{"[\n[model]", {"job.toml:1:2"}}, RefusalCase{"\u00e9 = 1", {"job.toml:1:1"}},
        RefusalCase{"\ufe3fbatch = 1", {"job.toml:1:1"}},
        RefusalCase{"[train]\nbatch == 1", {"job.toml:2:"}}));

INSTANTIATE_TEST_SUITE_P(
    Devices, JobRefusalTest,
    testing::Values(
        RefusalCase{"[train]\ntune = \"magic\"",
                    {"job.toml:2:1", "train.tune", "'magic' is none of off, once, shares, auto"}},
        RefusalCase{"[train]\nobjective = \"fame\"", {"job.toml:2:1", "train.objective"}},
        RefusalCase{"[train]\ndeadline_seconds = 9",
                    {"job.toml:2:1", "train.deadline_seconds", "objective = \"energy\""}},
        RefusalCase{"[train]\nobjective = \"energy\"\ndeadline_seconds = 0",
                    {"job.toml:3:1", "train.deadline_seconds is 0"}},
        RefusalCase{"[[device]]\nkind = \"torch:gpu\"", {"job.toml:2:1", "device.kind", "native"}},
        RefusalCase{"[[device]]\nspeed = 0", {"job.toml:2:1", "device.speed is 0"}},
        RefusalCase{"[[device]]\nspeed = 2", {"job.toml:2:1", "device.speed is 2"}},
        RefusalCase{"[[device]]\ncount = 0", {"job.toml:2:1", "device.count is 0"}},
        RefusalCase{"[[device]]\n[[device]]\nname = \"b\"\nwatts_idle = -1\nwatts_busy = 5",
                    {"job.toml:4:1", "device.watts_idle is -1"}},
        RefusalCase{"[[device]]\nwatts_busy = 5",
                    {"job.toml:2:1", "device.watts_busy", "go together"}},
        RefusalCase{"[[device]]\nname = \"a\"\n[[device]]\nwatts_idle = 9\nwatts_busy = 5",
                    {"job.toml:5:1", "device.watts_busy", "5 W is less than watts_idle = 9"}},
        RefusalCase{"[train]\nobjective = \"energy\"\n[[device]]\nname = \"a\"",
                    {"device.watts_busy", "a has no watts", "give watts_idle and watts_busy"}},
        RefusalCase{"[[device]]\nkind = \"torch:cpu\"\ncores = [0]",
                    {"job.toml:3:1", "device.cores", "only native devices"}},
        RefusalCase{"[[device]]\n[[device]]\nname = \"csd\"\nprivate = "
                    "\"x\"\n[cluster]\nmerged_head = true",
                    {"job.toml:6:1", "cluster.merged_head", "private samples"}},
        RefusalCase{"[[device]]\nkind = \"torch:cpu\"\n[cluster]\nmerged_head = true",
                    {"job.toml:4:1", "cluster.merged_head", "native devices"}},
        RefusalCase{"[cluster]\ngroups = 4\nmax_staleness = 2",
                    {"job.toml:3:1", "cluster.max_staleness", "up to 3 updates stale"}},
        RefusalCase{"[[device]]\nfixed_ms = 1", {"job.toml:2:1", "sample_ms", "go together"}},
        RefusalCase{"[[device]]\nthreads = 3\ncores = [0, 1]",
                    {"job.toml:3:1", "device.cores", "2 cores, but threads = 3"}},
        RefusalCase{"[[device]]\ncores = [0.5]", {"job.toml:2:1", "0.5 is no number of a core"}},
        RefusalCase{"[[device]]\nname = \"a\"\n\n[[device]]\nname = \"a\"",
                    {"job.toml:5:1", "two devices are named 'a'"}},
        RefusalCase{"[[device]]\nname = \"a-1\"\n[[device]]\nname = \"a\"\ncount = 2",
                    {"job.toml:4:1", "two devices are named 'a-1'"}},
        RefusalCase{"[[device]]\n[[device]]", {"device.name", "two devices are named 'host'"}},
        RefusalCase{"[[device]]\ncount = 2\nprivate = \"data\"",
                    {"job.toml:3:1", "device.private", "the same private samples", "{i}"}},
        RefusalCase{"[[interruption]]\ndevice = \"csd\"",
                    {"job.toml:2:1", "interruption.device", "no device is named 'csd'", "host"}},
        RefusalCase{"[[device]]\nname = \"csd\"\ncount = 2\n[[interruption]]\ndevice = \"csd\"",
                    {"job.toml:5:1", "the devices are csd-0, csd-1"}},
        RefusalCase{"[[interruption]]\nat_seconds = 3", {"interruption.device", "no device"}},
        RefusalCase{"[[interruption]]\ndevice = \"host\"\nslowdown = 0.5",
                    {"job.toml:3:1", "interruption.slowdown is 0.5"}},
        RefusalCase{"[interruption]\ndevice = \"host\"", {"[[interruption]]"}},
        RefusalCase{"[network]\nbandwidth_gbit = 0",
                    {"job.toml:2:1", "network.bandwidth_gbit is 0"}},
        RefusalCase{"[network]\nlatency_us = -1", {"job.toml:2:1", "network.latency_us is -1"}}));

TEST(JobDevicesTest, AreListedOneByOneWithTheirNumbers) {
  const Job job = Parsed(R"(
[[device]]
name = "host"
threads = 2
watts_idle = 30
watts_busy = 90
[[device]]
name = "csd"
count = 3
speed = 0.1
private = "data/csd-{i}"
[[interruption]]
device = "host"
at_seconds = 20
slowdown = 4
[[interruption]]
device = "csd-2"
for_seconds = 5
[network]
bandwidth_gbit = 10
latency_us = 5
)");
  EXPECT_EQ(job.devices.size(), 2U);
  const auto devices = DevicesOf(job);
  ASSERT_EQ(devices.size(), 4U);
  EXPECT_EQ(devices[0].name, "host");
  EXPECT_EQ(devices[0].watts_busy, 90.0);
  EXPECT_EQ(devices[1].name, "csd-0");
  EXPECT_EQ(devices[3].name, "csd-2");
  EXPECT_EQ(devices[3].private_data, "data/csd-2");
  EXPECT_EQ(devices[3].speed, 0.1);
  EXPECT_EQ(devices[3].count, 1);
  ASSERT_EQ(job.interruptions.size(), 2U);
  EXPECT_EQ(job.interruptions[0].slowdown, 4.0);
  EXPECT_EQ(job.interruptions[0].for_seconds, 30.0);
  EXPECT_EQ(job.interruptions[1].for_seconds, 5.0);
  EXPECT_EQ(job.network.bandwidth_gbit, 10.0);
  EXPECT_EQ(job.network.latency_us, 5.0);
  EXPECT_EQ(Parsed(ToToml(job)), job);
}

TEST(JobDevicesTest, WithoutAnyThereIsOne) {
  const auto devices = DevicesOf(Parsed(""));
  ASSERT_EQ(devices.size(), 1U);
  EXPECT_EQ(devices[0], Job::Device());
  EXPECT_EQ(DevicesOf(Parsed("[[device]]\ncount = 2"))[1].name, "host-1");
}

class JobSourcesTest : public testing::Test {
 protected:
  void SetUp() override {
    file_ = std::filesystem::path(testing::TempDir()) /
            fmt::format("job_sources_test-{}.toml", ::getpid());
    std::ofstream(file_) << "[train]\nbatch = 10\nseed = 10\nepochs = 10\n";
  }
  void TearDown() override { std::filesystem::remove(file_); }

  std::filesystem::path file_;
};

TEST_F(JobSourcesTest, AFlagBeatsTheEnvironmentAndThatBeatsTheFile) {
  const auto resolved = LoadJob({.file = file_,
                                 .sets = {"train.batch=12", "train.batch=13"},
                                 .environment = {{"MOTLEY_TRAIN_BATCH", "11"},
                                                 {"MOTLEY_TRAIN_SEED", "11"},
                                                 {"MOTLEY_TRAIN_EPOCHS", ""},
                                                 {"HOME", "/"}}});
  ASSERT_TRUE(resolved.ok()) << resolved.status().ToString();
  EXPECT_EQ(resolved->job.train.batch, 13);
  EXPECT_EQ(resolved->job.train.seed, 11);
  EXPECT_EQ(resolved->job.train.epochs, 10);
  EXPECT_EQ(resolved->origin("train.batch").source, Source::kFlag);
  EXPECT_EQ(resolved->origin("train.seed").source, Source::kEnvironment);
  EXPECT_EQ(resolved->origin("train.epochs").source, Source::kFile);
  EXPECT_EQ(resolved->origin("train.epochs").place, file_.string() + ":4:1");
  EXPECT_EQ(resolved->origin("train.momentum").source, Source::kDefault);
  EXPECT_EQ(resolved->Place("train.momentum"), "train.momentum (default)");
}

TEST_F(JobSourcesTest, AnOnnxFileOfAFlagReplacesTheZooNameOfAFile) {
  std::ofstream(file_) << "[model]\nzoo = \"lenet\"\n";
  const auto resolved =
      LoadJob({.file = file_, .sets = {"model.onnx=net.onnx"}, .environment = {}});
  ASSERT_TRUE(resolved.ok()) << resolved.status().ToString();
  EXPECT_EQ(resolved->job.model.onnx, "net.onnx");
  EXPECT_EQ(resolved->job.model.zoo, "");
}

TEST_F(JobSourcesTest, KebabCaseNamesFindTheirKeys) {
  const auto resolved = LoadJob(
      {.file = "", .sets = {"train.learning-rate=0.25", "data.mean=[0.5, 1]"}, .environment = {}});
  ASSERT_TRUE(resolved.ok()) << resolved.status().ToString();
  EXPECT_EQ(resolved->job.train.learning_rate, 0.25);
  EXPECT_EQ(resolved->job.data.mean, (std::vector<double>{0.5, 1.0}));
}

TEST_F(JobSourcesTest, AFlagCannotMeanOneOfSeveralDevices) {
  std::ofstream(file_) << "[[device]]\nname = \"a\"\n[[device]]\nname = \"b\"\n";
  const auto flag = LoadJob({.file = file_, .sets = {"device.threads=1"}, .environment = {}});
  ASSERT_FALSE(flag.ok());
  EXPECT_NE(flag.status().ToString().find("--set device.threads"), std::string::npos)
      << flag.status().ToString();
  EXPECT_NE(flag.status().ToString().find("does not say which"), std::string::npos);
  const auto variable =
      LoadJob({.file = file_, .sets = {}, .environment = {{"MOTLEY_DEVICE_THREADS", "1"}}});
  ASSERT_FALSE(variable.ok());
  EXPECT_NE(variable.status().ToString().find("MOTLEY_DEVICE_THREADS"), std::string::npos);
}

TEST_F(JobSourcesTest, RefusalsNameTheFlagOrTheVariable) {
  const auto message = [](JobSources sources) { return LoadJob(sources).status().ToString(); };
  EXPECT_NE(message({.file = "", .sets = {"train.batch=x"}, .environment = {}})
                .find("--set train.batch: train.batch is 'x'"),
            std::string::npos);
  EXPECT_NE(message({.file = "", .sets = {"train.bach=1"}, .environment = {}})
                .find("did you mean train.batch?"),
            std::string::npos);
  EXPECT_NE(message({.file = "", .sets = {"batch"}, .environment = {}}).find("section.key=value"),
            std::string::npos);
  EXPECT_NE(message({.file = "", .sets = {}, .environment = {{"MOTLEY_TRAIN_SEED", "a"}}})
                .find("environment MOTLEY_TRAIN_SEED: train.seed is 'a'"),
            std::string::npos);
  EXPECT_NE(message({.file = "", .sets = {}, .environment = {{"MOTLEY_TRAIN_BACTH", "1"}}})
                .find("did you mean MOTLEY_TRAIN_BATCH?"),
            std::string::npos);
  EXPECT_NE(message({.file = "no/such.toml", .sets = {}, .environment = {}}).find("no/such.toml"),
            std::string::npos);
}

TEST(ExamplesTest, EveryExampleIsAJob) {
  int examples = 0;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(MOTLEY_EXAMPLES)) {
    if (entry.path().extension() != ".toml") continue;
    const auto resolved = LoadJob({.file = entry.path().string()});
    EXPECT_TRUE(resolved.ok()) << resolved.status().ToString();
    ++examples;
  }
  EXPECT_GE(examples, 4);
}

TEST(ExamplesTest, TheDefaultJobIsTheOneWrittenOut) {
  const auto resolved = LoadJob({.file = MOTLEY_EXAMPLES "/lenet-mnist.toml"});
  ASSERT_TRUE(resolved.ok()) << resolved.status().ToString();
  Job job = resolved->job;
  EXPECT_EQ(job.train.epochs, EpochLimit(Job{}));
  job.train.epochs.reset();
  EXPECT_EQ(job, Job{});
}

TEST(JobKeysTest, EveryKeyAcceptsItsOwnDefaultAndHasHelp) {
  for (const Key& key : Keys()) {
    EXPECT_FALSE(key.help.empty()) << key.full();
    EXPECT_EQ(FindKey(key.section, key.name), &key);
    const std::string value = FormatValue(key, Job{});
    if (value.empty()) continue;
    Job job;
    const std::string text = value.front() == '"' ? value.substr(1, value.size() - 2) : value;
    const auto parsed = ParseValue(key, text);
    ASSERT_TRUE(parsed.ok()) << parsed.status().ToString();
    EXPECT_TRUE(Assign(key, *parsed, job).ok()) << key.full();
    Job expected;
    AddRows(expected, key.section, 1);  // where there was no such device or interruption
    EXPECT_EQ(job, expected) << key.full();
  }
}

TEST(SuggestTest, CountsASwapOfNeighboursAsOneEdit) {
  EXPECT_EQ(EditDistance("bacth", "batch"), 1);
  EXPECT_EQ(EditDistance("", "abc"), 3);
  EXPECT_EQ(EditDistance("kitten", "sitting"), 3);
  EXPECT_EQ(Nearest("trian", {"train", "data"}), "train");
  EXPECT_EQ(Nearest("zzz", {"train", "data"}), std::nullopt);
}

}  // namespace
}  // namespace motley::app
