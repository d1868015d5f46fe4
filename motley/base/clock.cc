#include "motley/base/clock.h"

#include <chrono>

namespace motley::base {

double RealClock::Now() const {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration<double>(now).count();
}

}  // namespace motley::base
