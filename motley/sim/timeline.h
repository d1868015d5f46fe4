#ifndef MOTLEY_SIM_TIMELINE_H_
#define MOTLEY_SIM_TIMELINE_H_

#include <compare>
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
// With a merged head the model is the body, and in the middle of the members' computing, after
// their forward pass, also of a group that is alone,
//   the activations of all members go over the server's link, to the head
//   the head computes them                      (its curve)
//   their gradients come back over the server's link
// each first come, first served.
//
// One heap of what is due next decides everything: a step costs O(members + log groups).
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
    struct Head {
      plan::SpeedCurve curve;     // of the server, for a group's batch
      double sample_bytes = 0.0;  // of what one sample's body puts out, one way
      double forward_part = 0.0;  // of the members' seconds
    };
    std::optional<Head> head;  // merged: the members compute what is before it
  };
  struct Work {
    std::size_t device = 0;
    std::int64_t samples = 0;  // > 0
  };
  // What happens next.
  struct Event {
    int group = 0;  // whose update it is, or whose step is lost with the device; -1: nobody's
    // `computed`: when the members had, but for the time in which all waited for the head.
    double begin = 0.0, computed = 0.0, end = 0.0;
    std::int64_t staleness = 0;
    std::vector<double> compute_seconds;  // by work
    std::optional<std::size_t> lost;      // instead of an update: this device has failed at `end`
    bool head = false;  // instead of an update: the merged head has computed the group's batch
  };

  explicit Timeline(Options options);

  // The group reads the model at `now` and begins a step. Requires work, that neither the group nor
  // a device of it is in a step, and that `now` is not before the last event nor the last `now`.
  void Begin(int group, double now, std::span<const Work> work, bool alone);

  // The next update, pass of the merged head, or failure of a device, in the order of time; none
  // when nothing is under way. Failures are told only while something is.
  std::optional<Event> Next();
  // The group that is probably the next one to update.
  std::optional<int> NextGroup() const;

  // Of the sum over these devices.
  double ReductionSeconds(std::span<const std::size_t> members) const;
  // Of one way between a device and the server, if nobody else uses the server.
  double ServerLinkSeconds(std::size_t device) const;
  // From the end of the forward pass until the gradients are back, likewise. Requires a head.
  double HeadSeconds(std::span<const Work> work) const;

 private:
  struct Step {
    bool under_way = false;
    double begin = 0.0, computed = 0.0;
    std::int64_t read = 0;  // updates before it
    bool alone = false, admitted = false;
    std::vector<double> compute_seconds;
    std::vector<std::size_t> members;
    // With a merged head: for the group's samples, and of each member what is left after it.
    double head_seconds = 0.0, crossing_seconds = 0.0, own_crossing_seconds = 0.0;
    double waited = 0.0;
    std::vector<double> backward_seconds;
  };
  // What has happened when it is due. At the same time, what ends a step comes first.
  enum class Phase {
    kUpdated,
    kReceived,     // the sum, by the server
    kSum,          // has reached the server's link
    kHead,         // has computed
    kActivations,  // have reached the server's link
  };
  struct Due {
    double time = 0.0;
    Phase phase = Phase::kUpdated;
    std::int64_t turn = 0;  // at the same time: of an update as admitted, otherwise the group
    int group = 0;
    auto operator<=>(const Due&) const = default;
  };
  // What the slowest link among the members adds to the server's own.
  double OwnLinkSeconds(std::span<const std::size_t> members) const;
  // Of what crosses to the head, one way: on the server's link, and what the slowest adds.
  std::pair<double, double> CrossingSeconds(std::span<const Work> work) const;
  // The members compute the whole net, or before and after the head's pass.
  void Compute(Step& step, int group, double start, std::span<const Work> work);
  void ComputeBackward(Step& step, int group, double now);
  void SendSum(const Step& step, int group);
  void Expect(double time, Phase phase, int group) { due_.push({time, phase, group, group}); }
  std::optional<Event> TakeFailure(double before);
  // Whether the group's update makes no other one too stale.
  bool MayUpdate(int group) const;
  // The group's turn at the server is fixed.
  void Admit(int group, double now);
  void AdmitHeld(double now);
  Event Update(int group, double end);

  const Options options_;
  const double link_seconds_;                // of the model on the server's link
  std::vector<double> own_link_seconds_;     // of the model, by device
  std::vector<std::uint64_t> keys_, draws_;  // by device
  std::vector<int> group_of_;                // by device; -1: in no step
  std::vector<Step> steps_;                  // by group
  std::priority_queue<Due, std::vector<Due>, std::greater<>> due_;
  std::vector<int> held_;  // at the server until they may update, in order
  // The read of each group that is not admitted yet, and its number.
  std::set<std::pair<std::int64_t, int>> under_way_;
  std::vector<std::pair<double, std::size_t>> failures_;  // still to come, the last one first
  double out_free_ = 0.0, in_free_ = 0.0, head_free_ = 0.0, server_free_ = 0.0;
  std::int64_t updates_ = 0, admitted_ = 0;  // so far; of these, some are still to come
  std::int64_t turns_ = 0;                   // likewise, with those that were given up
};

}  // namespace motley::sim

#endif  // MOTLEY_SIM_TIMELINE_H_
