#ifndef MOTLEY_ENERGY_HWMON_H_
#define MOTLEY_ENERGY_HWMON_H_

#include <filesystem>
#include <memory>

#include "motley/base/clock.h"
#include "motley/base/status.h"
#include "motley/energy/meter.h"

namespace motley::energy {

// The energy and power sensors of <sysfs>/class/hwmon/hwmon*, summed over the chips.
//
// Of each chip the best kind of sensor is used: energyN_input, because a counter misses nothing
// between two readings; else powerN_average, because it has seen at least the time shortly before a
// reading; else powerN_input, a single moment. Power is integrated over `clock` by the trapezoid
// rule, so it is only as good as readings are frequent.
//
// What would be counted twice is left out: beside ACPI's "power_meter", which meters the whole
// machine, all other chips; beside the sockets of "amd_energy" its cores. A battery's sensor is
// left out too, because it shows charging as well. The sensors of other chips are taken to meter
// different things. A sensor that cannot be read at the start (a sleeping GPU) is left out.
//
// Fails with kNotFound where there is no such sensor, else like the first that cannot be read.
base::Result<std::unique_ptr<Meter>> OpenHwmon(const std::filesystem::path& sysfs,
                                               const base::Clock& clock);

}  // namespace motley::energy

#endif  // MOTLEY_ENERGY_HWMON_H_
