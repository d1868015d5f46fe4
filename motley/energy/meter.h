#ifndef MOTLEY_ENERGY_METER_H_
#define MOTLEY_ENERGY_METER_H_

#include <filesystem>
#include <memory>
#include <string_view>

#include "motley/base/clock.h"
#include "motley/base/status.h"

namespace motley::energy {

// Counts the joules that this machine draws, as far as it has sensors. Whatever else runs on the
// machine is counted too.
//
// Counters wrap around and power is only known at the moments when it is read: call Joules() every
// few seconds, also when nobody wants to know.
//
// Thread safety: none.
class Meter {
 public:
  virtual ~Meter() = default;

  // Since the meter was opened; never less than before. Fails, naming the file, when a sensor has
  // vanished or cannot be read or understood. Nothing is lost by a failure: the next success
  // accounts for the time in between.
  virtual base::Result<double> Joules() = 0;

  // How the figure is obtained, as reports say it: "measured: rapl", "measured: hwmon".
  virtual std::string_view source() const = 0;
};

// The best meter below `sysfs` ("/sys"; tests have their own): RAPL, which counts in hardware and
// says what it counts, or else hwmon. RAPL that may not be read does not hide a usable hwmon, but
// is the reason given where there is none. Fails with kNotFound and what was looked for where there
// are no sensors at all, as in most virtual machines. `clock` must outlive the meter.
base::Result<std::unique_ptr<Meter>> OpenMeter(const std::filesystem::path& sysfs,
                                               const base::Clock& clock);

}  // namespace motley::energy

#endif  // MOTLEY_ENERGY_METER_H_
