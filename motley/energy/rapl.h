#ifndef MOTLEY_ENERGY_RAPL_H_
#define MOTLEY_ENERGY_RAPL_H_

#include <filesystem>
#include <memory>

#include "motley/base/status.h"
#include "motley/energy/meter.h"

namespace motley::energy {

// The energy counters of the processors (Intel's RAPL, which AMD's have too) through powercap: the
// sum over the packages.
//
// Only whole packages are counted, <sysfs>/class/powercap/intel-rapl:N named "package-…". Their
// cores and graphics (intel-rapl:N:M) are parts of them; "psys", the whole platform, contains them;
// and intel-rapl-mmio is the same package by another way. So memory on its own rail, disks and fans
// are not in the figure.
//
// A counter wraps around after max_energy_range_uj, in 20 minutes or more; one wrap between two
// readings is accounted for.
//
// Fails with kNotFound where there is no package, and with kUnavailable and the remedy where the
// counter may be read by root only.
base::Result<std::unique_ptr<Meter>> OpenRapl(const std::filesystem::path& sysfs);

}  // namespace motley::energy

#endif  // MOTLEY_ENERGY_RAPL_H_
