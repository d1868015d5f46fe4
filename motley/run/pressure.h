#ifndef MOTLEY_RUN_PRESSURE_H_
#define MOTLEY_RUN_PRESSURE_H_

#include <filesystem>
#include <vector>

#include "motley/base/clock.h"

namespace motley::run {

// The kernel's own signs that somebody else has the processor: time for which this process's
// cgroup, or one above it, was throttled, for which runnable tasks waited (PSI), and which the
// hypervisor took (steal). They show a slow-down before the first slow step has ended.
//
// Thread safety: none.
class Pressure {
 public:
  // `root` is "/" but in tests. The clock outlives it.
  explicit Pressure(const base::Clock& clock, const std::filesystem::path& root = "/");

  // The part of the time since the last call, in [0, 1], that was lost; 0 where the kernel does not
  // tell, and at the first call.
  double Read();

 private:
  struct Counter {
    std::filesystem::path file;
    enum class Kind { kThrottledUsec, kThrottledNsec, kPsiTotal, kSteal } kind;
    double last = 0.0;  // seconds
  };
  // In seconds; negative when it cannot be read.
  static double Seconds(const Counter& counter);

  const base::Clock& clock_;
  double last_ = 0.0;
  std::vector<Counter> counters_;
};

}  // namespace motley::run

#endif  // MOTLEY_RUN_PRESSURE_H_
