// What workers measure of their machine's energy, as the coordinator accounts for it.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <mutex>

#include "motley/base/file.h"
#include "tests/cluster/cluster.h"

namespace motley::cluster {
namespace {

namespace fs = std::filesystem;

// A sysfs with one package whose counter stands still but for what the test adds.
class FakeRapl {
 public:
  FakeRapl() : root_(NewFolder()), zone_(root_ / "class" / "powercap" / "intel-rapl:0") {
    fs::create_directories(zone_);
    std::ofstream(zone_ / "name") << "package-0\n";
    std::ofstream(zone_ / "max_energy_range_uj") << "1000000000000\n";
    Add(5.0);
  }
  ~FakeRapl() { fs::remove_all(root_); }
  void Add(double joules) {
    const std::lock_guard lock(mutex_);
    microjoules_ += static_cast<std::int64_t>(1e6 * joules);
    // Readers see the old number or the new one.
    EXPECT_TRUE(base::ReplaceFile(zone_ / "energy_uj", std::to_string(microjoules_) + "\n").ok());
  }
  const fs::path& root() const { return root_; }

 private:
  const fs::path root_, zone_;
  std::mutex mutex_;
  std::int64_t microjoules_ = 0;
};

// A worker in whose every step the machine draws so much.
WorkerOptions Measuring(FakeRapl& rapl, const std::string& name, double joules_of_a_step) {
  WorkerOptions options;
  options.name = name;
  options.sysfs = rapl.root();
  options.make_device = DeviceWith([&rapl, joules_of_a_step](std::int64_t) {
    rapl.Add(joules_of_a_step);
    return base::Status();
  });
  return options;
}

TEST(MeteringTest, WhatIsMeasuredWhileItComputesIsBusyAndTheRestIdle) {
  FakeRapl rapl;
  TestCluster cluster({});
  cluster.AddWorker(Measuring(rapl, "a", 3.0));
  const auto report = cluster.Run([&](std::int64_t) { rapl.Add(2.0); });
  ASSERT_TRUE(report.ok()) << report.status().ToString();
  const auto totals = cluster.coordinator().totals();
  ASSERT_EQ(totals.size(), 1U);
  const auto steps = static_cast<double>(report->state.step);
  EXPECT_EQ(totals[0].meter, "measured: rapl");
  EXPECT_NEAR(totals[0].joules_busy, 3.0 * steps, 1e-6);
  // After the last step comes a test of the model, in which it is read again.
  EXPECT_NEAR(totals[0].joules, 5.0 * steps, 1e-6);
}

TEST(MeteringTest, WorkersOfOneMachineDivideWhatItsMeterCounts) {
  FakeRapl rapl;
  TestCluster cluster({.min_workers = 3, .shares = {2, 1, 0}});
  for (const char* name : {"a", "b", "c"}) cluster.AddWorker(Measuring(rapl, name, 3.0));
  const auto report = cluster.Run([&](std::int64_t) { rapl.Add(2.0); });
  ASSERT_TRUE(report.ok()) << report.status().ToString();
  const auto totals = cluster.coordinator().totals();
  ASSERT_EQ(totals.size(), 3U);
  // Two of them compute in every step; the third has no share, and reads the meter as well.
  const auto steps = static_cast<double>(report->state.step);
  for (const MemberTotal& total : totals) {
    EXPECT_NEAR(total.joules, (2 * 3.0 + 2.0) * steps / 3, 1e-6) << total.name;
    EXPECT_LE(total.joules_busy, total.joules + 1e-6) << total.name;
  }
}

TEST(MeteringTest, WorkersOfTwoMachinesHaveEachTheirOwnJoules) {
  FakeRapl first, second;
  TestCluster cluster({.min_workers = 2});
  WorkerOptions a = Measuring(first, "a", 3.0), b = Measuring(second, "b", 1.0);
  a.machine = "first";
  b.machine = "second";
  cluster.AddWorker(a);
  cluster.AddWorker(b);
  const auto report = cluster.Run();
  ASSERT_TRUE(report.ok()) << report.status().ToString();
  const auto steps = static_cast<double>(report->state.step);
  for (const MemberTotal& total : cluster.coordinator().totals()) {
    EXPECT_NEAR(total.joules, (total.name == "a" ? 3.0 : 1.0) * steps, 1e-6) << total.name;
  }
}

}  // namespace
}  // namespace motley::cluster
