#include "motley/energy/meter.h"

#include "motley/energy/hwmon.h"
#include "motley/energy/rapl.h"

namespace motley::energy {

base::Result<std::unique_ptr<Meter>> OpenMeter(const std::filesystem::path& sysfs,
                                               const base::Clock& clock) {
  auto rapl = OpenRapl(sysfs);
  if (rapl.ok()) return rapl;
  auto hwmon = OpenHwmon(sysfs, clock);
  if (hwmon.ok()) return hwmon;
  if (rapl.status().code() != base::Code::kNotFound) return rapl;
  if (hwmon.status().code() != base::Code::kNotFound) return hwmon;
  return base::NotFound("no energy meter: {}; {}", rapl.status().message(),
                        hwmon.status().message())
      .WithFix("set watts_idle and watts_busy of the device: its joules are then estimated");
}

}  // namespace motley::energy
