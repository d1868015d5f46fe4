#include "motley/run/probe.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <set>

#include "tests/run/linear.h"

namespace motley::run {
namespace {

// Computes nothing and takes exactly as long as its curve says, on a clock of its own.
class TimedDevice final : public engine::Device {
 public:
  explicit TimedDevice(base::VirtualClock& clock) : clock_(clock) {}

  const graph::Graph& graph() const override { return graph_; }
  std::string kind() const override { return "timed"; }
  base::Result<engine::StepResult> Step(const engine::StepRequest& request) override {
    const std::int64_t samples = request.batch->size();
    sizes.push_back(samples);
    if (samples > most) return base::Unavailable("no memory for {} samples", samples);
    if (!statm.empty()) {
      std::ofstream(statm) << "9999 " << *std::max_element(sizes.begin(), sizes.end());
    }
    const bool first = compiled_.insert(samples).second;
    const double seconds = fixed + each * static_cast<double>(samples) + (first ? 0.2 : 0.0);
    clock_.Advance(seconds);
    return engine::StepResult{.samples_done = samples, .seconds = seconds};
  }
  base::Result<engine::StepResult> Forward(const engine::ForwardRequest&) override {
    return base::Internal("not asked for");
  }

  double fixed = 0.002, each = 0.0001;
  std::int64_t most = 1 << 20;
  std::vector<std::int64_t> sizes;  // of all steps so far
  std::filesystem::path statm;  // where it tells that it takes a page for each sample; or nowhere

 private:
  base::VirtualClock& clock_;
  const graph::Graph graph_ = LinearGraph();
  std::set<std::int64_t> compiled_;
};

class ProbeTest : public testing::Test {
 protected:
  ProbeOptions Options(std::int64_t batch) const {
    return {.batch = batch, .cache = folder_.path() / "cache" / "probe.json", .key = "me"};
  }
  Probed MustProbe(const ProbeOptions& options) {
    device_.sizes.clear();
    auto probed = Probe(device_, options, clock_);
    EXPECT_TRUE(probed.ok()) << probed.status().ToString();
    return probed.ok() ? *probed : Probed{};
  }
  void WriteCache(const std::string& text) const {
    std::filesystem::create_directories(folder_.path() / "cache");
    std::ofstream(folder_.path() / "cache" / "probe.json") << text;
  }
  // The device is within a percent of what it is.
  void ExpectRight(const Probed& probed) const {
    const auto curve = plan::FitCurve(probed.timings);
    ASSERT_TRUE(curve.ok()) << curve.status().ToString();
    EXPECT_NEAR(curve->fixed_seconds, device_.fixed, 0.01 * device_.fixed);
    EXPECT_NEAR(curve->seconds_per_sample, device_.each, 0.01 * device_.each);
  }

  ScratchFolder folder_{"probe"};
  base::VirtualClock clock_;
  TimedDevice device_{clock_};
};

TEST_F(ProbeTest, FindsTheCurveWithoutWhatTheFirstStepsCost) {
  const Probed probed = MustProbe(Options(256));
  EXPECT_FALSE(probed.cached);
  EXPECT_EQ(probed.cap, plan::kNoCap);
  ExpectRight(probed);
  EXPECT_EQ(*std::max_element(device_.sizes.begin(), device_.sizes.end()), 256);
}

TEST_F(ProbeTest, MeasuresTwoSizesOfAnyBatchInMultiples) {
  for (const std::int64_t multiple : {1, 8, 32}) {
    for (const std::int64_t batch : {1, 2, 5, 8, 31, 32, 100, 1000}) {
      ProbeOptions options = Options(batch);
      options.multiple = multiple;
      options.cache.clear();
      ExpectRight(MustProbe(options));
      for (const std::int64_t size : device_.sizes) EXPECT_EQ(size % multiple, 0);
    }
  }
}

TEST_F(ProbeTest, LeavesLargeSizesOutWhenTimeIsShort) {
  device_.each = 0.1;
  const Probed probed = MustProbe(Options(4096));
  ExpectRight(probed);
  EXPECT_LE(*std::max_element(device_.sizes.begin(), device_.sizes.end()), 16);
}

TEST_F(ProbeTest, VerifiesWhatItRemembersWithAFewSteps) {
  ExpectRight(MustProbe(Options(256)));
  const std::size_t before = device_.sizes.size();
  const Probed again = MustProbe(Options(256));
  EXPECT_TRUE(again.cached);
  EXPECT_LE(device_.sizes.size(), 4U);
  EXPECT_LT(device_.sizes.size(), before);
  ExpectRight(again);
}

TEST_F(ProbeTest, MeasuresADeviceAnewThatHasChanged) {
  for (const double change : {2.0, 0.25}) {
    ExpectRight(MustProbe(Options(256)));
    device_.each *= change;
    device_.fixed *= change;
    const Probed slower = MustProbe(Options(256));
    EXPECT_FALSE(slower.cached);
    ExpectRight(slower);
    EXPECT_TRUE(MustProbe(Options(256)).cached);  // the new one
  }
}

TEST_F(ProbeTest, RemembersEveryKeyByItself) {
  ExpectRight(MustProbe(Options(256)));
  ProbeOptions other = Options(256);
  other.key = "another net";
  EXPECT_FALSE(MustProbe(other).cached);
  EXPECT_TRUE(MustProbe(other).cached);
  EXPECT_TRUE(MustProbe(Options(256)).cached);
}

TEST_F(ProbeTest, MeasuresWhenTheCacheIsGarbage) {
  const std::string huge =
      R"({"me": {"timings": [[4, 0.1], [1000000000000, 0.2]], "cap": 9, "bytes_per_sample": 0}})";
  for (const std::string& text : std::vector<std::string>{
           "",
           "garbage",
           "[]",
           "{\"me\"",
           "null",
           R"({"me": 3})",
           R"({"me": {}})",
           R"({"me": {"timings": 5}})",
           R"({"me": {"timings": []}})",
           R"({"me": {"timings": [[4], [8]]}})",
           R"({"me": {"timings": [["4", 0.1], [8, 0.2]]}})",
           R"({"me": {"timings": [[4, 0.1], [8, 0.2]], "cap": "many"}})",
           R"({"me": {"timings": [[4, 0.1], [8, 0.2]], "cap": -1}})",
           R"({"me": {"timings": [[4, 0.1], [8, 0.2]], "cap": 9}})",
           R"({"me": {"timings": [[4, 0.1], [8, 0.2]], "cap": 9, "bytes_per_sample": -1}})",
           R"({"me": {"timings": [[4, 0.1], [8, 0.2]], "cap": 9, "bytes_per_sample": "9"}})",
           R"({"me": {"timings": [[-4, 0.1], [8, 0.2]]}})",
           R"({"me": {"timings": [[4, -0.1], [8, 0.2]]}})",
           R"({"me": {"timings": [[4, 1e999], [8, 0.2]]}})",
           huge}) {
    WriteCache(text);
    const Probed probed = MustProbe(Options(256));
    EXPECT_FALSE(probed.cached) << text;
    ExpectRight(probed);
    EXPECT_TRUE(MustProbe(Options(256)).cached) << text;  // and the cache is repaired
  }
}

TEST_F(ProbeTest, WorksWhereNoCacheCanBeWritten) {
  WriteCache("");
  ProbeOptions options = Options(256);
  options.cache = folder_.path() / "cache" / "probe.json" / "below a file";
  ExpectRight(MustProbe(options));
}

TEST_F(ProbeTest, WhatDoesNotFitIntoMemoryIsTheCap) {
  device_.most = 100;
  const Probed probed = MustProbe(Options(4096));
  ExpectRight(probed);
  EXPECT_EQ(probed.cap, 64);
  EXPECT_EQ(MustProbe(Options(4096)).cap, 64);  // remembered, too
}

TEST_F(ProbeTest, MeasuresAnewWhenMemoryHasBecomeLess) {
  ExpectRight(MustProbe(Options(4096)));
  device_.most = 100;
  const Probed probed = MustProbe(Options(4096));
  EXPECT_FALSE(probed.cached);
  EXPECT_EQ(probed.cap, 64);
}

// A process whose device takes a page for each sample, in a cgroup with a limit.
class ProbeMemoryTest : public ProbeTest {
 protected:
  ProbeMemoryTest() {
    Write("proc/self/cgroup", "3:cpu:/\n0::/job/worker\n");
    Write("sys/fs/cgroup/job/worker/memory.max", "max");
    device_.statm = root() / "proc/self/statm";
  }
  std::filesystem::path root() const { return folder_.path() / "root"; }
  void Write(const std::string& name, const std::string& text) const {
    std::filesystem::create_directories((root() / name).parent_path());
    std::ofstream(root() / name) << text;
  }
  // In a new process, which may take so many pages together with others of its job.
  Probed ProbeWithin(std::int64_t pages, int devices_here = 1) {
    Write("sys/fs/cgroup/job/memory.max", std::to_string(pages * ::sysconf(_SC_PAGESIZE)));
    Write("proc/self/statm", "9999 0");
    ProbeOptions options = Options(4096);
    options.root = root();
    options.devices_here = devices_here;
    return MustProbe(options);
  }
};

TEST_F(ProbeMemoryTest, DevicesOfOneProcessShareWhatIsLeft) {
  EXPECT_EQ(ProbeWithin(2000, 4).cap, 256 + (2000 - 256) * 8 / 10 / 4);
  EXPECT_EQ(ProbeWithin(2000, 2).cap, 256 + (2000 - 256) * 8 / 10 / 2) << "of the remembered one";
}

TEST_F(ProbeMemoryTest, TheCapIsWhatTheLimitOfItsCgroupLeaves) {
  const Probed probed = ProbeWithin(1000);
  EXPECT_EQ(probed.cap, 256 + (1000 - 256) * 8 / 10);
  EXPECT_EQ(*std::max_element(device_.sizes.begin(), device_.sizes.end()), 256)
      << "it tried more than fits";
  ExpectRight(probed);
}

TEST_F(ProbeMemoryTest, ARememberedCapFollowsTheLimit) {
  EXPECT_EQ(ProbeWithin(1000).cap, 256 + (1000 - 256) * 8 / 10);
  const Probed less = ProbeWithin(500);
  EXPECT_TRUE(less.cached);
  EXPECT_EQ(less.cap, 256 + (500 - 256) * 8 / 10);
  // So little that the size it would verify with does not fit.
  const Probed least = ProbeWithin(100);
  EXPECT_EQ(*std::max_element(device_.sizes.begin(), device_.sizes.end()), 64);
  EXPECT_EQ(least.cap, 64 + (100 - 64) * 8 / 10);
  EXPECT_EQ(ProbeWithin(1 << 20).cap, plan::kNoCap);
}

TEST_F(ProbeMemoryTest, WhatTheDeviceRefusedIsRememberedWhateverTheLimit) {
  device_.most = 100;
  EXPECT_EQ(ProbeWithin(1 << 20).cap, 64);
  EXPECT_EQ(ProbeWithin(1 << 20).cap, 64);
}

TEST_F(ProbeTest, FailsWithADeviceThatCannotDoTheSmallest) {
  device_.most = 2;
  const auto probed = Probe(device_, Options(256), clock_);
  ASSERT_FALSE(probed.ok());
  EXPECT_EQ(probed.status().code(), base::Code::kUnavailable);
}

}  // namespace
}  // namespace motley::run
