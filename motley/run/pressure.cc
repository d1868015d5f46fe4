#include "motley/run/pressure.h"

#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <fstream>
#include <string>
#include <utility>

#include "motley/run/cgroup.h"

namespace motley::run {
namespace {

// "some avg10=… total=123" of a file of /proc/pressure.
double PsiTotal(const std::filesystem::path& file) {
  std::ifstream in(file);
  std::string line;
  if (!std::getline(in, line)) return -1.0;
  const std::size_t at = line.find("total=");
  double value = -1.0;
  if (at != std::string::npos) {
    std::from_chars(line.data() + at + 6, line.data() + line.size(), value);
  }
  return value;
}

// Ticks that the hypervisor took, all processors together.
double StealTicks(const std::filesystem::path& file) {
  std::ifstream in(file);
  std::string cpu;
  double ticks[8] = {};
  if (!(in >> cpu)) return -1.0;
  for (double& value : ticks) {
    if (!(in >> value)) return -1.0;
  }
  return ticks[7];
}

}  // namespace

Pressure::Pressure(const base::Clock& clock, const std::filesystem::path& root) : clock_(clock) {
  const auto add = [this](const std::filesystem::path& file, Counter::Kind kind) {
    Counter counter{file, kind};
    counter.last = Seconds(counter);
    if (counter.last >= 0.0) counters_.push_back(counter);
  };
  for (const std::filesystem::path& folder : CgroupFolders(root, "cpu")) {
    add(folder / "cpu.stat", Counter::Kind::kThrottledUsec);
    add(folder / "cpu.stat", Counter::Kind::kThrottledNsec);
  }
  add(root / "proc/pressure/cpu", Counter::Kind::kPsiTotal);
  add(root / "proc/stat", Counter::Kind::kSteal);
  last_ = clock_.Now();
}

double Pressure::Seconds(const Counter& counter) {
  switch (counter.kind) {
    case Counter::Kind::kThrottledUsec:
      return 1e-6 * CgroupField(counter.file, "throttled_usec");
    case Counter::Kind::kThrottledNsec:
      return 1e-9 * CgroupField(counter.file, "throttled_time");
    case Counter::Kind::kPsiTotal:
      return 1e-6 * PsiTotal(counter.file);
    case Counter::Kind::kSteal:
      return StealTicks(counter.file) / static_cast<double>(std::max(1L, ::sysconf(_SC_CLK_TCK))) /
             static_cast<double>(std::max(1L, ::sysconf(_SC_NPROCESSORS_ONLN)));
  }
  return -1.0;
}

double Pressure::Read() {
  const double now = clock_.Now();
  const double passed = now - std::exchange(last_, now);
  double lost = 0.0;
  for (Counter& counter : counters_) {
    const double seconds = Seconds(counter);
    if (seconds < 0.0) continue;
    lost = std::max(lost, seconds - std::exchange(counter.last, seconds));
  }
  return passed > 0.0 ? std::clamp(lost / passed, 0.0, 1.0) : 0.0;
}

}  // namespace motley::run
