#include "motley/run/memory.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <fstream>

#include "tests/run/linear.h"

namespace motley::run {
namespace {

// A tree of kernel files that the test writes.
class MemoryTest : public testing::Test {
 protected:
  void Write(const std::string& name, const std::string& text) const {
    const std::filesystem::path file = root_.path() / name;
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file) << text;
  }
  double Free() const { return FreeBytes(root_.path()); }

  ScratchFolder root_{"memory"};
};

TEST_F(MemoryTest, IsWithoutLimitWhereNobodySays) {
  EXPECT_TRUE(std::isinf(Free()));
  EXPECT_EQ(ResidentBytes(root_.path()), 0.0);
  Write("proc/self/cgroup", "garbage\n:\n0::/job\n");
  Write("sys/fs/cgroup/job/memory.max", "max\n");
  Write("proc/meminfo", "MemTotal: garbage\n");
  EXPECT_TRUE(std::isinf(Free()));
}

TEST_F(MemoryTest, IsWhatTheMachineHasWithoutACgroup) {
  Write("proc/meminfo", "MemTotal:  9000 kB\nMemAvailable:  1000 kB\nSwapTotal: 5 kB\n");
  EXPECT_EQ(Free(), 1024000.0);
}

TEST_F(MemoryTest, TheSmallestOfItsCgroupAndAllAboveCounts) {
  Write("proc/meminfo", "MemAvailable:  1000 kB\n");
  Write("proc/self/cgroup", "0::/slice/job/worker\n");
  Write("sys/fs/cgroup/slice/job/worker/memory.max", "900000\n");
  EXPECT_EQ(Free(), 900000.0);
  Write("sys/fs/cgroup/slice/memory.max", "500000\n");
  EXPECT_EQ(Free(), 500000.0);
  Write("sys/fs/cgroup/slice/job/memory.max", "700000\n");
  EXPECT_EQ(Free(), 500000.0);
  Write("sys/fs/cgroup/memory.max", "400000\n");
  EXPECT_EQ(Free(), 400000.0);
  Write("sys/fs/cgroup/other/memory.max", "1\n");
  EXPECT_EQ(Free(), 400000.0);
}

TEST_F(MemoryTest, ReadsTheFirstVersionOfCgroupsToo) {
  Write("proc/self/cgroup", "5:cpu:/elsewhere\n4:memory:/docker/abc\n0::/\n");
  Write("sys/fs/cgroup/memory/docker/abc/memory.limit_in_bytes", "9223372036854771712\n");
  Write("sys/fs/cgroup/memory/docker/memory.limit_in_bytes", "300000\n");
  Write("sys/fs/cgroup/cpu/elsewhere/memory.limit_in_bytes", "1\n");
  EXPECT_EQ(Free(), 300000.0);
}

TEST_F(MemoryTest, OthersOfTheCgroupTakeFromItButForWhatTheKernelWouldGiveUp) {
  Write("proc/self/cgroup", "4:memory:/v1\n0::/v2\n");
  Write("sys/fs/cgroup/v2/memory.max", "1000000\n");
  Write("sys/fs/cgroup/v2/memory.current", "700000\n");
  EXPECT_EQ(Free(), 300000.0);
  Write("sys/fs/cgroup/v2/memory.stat", "anon 1\ninactive_file 200000\n");
  EXPECT_EQ(Free(), 500000.0);
  Write("sys/fs/cgroup/memory/v1/memory.limit_in_bytes", "1000000\n");
  Write("sys/fs/cgroup/memory/v1/memory.usage_in_bytes", "900000\n");
  Write("sys/fs/cgroup/memory/v1/memory.stat", "inactive_file 1\ntotal_inactive_file 300000\n");
  EXPECT_EQ(Free(), 400000.0);
}

TEST_F(MemoryTest, ThisProcessIsInItsCgroupAndNothingIsNeverLess) {
  Write("proc/self/cgroup", "0::/job\n");
  Write("proc/self/statm", "900 10 3\n");
  const auto page = static_cast<double>(::sysconf(_SC_PAGESIZE));
  EXPECT_EQ(ResidentBytes(root_.path()), 10 * page);
  Write("sys/fs/cgroup/job/memory.max", fmt::format("{:.0f}\n", 25 * page));
  EXPECT_EQ(Free(), 15 * page);
  Write("sys/fs/cgroup/job/memory.max", fmt::format("{:.0f}\n", 5 * page));
  EXPECT_EQ(Free(), 0.0);
}

}  // namespace
}  // namespace motley::run
