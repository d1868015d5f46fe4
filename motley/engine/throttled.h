#ifndef MOTLEY_ENGINE_THROTTLED_H_
#define MOTLEY_ENGINE_THROTTLED_H_

#include <memory>
#include <vector>

#include "motley/base/clock.h"
#include "motley/engine/device.h"

namespace motley::engine {

// From `begin` to `end`, in seconds of the clock, a device has 1/factor of its speed.
struct Slowdown {
  double begin = 0.0, end = 0.0;
  double factor = 1.0;
};

// How fast an emulated device is, and when.
struct Pace {
  double speed = 1.0;  // of the real device, in (0, 1]
  std::vector<Slowdown> slowdowns;

  // When work that takes the real device `work` seconds is done, if it begins at `begin`.
  double FinishTime(double begin, double work) const;
  // How much of the real device's work can be done in that time.
  double WorkWithin(double begin, double end) const;
};

// A slower device than `device`, in real time: sleeps again and again during a training step, if
// the device pauses(), so that what happens on the machine meets the slower one for as long as it
// would work; else in the end, for the rest of the time. The work counts in seconds of the processor
// where the device can tell them, so that several emulated devices which share a machine do not
// slow each other down as long as the machine has time for all.
//
// Gradients are announced at the end. At a deadline it returns what the slower device would have
// finished.
std::unique_ptr<Device> MakeThrottled(std::unique_ptr<Device> device, Pace pace, int threads,
                                      const base::Clock& clock);

}  // namespace motley::engine

#endif  // MOTLEY_ENGINE_THROTTLED_H_
