#include "motley/telemetry/summary.h"

#include "motley/base/file.h"
#include "motley/telemetry/events.h"

namespace motley::telemetry {
namespace {

using nlohmann::ordered_json;

ordered_json OrNull(const std::optional<double>& value) {
  return value ? ordered_json(*value) : ordered_json(nullptr);
}

}  // namespace

ordered_json ToJson(const Summary& summary) {
  ordered_json devices = ordered_json::array();
  for (const DeviceSummary& device : summary.devices) {
    devices.push_back({{"name", device.name},
                       {"kind", device.kind},
                       {"samples", device.samples},
                       {"share", device.share},
                       {"compute_seconds", device.compute_seconds},
                       {"wait_seconds", device.wait_seconds}});
  }
  const BytesSent& sent = summary.bytes_sent;
  ordered_json bytes_sent = {{"gradient", sent.gradient},         {"weights", sent.weights},
                             {"activations", sent.activations},   {"public_data", sent.public_data},
                             {"private_data", sent.private_data}, {"control", sent.control}};
  return {{"v", kFormatVersion},           {"version", summary.version},
          {"stop", summary.stop},          {"accuracy", OrNull(summary.accuracy)},
          {"loss", OrNull(summary.loss)},  {"epochs", summary.epochs},
          {"steps", summary.steps},        {"samples", summary.samples},
          {"seconds", summary.seconds},    {"samples_per_second", summary.samples_per_second},
          {"devices", std::move(devices)}, {"bytes_sent", std::move(bytes_sent)}};
}

base::Status WriteSummary(const std::filesystem::path& file, const Summary& summary) {
  const auto handler = ordered_json::error_handler_t::replace;
  return base::ReplaceFile(file, ToJson(summary).dump(2, ' ', false, handler) + "\n");
}

}  // namespace motley::telemetry
