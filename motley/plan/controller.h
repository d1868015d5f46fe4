#ifndef MOTLEY_PLAN_CONTROLLER_H_
#define MOTLEY_PLAN_CONTROLLER_H_

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "motley/plan/plan.h"

namespace motley::plan {

// What happens to a job, as far as a plan may depend on it.
struct DeviceJoined {
  std::string device;
};
struct DeviceLost {
  std::string device;
  std::string reason;
};
struct StepDone {
  struct Part {
    std::string device;
    std::int64_t samples = 0;
    double compute_seconds = 0.0;
  };
  std::int64_t step = 0;
  std::vector<Part> parts;
};
using Event = std::variant<DeviceJoined, DeviceLost, StepDone>;

// Events in, plans out: the whole interface between deciding and doing. A controller sees neither
// sockets nor threads, so the same one drives real and virtual clusters.
//
// Thread safety: none; an executor calls it from one thread, in the order of the events.
class Controller {
 public:
  virtual ~Controller() = default;
  // The plan from the next step boundary on; none: the one before stands.
  virtual std::optional<Plan> OnEvent(const Event& event) = 0;
};

}  // namespace motley::plan

#endif  // MOTLEY_PLAN_CONTROLLER_H_
