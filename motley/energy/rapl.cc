#include "motley/energy/rapl.h"

#include <cstdint>
#include <vector>

#include "motley/energy/sysfs.h"

namespace motley::energy {
namespace {

struct Package {
  std::filesystem::path counter;
  std::int64_t range = 0;  // the largest value, in microjoules
  std::int64_t last = 0;   // the value counted so far
};

base::Result<std::int64_t> ReadCounter(const Package& package) {
  MOTLEY_ASSIGN_OR_RETURN(const std::int64_t value, ReadNumber(package.counter));
  if (value >= 0 && value <= package.range) return value;
  return base::InvalidInput("{}: {} is not between 0 and max_energy_range_uj, {}",
                            package.counter.string(), value, package.range);
}

class Rapl final : public Meter {
 public:
  explicit Rapl(std::vector<Package> packages) : packages_(std::move(packages)) {}

  base::Result<double> Joules() override {
    // All before any is counted, so that a failure leaves the sum as it was.
    std::vector<std::int64_t> values;
    for (const Package& each : packages_) {
      MOTLEY_ASSIGN_OR_RETURN(const std::int64_t value, ReadCounter(each));
      values.push_back(value);
    }
    for (std::size_t i = 0; i < values.size(); ++i) {
      Package& each = packages_[i];
      const std::int64_t more = values[i] - each.last;
      microjoules_ += more >= 0 ? more : more + each.range;
      each.last = values[i];
    }
    return static_cast<double>(microjoules_) * 1e-6;
  }

  std::string_view source() const override { return "measured: rapl"; }

 private:
  std::vector<Package> packages_;
  std::int64_t microjoules_ = 0;
};

}  // namespace

base::Result<std::unique_ptr<Meter>> OpenRapl(const std::filesystem::path& sysfs) {
  const std::filesystem::path folder = sysfs / "class" / "powercap";
  std::vector<Package> packages;
  for (const auto& zone : Numbered(folder, "intel-rapl:", "")) {
    MOTLEY_ASSIGN_OR_RETURN(const std::string name, ReadLine(zone / "name"));
    if (!name.starts_with("package")) continue;
    Package package{.counter = zone / "energy_uj"};
    MOTLEY_ASSIGN_OR_RETURN(package.range, ReadNumber(zone / "max_energy_range_uj"));
    MOTLEY_ASSIGN_OR_RETURN(package.last, ReadCounter(package));
    packages.push_back(std::move(package));
  }
  if (packages.empty()) {
    return base::NotFound("no package in {}", (folder / "intel-rapl:*").string());
  }
  return std::unique_ptr<Meter>(std::make_unique<Rapl>(std::move(packages)));
}

}  // namespace motley::energy
