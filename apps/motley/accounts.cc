#include "apps/motley/accounts.h"

#include <algorithm>
#include <utility>

namespace motley::app {

void NoteBook::Take(const plan::Note& note, double time, std::int64_t step, std::uint64_t epoch) {
  nlohmann::json json = {{"message", note.message}, {"step", step}, {"epoch", epoch}};
  telemetry::Retune decision{.at_seconds = time, .step = step};
  bool kept = note.event == "decision";
  for (const auto& [key, value] : note.texts) {
    json[key] = value;
    if (key == "reason") decision.reason = value;
    if (key == "before") decision.before = value;
    if (key == "after") decision.after = value;
    if (key == "trial") kept = false;  // there may be thousands, and the shares are as before
  }
  for (const auto& [key, value] : note.numbers) json[key] = value;
  events_.Write(time, note.event, json);
  view_.Line(note.message);
  const std::lock_guard lock(mutex_);
  if (kept) decisions_.push_back(std::move(decision));
}

std::vector<telemetry::Retune> NoteBook::decisions() const {
  const std::lock_guard lock(mutex_);
  return decisions_;
}

void EstimateEnergy(const std::optional<plan::PowerProfile>& power, double busy_seconds,
                    double idle_seconds, telemetry::DeviceSummary& device) {
  device.energy_source = power ? "estimated" : "unknown";
  if (!power) return;
  const plan::Joules joules =
      plan::EstimateJoules(*power, busy_seconds, std::max(0.0, idle_seconds));
  device.joules_busy = joules.busy;
  device.joules_idle = joules.idle;
}

void SetShares(std::vector<telemetry::DeviceSummary>& devices) {
  std::int64_t samples = 0;
  for (const telemetry::DeviceSummary& device : devices) samples += device.samples;
  for (telemetry::DeviceSummary& device : devices) {
    device.share = static_cast<double>(device.samples) /
                   static_cast<double>(std::max<std::int64_t>(1, samples));
  }
}

}  // namespace motley::app
