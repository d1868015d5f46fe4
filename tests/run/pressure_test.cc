#include "motley/run/pressure.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>

#include "tests/run/linear.h"

namespace motley::run {
namespace {

// A tree of kernel files that the test writes.
class PressureTest : public testing::Test {
 protected:
  void Write(const std::string& name, const std::string& text) const {
    const std::filesystem::path file = root_.path() / name;
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file) << text;
  }
  void WritePsi(std::int64_t microseconds) const {
    Write("proc/pressure/cpu", fmt::format("some avg10=1.00 avg60=0.50 avg300=0.10 total={}\n"
                                           "full avg10=0.00 avg60=0.00 avg300=0.00 total=0\n",
                                           microseconds));
  }
  void WriteSteal(double seconds) const {
    const double ticks = seconds * static_cast<double>(::sysconf(_SC_CLK_TCK)) *
                         static_cast<double>(::sysconf(_SC_NPROCESSORS_ONLN));
    Write("proc/stat",
          fmt::format("cpu  1 2 3 4 5 6 7 {:.0f} 9 10\ncpu0 1 2 3 4 5 6 7 8\n", ticks));
  }

  ScratchFolder root_{"pressure"};
  base::VirtualClock clock_;
};

TEST_F(PressureTest, IsNothingWhereTheKernelTellsNothing) {
  Pressure pressure(clock_, root_.path());
  clock_.Advance(1.0);
  EXPECT_EQ(pressure.Read(), 0.0);
}

TEST_F(PressureTest, IsThePartOfTheTimeInWhichTheCgroupWasThrottled) {
  Write("proc/self/cgroup", "0::/user.slice/job\n");
  const std::string stat = "sys/fs/cgroup/user.slice/job/cpu.stat";
  Write(stat, "usage_usec 100\nnr_throttled 2\nthrottled_usec 5000000\n");
  Pressure pressure(clock_, root_.path());
  EXPECT_EQ(pressure.Read(), 0.0);
  clock_.Advance(2.0);
  Write(stat, "usage_usec 100\nnr_throttled 3\nthrottled_usec 5500000\n");
  EXPECT_NEAR(pressure.Read(), 0.25, 1e-9);
  clock_.Advance(2.0);
  EXPECT_EQ(pressure.Read(), 0.0);
}

TEST_F(PressureTest, ReadsTheFirstVersionOfCgroupsToo) {
  Write("proc/self/cgroup", "12:memory:/x\n4:cpu,cpuacct:/docker/abc\n");
  const std::string stat = "sys/fs/cgroup/cpu,cpuacct/docker/abc/cpu.stat";
  Write(stat, "nr_periods 1\nnr_throttled 1\nthrottled_time 1000000000\n");
  Pressure pressure(clock_, root_.path());
  clock_.Advance(1.0);
  Write(stat, "nr_periods 9\nnr_throttled 8\nthrottled_time 1500000000\n");
  EXPECT_NEAR(pressure.Read(), 0.5, 1e-9);
}

TEST_F(PressureTest, ACgroupAboveMayBeTheOneThatIsThrottled) {
  Write("proc/self/cgroup", "0::/job/worker\n");
  Write("sys/fs/cgroup/job/worker/cpu.stat", "usage_usec 1\nthrottled_usec 0\n");
  Write("sys/fs/cgroup/job/cpu.stat", "usage_usec 1\nthrottled_usec 100\n");
  Pressure pressure(clock_, root_.path());
  clock_.Advance(1.0);
  Write("sys/fs/cgroup/job/cpu.stat", "usage_usec 1\nthrottled_usec 300100\n");
  EXPECT_NEAR(pressure.Read(), 0.3, 1e-9);
}

TEST_F(PressureTest, TakesTheWorstOfAllSigns) {
  WritePsi(1'000'000);
  WriteSteal(3.0);
  Pressure pressure(clock_, root_.path());
  clock_.Advance(1.0);
  WritePsi(1'100'000);
  WriteSteal(3.4);
  EXPECT_NEAR(pressure.Read(), 0.4, 0.01);
  clock_.Advance(1.0);
  WritePsi(1'800'000);
  WriteSteal(3.5);
  EXPECT_NEAR(pressure.Read(), 0.7, 1e-9);
}

TEST_F(PressureTest, StaysBetweenNothingAndAllOfTheTime) {
  WritePsi(1'000'000);
  Pressure pressure(clock_, root_.path());
  clock_.Advance(1.0);
  WritePsi(9'000'000);
  EXPECT_EQ(pressure.Read(), 1.0);
  WritePsi(9'500'000);
  EXPECT_EQ(pressure.Read(), 0.0);  // no time has passed
  clock_.Advance(1.0);
  WritePsi(5);  // the counter began anew
  EXPECT_EQ(pressure.Read(), 0.0);
}

TEST_F(PressureTest, GarbageIsNoPressure) {
  Write("proc/self/cgroup", "garbage\n0::/job\n:\n");
  for (const std::string text : {"", "some", "throttled_usec", "throttled_usec x\n", "total=\n"}) {
    Write("sys/fs/cgroup/job/cpu.stat", text);
    Write("proc/pressure/cpu", text);
    Write("proc/stat", text);
    Pressure pressure(clock_, root_.path());
    clock_.Advance(1.0);
    EXPECT_EQ(pressure.Read(), 0.0) << text;
  }
  WritePsi(1);
  Pressure pressure(clock_, root_.path());
  std::filesystem::remove_all(root_.path() / "proc");
  clock_.Advance(1.0);
  EXPECT_EQ(pressure.Read(), 0.0);
}

}  // namespace
}  // namespace motley::run
