#ifndef MOTLEY_SIM_TIMELINE_H_
#define MOTLEY_SIM_TIMELINE_H_

#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <queue>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include "motley/engine/throttled.h"
#include "motley/plan/speed_curve.h"
#include "motley/sim/service.h"

namespace motley::sim {

// A device as far as time depends on it.
struct TimedDevice {
  plan::SpeedCurve curve;  // at full speed
  engine::Pace pace;
  Service service;
  double bytes_per_second = std::numeric_limits<double>::infinity();  // of its link
  double fails_at = std::numeric_limits<double>::infinity();
};

// When the updates of groups happen: a discrete-event model without any gradient.
//
// The step of a group:
//   the model comes over the server's link      (first come, first served)
//   every member computes its samples           (its curve, service and pace); the last one counts
//   the members sum their gradients in a ring   (2 (n - 1) / n of the model, 2 (n - 1) latencies)
//   the sum goes over the server's link         (first come, first served)
//   the server updates the model                (first come, first served; with max_staleness those
//                                                that would make others too stale stand back)
// A group that is alone has the model with its members: no server, no server's link. A group that
// has just updated the model reads it at that instant, so the staleness of an update is the number
// of other updates between the two.
//
// Each resource serves in the order of arrival and keeps that order, so one heap of arrivals
// decides everything: a step costs O(members + log groups).
//
// Thread safety: none.
class Timeline {
 public:
  struct Options {
    std::vector<TimedDevice> devices;
    double latency_seconds = 0.0;
    double model_bytes = 0.0;                                                  // one way
    double server_seconds = 0.0;                                               // for one update
    double server_bytes_per_second = std::numeric_limits<double>::infinity();  // each way
    // No update is staler, as long as at most one group more than this is under way; 0: no bound.
    std::int64_t max_staleness = 0;
    std::uint64_t seed = 1;
  };
  struct Work {
    std::size_t device = 0;
    std::int64_t samples = 0;  // > 0
  };
  // What happens next.
  struct Event {
    int group = 0;  // whose update it is, or whose step is lost with the device; -1: nobody's
    double begin = 0.0, computed = 0.0, end = 0.0;
    std::int64_t staleness = 0;
    std::vector<double> compute_seconds;  // by work
    std::optional<std::size_t> lost;      // instead of an update: this device has failed at `end`
  };

  explicit Timeline(Options options);

  // The group reads the model at `now` and begins a step. Requires work, that neither the group nor
  // a device of it is in a step, and that `now` is not before the last event nor the last `now`.
  void Begin(int group, double now, std::span<const Work> work, bool alone);

  // The next update, or the next failure of a device if that is sooner; none when nothing is under
  // way. Failures are told only while something is.
  std::optional<Event> Next();
  // The group of the next update as things stand.
  std::optional<int> NextGroup() const;

  // Of the sum over these devices.
  double ReductionSeconds(std::span<const std::size_t> members) const;
  // Of one way between a device and the server, if nobody else uses the server.
  double ServerLinkSeconds(std::size_t device) const;

 private:
  struct Step {
    bool under_way = false;
    double begin = 0.0, computed = 0.0;
    std::int64_t read = 0;  // updates before it
    bool alone = false;
    std::vector<double> compute_seconds;
    std::vector<std::size_t> members;
  };
  // What the slowest link among the members adds to the server's own.
  double OwnLinkSeconds(std::span<const std::size_t> members) const;
  std::optional<Event> TakeFailure(double before);
  // Whether the group's update makes no other one too stale.
  bool MayUpdate(int group) const;
  Event Update(int group, double end);

  const Options options_;
  const double link_seconds_;                // of the model on the server's link
  std::vector<double> own_link_seconds_;     // of the model, by device
  std::vector<std::uint64_t> keys_, draws_;  // by device
  std::vector<int> group_of_;                // by device; -1: in no step
  std::vector<Step> steps_;                  // by group
  // When a sum is complete, or has reached the server's link.
  std::priority_queue<std::pair<double, int>, std::vector<std::pair<double, int>>, std::greater<>>
      arrivals_;
  std::vector<std::pair<double, int>> held_;  // at the server until they may update, in order
  std::set<std::pair<std::int64_t, int>> under_way_;      // the read of each group, and its number
  std::vector<std::pair<double, std::size_t>> failures_;  // still to come, the last one first
  double out_free_ = 0.0, in_free_ = 0.0, server_free_ = 0.0;
  double last_event_ = 0.0;
  std::int64_t updates_ = 0;
};

}  // namespace motley::sim

#endif  // MOTLEY_SIM_TIMELINE_H_
