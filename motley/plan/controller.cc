#include "motley/plan/controller.h"

#include <algorithm>
#include <limits>

namespace motley::plan {

double ComputeSpread(const StepDone& step) {
  double first = std::numeric_limits<double>::infinity(), last = 0.0;
  for (const StepDone::Part& part : step.parts) {
    if (part.samples <= 0) continue;
    first = std::min(first, part.compute_seconds);
    last = std::max(last, part.compute_seconds);
  }
  return last > 0.0 ? (last - first) / last : 0.0;
}

}  // namespace motley::plan
