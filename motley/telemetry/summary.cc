#include "motley/telemetry/summary.h"

#include <utility>

#include "motley/base/file.h"
#include "motley/telemetry/events.h"

namespace motley::telemetry {
namespace {

using nlohmann::ordered_json;

ordered_json OrNull(const std::optional<double>& value) {
  return value ? ordered_json(*value) : ordered_json(nullptr);
}

std::optional<double> JoulesOf(const DeviceSummary& device) {
  if (!device.joules_busy && !device.joules_idle) return std::nullopt;
  return device.joules_busy.value_or(0.0) + device.joules_idle.value_or(0.0);
}

std::optional<double> PerSample(const std::optional<double>& joules, std::int64_t samples) {
  if (!joules || samples == 0) return std::nullopt;
  return *joules / static_cast<double>(samples);
}

std::vector<std::pair<const char*, std::int64_t>> Classes(const BytesSent& sent) {
  return {{"gradient", sent.gradient},         {"weights", sent.weights},
          {"activations", sent.activations},   {"public_data", sent.public_data},
          {"private_data", sent.private_data}, {"control", sent.control}};
}

// So many bytes over one link, one after the other.
ordered_json Price(std::int64_t bytes, const Moving& moving) {
  const double gigabytes = 1e-9 * static_cast<double>(bytes);
  const bool stated = moving.bandwidth_gbit > 0.0;
  return {{"bytes", bytes},
          {"link_seconds",
           stated ? ordered_json(8.0 * gigabytes / moving.bandwidth_gbit) : ordered_json(nullptr)},
          {"joules", gigabytes * moving.joules_per_gigabyte}};
}

ordered_json MovingOf(const Summary& summary) {
  std::int64_t bytes = 0;
  ordered_json classes;
  for (const auto& [name, its] : Classes(summary.bytes_sent)) {
    bytes += its;
    classes[name] = Price(its, summary.moving);
  }
  ordered_json moving = Price(bytes, summary.moving);
  moving["seconds"] = summary.moving.seconds;
  moving["bandwidth_gbit"] = summary.moving.bandwidth_gbit;
  moving["joules_per_gigabyte"] = summary.moving.joules_per_gigabyte;
  moving["energy_source"] = "estimated";
  moving["classes"] = std::move(classes);
  moving["private_data_if_carried"] = Price(summary.moving.private_bytes, summary.moving);
  return moving;
}

}  // namespace

ordered_json ToJson(const Summary& summary) {
  ordered_json devices = ordered_json::array();
  std::optional<double> joules;
  std::string source = "unknown";
  for (const DeviceSummary& device : summary.devices) {
    devices.push_back({{"name", device.name},
                       {"kind", device.kind},
                       {"samples", device.samples},
                       {"share", device.share},
                       {"compute_seconds", device.compute_seconds},
                       {"wait_seconds", device.wait_seconds},
                       {"joules", OrNull(JoulesOf(device))},
                       {"joules_busy", OrNull(device.joules_busy)},
                       {"joules_idle", OrNull(device.joules_idle)},
                       {"joules_per_sample", OrNull(PerSample(JoulesOf(device), device.samples))},
                       {"energy_source", device.energy_source}});
    if (const auto its = JoulesOf(device)) {
      // The weakest source is that of the whole; a device without one is missing from it.
      if (!joules || device.energy_source == "estimated") source = device.energy_source;
      joules = joules.value_or(0.0) + *its;
    }
  }
  for (const DeviceSummary& device : summary.devices) {
    if (joules && !JoulesOf(device)) source = "incomplete: not all devices have a figure";
  }
  ordered_json bytes_sent;
  for (const auto& [name, bytes] : Classes(summary.bytes_sent)) bytes_sent[name] = bytes;
  ordered_json moving = MovingOf(summary);
  // What is moved is estimated, and so is a whole with a part of it.
  const std::optional<double> of_devices = joules;
  if (const double moved = moving.at("joules"); joules && moved > 0.0) {
    *joules += moved;
    if (source.starts_with("measured")) source = "estimated";
  }
  ordered_json retunes = ordered_json::array();
  for (const Retune& retune : summary.retunes) {
    retunes.push_back({{"at_seconds", retune.at_seconds},
                       {"step", retune.step},
                       {"reason", retune.reason},
                       {"before", retune.before},
                       {"after", retune.after}});
  }
  return {{"v", kFormatVersion},
          {"version", summary.version},
          {"stop", summary.stop},
          {"accuracy", OrNull(summary.accuracy)},
          {"loss", OrNull(summary.loss)},
          {"epochs", summary.epochs},
          {"steps", summary.steps},
          {"samples", summary.samples},
          {"seconds", summary.seconds},
          {"samples_per_second", summary.samples_per_second},
          {"joules", OrNull(joules)},
          {"joules_of_devices", OrNull(of_devices)},
          {"joules_per_sample", OrNull(PerSample(joules, summary.samples))},
          {"energy_source", source},
          {"moving", std::move(moving)},
          {"groups", summary.groups},
          {"staleness",
           {{"mean", summary.mean_staleness},
            {"histogram", summary.staleness},
            {"interval_seconds", summary.interval_seconds},
            {"interval_sigma", summary.interval_sigma},
            {"implied_momentum", summary.implied_momentum},
            {"coordinate_momentum", OrNull(summary.coordinate_momentum)}}},
          {"devices", std::move(devices)},
          {"bytes_sent", std::move(bytes_sent)},
          {"retunes", std::move(retunes)},
          {"unreachable_samples", summary.unreachable_samples}};
}

base::Status WriteSummary(const std::filesystem::path& file, const Summary& summary) {
  const auto handler = ordered_json::error_handler_t::replace;
  return base::ReplaceFile(file, ToJson(summary).dump(2, ' ', false, handler) + "\n");
}

}  // namespace motley::telemetry
