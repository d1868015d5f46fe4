// How long a step may take: when members stop with what they have, and when they are sent away.
#include <algorithm>
#include <cmath>

#include "motley/cluster/coordinator_impl.h"

namespace motley::cluster {
namespace {

// A member that needs so many times what was planned stops and hands in what it has;
constexpr double kPatience = 5.0, kLeastDeadline = 0.25;
// where there is no such plan (its first steps, smaller ones, shares that do not follow speeds), so
// many times what its probe and its steps before let expect;
constexpr double kRoughPatience = 10.0, kLeastRough = 2.0;
constexpr std::int64_t kSettleSteps = 2;
// one that does not even do that, because it cannot stop or hardly moves, is sent away after so
// many times of this. It may come back, and is then probed anew.
constexpr double kHardPatience = 3.0, kGraceSeconds = 2.0;
// The weight of a step in a member's pace, and how much slower than that it counts at most: a
// single stall tells little of the next step.
constexpr double kNewest = 0.2, kSlowest = 2.0;
constexpr int kMostDoublings = 3;

}  // namespace

bool Coordinator::Impl::AsPlanned(int number, const Group& group) const {
  for (std::size_t i = 0; i < group.members.size(); ++i) {
    if (group.parts[i].samples() > 0 && group.members[i]->empty > 0) return false;
  }
  return plan_.predicted_seconds > 0.0 && group.steps_of_plan >= kSettleSteps &&
         SamplesOf(group.parts) == PlannedBatch(number);
}

double Coordinator::Impl::DeadlineOf(int number, const Group& group) const {
  if (group.hurried) return 0.0;
  if (AsPlanned(number, group)) {
    return std::max(kLeastDeadline, kPatience * plan_.predicted_seconds);
  }
  double longest = kRoughPatience * plan_.predicted_seconds;
  for (std::size_t i = 0; i < group.members.size(); ++i) {
    const Session& member = *group.members[i];
    const std::int64_t samples = group.parts[i].samples();
    if (samples == 0) continue;
    if (!member.curve) return 0.0;
    const double expected = member.pace * member.curve->At(samples);
    const double rough = std::max(kLeastRough, kRoughPatience * expected);
    longest = std::max(longest, std::ldexp(rough, member.empty));
  }
  return longest;
}

double Coordinator::Impl::LimitOf(int number, const Group& group, double deadline) const {
  if (deadline <= 0.0) return LongestStep();
  // What a step needs beyond computing (samples that are fetched, a slow network) is in the usual.
  const double limit =
      kHardPatience * std::max(deadline, kPatience * usual_seconds_) + kGraceSeconds;
  if (AsPlanned(number, group)) return limit;
  // The samples of somebody's first step may be on their way for long.
  for (std::size_t i = 0; i < group.members.size(); ++i) {
    if (group.parts[i].samples() > 0 && group.members[i]->samples == 0) return LongestStep();
  }
  return std::min(limit, LongestStep());
}

void Coordinator::Impl::Learn(Session& member, const Group& group, double now) {
  const proto::Done& done = *member.done;
  if (done.samples() == 0) {
    member.empty = std::min(member.empty + 1, kMostDoublings);
    return;
  }
  // It may say what it likes, but not more than there was.
  const double seconds = std::min(done.compute_seconds(), now - group.began);
  if (!(seconds > 0.0)) return;
  if (member.empty > 0 && 2.0 * seconds < group.deadline) --member.empty;
  if (!member.curve) {
    member.curve =
        plan::SpeedCurve{.seconds_per_sample = seconds / static_cast<double>(done.samples())};
  }
  const double seen = seconds / member.curve->At(done.samples());
  member.pace += kNewest * (std::min(seen, kSlowest * member.pace) - member.pace);
}

double Coordinator::Impl::LongestStep() const {
  return std::max(options_.step_seconds, 20.0 * usual_seconds_);
}

double Coordinator::Impl::LongestTest(const std::vector<std::int64_t>& shares) const {
  // Nobody knows how long it takes for the first time, when the samples may have to come first; a
  // member is alive as long as it says so.
  constexpr double kFirstSeconds = 3600.0;
  double longest = LongestStep();
  for (std::size_t i = 0; i < members_.size(); ++i) {
    if (shares[i] == 0) continue;
    const double usual = members_[i]->tested * static_cast<double>(shares[i]);
    longest = std::max(longest, usual > 0.0 ? LongestStep() + 20.0 * usual : kFirstSeconds);
  }
  return longest;
}

}  // namespace motley::cluster
