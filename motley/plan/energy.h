#ifndef MOTLEY_PLAN_ENERGY_H_
#define MOTLEY_PLAN_ENERGY_H_

namespace motley::plan {

// What a device draws, from its data sheet or a plug meter: the job file's watts_idle, watts_busy.
struct PowerProfile {
  double watts_idle = 0.0;
  double watts_busy = 0.0;
};

struct Joules {
  double busy = 0.0;
  double idle = 0.0;
  double total() const { return busy + idle; }
};

// The model for devices without a meter: busy watts while it computes, idle watts while it waits.
// Figures made of it are "estimated", never "measured".
constexpr Joules EstimateJoules(const PowerProfile& profile, double busy_seconds,
                                double idle_seconds) {
  return {.busy = profile.watts_busy * busy_seconds, .idle = profile.watts_idle * idle_seconds};
}

}  // namespace motley::plan

#endif  // MOTLEY_PLAN_ENERGY_H_
