#ifndef MOTLEY_PLAN_CONTROLLER_H_
#define MOTLEY_PLAN_CONTROLLER_H_

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "motley/plan/energy.h"
#include "motley/plan/plan.h"
#include "motley/plan/speed_curve.h"

namespace motley::plan {

// What happens to a job, as far as a plan may depend on it.
struct DeviceJoined {
  std::string device;
  std::optional<SpeedCurve> curve;     // none: it was not probed
  double communication_seconds = 0.0;  // of a step: gradient there, model back
  std::optional<PowerProfile> power;
  std::int64_t private_samples = 0;  // in an epoch
  bool can_host = false;             // others reach it: it may hold a range of the model
  bool here_only = false;            // but only those on its own machine
};
struct DeviceLost {
  std::string device;
  std::string reason;
};
// It goes on computing, and may hold no range of the model any more.
struct HostUnfit {
  std::string device;
  std::string reason;
};
// In the middle of a step: the part of the time, in [0, 1], in which the kernel has let it wait for
// a processor lately.
struct DevicePressed {
  std::string device;
  double pressure = 0.0;
};
struct StepDone {
  struct Part {
    std::string device;
    std::int64_t samples = 0;
    double compute_seconds = 0.0;
    // The part of the time, in [0, 1], in which the kernel let it wait for a processor since the
    // step before; 0 where that is not known.
    double pressure = 0.0;
    // From the beginning of the step to when its gradient was there, but for the computing: what it
    // needed for samples, model and gradient. Negative where that cannot be told from waiting for
    // others.
    double exchange_seconds = -1.0;
  };
  std::int64_t step = 0;
  int group = 0;
  std::int64_t staleness = 0;   // updates of others since the group read the model
  double seconds = 0.0;         // from beginning to end, all of it
  bool short_step = false;      // some stopped at their deadline
  std::optional<double> noise;  // the gradient noise scale, in samples, where it is known
  std::vector<Part> parts;
};
// There will be no further step: what came of the last decision can be told now or never.
struct JobEnded {};
// By how much the compute times of the step's devices differ: (slowest - fastest) / slowest. 0 with
// one device, or none.
double ComputeSpread(const StepDone& step);

using Event =
    std::variant<DeviceJoined, DeviceLost, HostUnfit, DevicePressed, StepDone, JobEnded>;

// Something that a controller wants to be remembered: a decision, or what came of one.
struct Note {
  std::string event;    // its name in the events: "decision", "outcome"
  std::string message;  // one sentence for people
  // For programs.
  std::vector<std::pair<std::string, std::string>> texts;
  std::vector<std::pair<std::string, double>> numbers;
};

// Events in, plans out: the whole interface between deciding and doing. A controller sees neither
// sockets nor threads, so the same one drives real and virtual clusters.
//
// Thread safety: none; an executor calls it from one thread, in the order of the events.
class Controller {
 public:
  virtual ~Controller() = default;
  // The plan from the next step boundary on; none: the one before stands.
  virtual std::optional<Plan> OnEvent(const Event& event) = 0;
  // What there is to remember since the last call.
  virtual std::vector<Note> TakeNotes() { return {}; }
};

}  // namespace motley::plan

#endif  // MOTLEY_PLAN_CONTROLLER_H_
