#ifndef MOTLEY_PLAN_SPEED_CURVE_H_
#define MOTLEY_PLAN_SPEED_CURVE_H_

#include <cstdint>
#include <limits>
#include <span>

#include "motley/base/status.h"

namespace motley::plan {

inline constexpr std::int64_t kNoCap = std::numeric_limits<std::int64_t>::max();

// How long one device needs for b samples: a + c * b seconds.
//
// Two numbers per device are all that the planner and the virtual cluster need, and both stay
// readable in a plan. The residual is kept, because caches and memory make real curves bend.
struct SpeedCurve {
  double fixed_seconds = 0.0;       // a >= 0: what a step costs however few its samples
  double seconds_per_sample = 0.0;  // c > 0
  double residual = 0.0;            // the largest |fit - measured| / measured of any batch size
  std::int64_t cap = kNoCap;        // samples that fit into the device's memory

  // Seconds for `samples`; 0 for none, because a device without work does not step.
  double At(std::int64_t samples) const;
};

struct Timing {
  std::int64_t samples = 0;
  double seconds = 0.0;
};

// The curve through measured steps, in any order. Other programs can only make a step slower, so
// several timings of one size count as their lower quartile, and a line that up to half of the
// sizes may miss (Siegel's repeated median) goes through these. A line that would start below 0
// goes through 0 instead. Times that hardly depend on the size get a slope that is just visible.
//
// Fails with kUnavailable until two different sizes were measured: a guess here would silently skew
// every share built on it. Fails with kInvalidInput when more samples took clearly less time, or
// when a timing is not positive. The cap is not measured: the caller sets it.
base::Result<SpeedCurve> FitCurve(std::span<const Timing> timings);

}  // namespace motley::plan

#endif  // MOTLEY_PLAN_SPEED_CURVE_H_
