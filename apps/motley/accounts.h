#ifndef MOTLEY_APPS_MOTLEY_ACCOUNTS_H_
#define MOTLEY_APPS_MOTLEY_ACCOUNTS_H_

#include <cstdint>
#include <mutex>
#include <optional>
#include <vector>

#include "apps/motley/progress.h"
#include "motley/plan/controller.h"
#include "motley/plan/energy.h"
#include "motley/telemetry/events.h"
#include "motley/telemetry/summary.h"

namespace motley::app {

// Passes on what a controller notes, to the events and to those who watch, and keeps the decisions
// for the summary, but for those that only try a device.
//
// Thread safety: all calls from any thread.
class NoteBook {
 public:
  NoteBook(ProgressView& view, telemetry::EventWriter& events) : view_(view), events_(events) {}
  void Take(const plan::Note& note, double time, std::int64_t step, std::uint64_t epoch);
  std::vector<telemetry::Retune> decisions() const;

 private:
  ProgressView& view_;
  telemetry::EventWriter& events_;
  mutable std::mutex mutex_;
  std::vector<telemetry::Retune> decisions_;
};

// The joules of a device by its profile; "unknown" without one.
void EstimateEnergy(const std::optional<plan::PowerProfile>& power, double busy_seconds,
                    double idle_seconds, telemetry::DeviceSummary& device);

// Sets each device's part of all samples.
void SetShares(std::vector<telemetry::DeviceSummary>& devices);

}  // namespace motley::app

#endif  // MOTLEY_APPS_MOTLEY_ACCOUNTS_H_
