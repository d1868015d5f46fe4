#include "motley/energy/hwmon.h"

#include <algorithm>
#include <string>
#include <vector>

#include "motley/energy/sysfs.h"

namespace motley::energy {
namespace {

namespace fs = std::filesystem;

struct Sensor {
  fs::path file;
  bool is_counter = false;  // of energy; else power
  double last = 0.0;        // joules or watts
};

// In joules or watts. Some sensors show small negative power when nothing flows.
base::Result<double> Read(const Sensor& sensor) {
  MOTLEY_ASSIGN_OR_RETURN(const std::int64_t micro, ReadNumber(sensor.file));
  return static_cast<double>(std::max<std::int64_t>(micro, 0)) * 1e-6;
}

class Hwmon final : public Meter {
 public:
  Hwmon(std::vector<Sensor> sensors, const base::Clock& clock)
      : sensors_(std::move(sensors)), clock_(clock), last_time_(clock.Now()) {}

  base::Result<double> Joules() override {
    // All before any is counted, so that a failure leaves the sum as it was.
    std::vector<double> values;
    for (const Sensor& each : sensors_) {
      MOTLEY_ASSIGN_OR_RETURN(const double value, Read(each));
      values.push_back(value);
    }
    const double now = clock_.Now(), seconds = now - last_time_;
    for (std::size_t i = 0; i < values.size(); ++i) {
      Sensor& each = sensors_[i];
      if (!each.is_counter) {
        joules_ += (each.last + values[i]) / 2 * seconds;
      } else {
        // Drivers count in 64 bits: one that went back was loaded anew and began at 0.
        joules_ += values[i] >= each.last ? values[i] - each.last : values[i];
      }
      each.last = values[i];
    }
    last_time_ = now;
    return joules_;
  }

  std::string_view source() const override { return "measured: hwmon"; }

 private:
  std::vector<Sensor> sensors_;
  const base::Clock& clock_;
  double last_time_;
  double joules_ = 0.0;
};

std::string NameOf(const fs::path& chip) {
  const auto name = ReadLine(chip / "name");
  return name.ok() ? *name : std::string();
}

// "energy3_input" -> "energy3_label"
bool IsSocket(const fs::path& counter) {
  const std::string file = counter.filename().string();
  const auto label = ReadLine(counter.parent_path() / (file.substr(0, file.find('_')) + "_label"));
  return label.ok() && label->starts_with("Esocket");
}

std::vector<Sensor> SensorsOf(const fs::path& chip) {
  std::vector<fs::path> counters = Numbered(chip, "energy", "_input");
  if (std::any_of(counters.begin(), counters.end(), IsSocket)) {
    std::erase_if(counters, [](const fs::path& file) { return !IsSocket(file); });
  }
  std::vector<Sensor> sensors;
  for (const fs::path& file : counters) sensors.push_back({.file = file, .is_counter = true});
  if (!sensors.empty()) return sensors;
  for (const char* kind : {"_average", "_input"}) {
    for (const fs::path& file : Numbered(chip, "power", kind)) sensors.push_back({.file = file});
    if (!sensors.empty()) break;
  }
  return sensors;
}

std::vector<Sensor> SensorsOfAll(std::vector<fs::path> chips) {
  std::erase_if(chips, [](const fs::path& chip) { return NameOf(chip).starts_with("BAT"); });
  const auto is_whole = [](const fs::path& chip) { return NameOf(chip) == "power_meter"; };
  if (std::any_of(chips.begin(), chips.end(), is_whole)) {
    std::erase_if(chips, [&](const fs::path& chip) { return !is_whole(chip); });
  }
  std::vector<Sensor> sensors;
  for (const fs::path& chip : chips) {
    for (Sensor& each : SensorsOf(chip)) sensors.push_back(std::move(each));
  }
  return sensors;
}

}  // namespace

base::Result<std::unique_ptr<Meter>> OpenHwmon(const fs::path& sysfs, const base::Clock& clock) {
  const fs::path folder = sysfs / "class" / "hwmon";
  base::Status failure = base::NotFound("no energy*_input, power*_average or power*_input in {}",
                                        (folder / "hwmon*").string());
  std::vector<Sensor> usable;
  bool first_failure = true;
  for (Sensor& each : SensorsOfAll(Numbered(folder, "hwmon", ""))) {
    auto value = Read(each);
    if (value.ok()) {
      each.last = *value;
      usable.push_back(std::move(each));
    } else if (first_failure) {
      failure = std::move(value).status();
      first_failure = false;
    }
  }
  if (usable.empty()) return failure;
  return std::unique_ptr<Meter>(std::make_unique<Hwmon>(std::move(usable), clock));
}

}  // namespace motley::energy
