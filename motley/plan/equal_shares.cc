#include "motley/plan/equal_shares.h"

#include <algorithm>
#include <utility>

#include "motley/plan/shares.h"

namespace motley::plan {
namespace {

// Of each group: the first steps of a plan compile and fetch for the new shares.
constexpr std::size_t kUnseenSteps = 2, kSeenSteps = 10;

}  // namespace

std::optional<Plan> EqualShares::OnEvent(const Event& event) {
  if (const auto* step = std::get_if<StepDone>(&event)) Look(*step);
  std::string reason;
  if (const auto* joined = std::get_if<DeviceJoined>(&event)) {
    devices_.push_back(*joined);
    reason = joined->device + " joined";
  } else if (const auto* lost = std::get_if<DeviceLost>(&event)) {
    std::erase_if(devices_, [&](const auto& one) { return one.device == lost->device; });
    reason = lost->device + " lost: " + lost->reason;
  } else {
    if (std::holds_alternative<JobEnded>(event)) record_.End(Seen(), notes_);
    return std::nullopt;
  }
  record_.GiveUp(Seen(), notes_);
  return Decide(reason);
}

Plan EqualShares::Decide(const std::string& reason) {
  Plan plan{.shares = {}, .reason = reason};
  if (devices_.empty()) return plan;
  std::vector<std::string> words;
  for (std::size_t group = 0; group < Groups(); ++group) {
    std::vector<std::string> members;
    for (std::size_t i = group; i < devices_.size(); i += Groups()) {
      members.push_back(devices_[i].device);
    }
    const std::vector<std::int64_t> equal(members.size(), 1);
    const auto shares = Apportion(batch_, equal, multiple_);
    std::vector<std::string> of_group;
    for (std::size_t i = 0; i < members.size(); ++i) {
      of_group.push_back(fmt::format("{} {}", members[i], shares[i]));
      plan.shares.push_back({members[i], shares[i], static_cast<int>(group)});
    }
    words.push_back(fmt::format("{}", fmt::join(of_group, ", ")));
  }
  const std::string after = fmt::format("{}", fmt::join(words, " | "));
  const double seconds = PredictedSeconds(plan.shares);
  Note note{
      "decision",
      fmt::format("shares {}: {}", after, reason),
      {{"reason", reason}, {"after", after}},
      {{"decision", static_cast<double>(record_.Decide({.seconds = seconds, .joules = {}}))}}};
  if (seconds > 0.0) {
    note.message += fmt::format("; predicts {} per step", Milliseconds(seconds));
    note.numbers.emplace_back("predicted_step_seconds", seconds);
  }
  notes_.push_back(std::move(note));
  seconds_.clear();
  spreads_.clear();
  return plan;
}

PlanRecord::Seen EqualShares::Seen() const {
  return {seconds_, spreads_.empty() ? 0.0 : MedianOf(spreads_)};
}

std::size_t EqualShares::Groups() const {
  return std::min(static_cast<std::size_t>(groups_), devices_.size());
}

double EqualShares::PredictedSeconds(const std::vector<Share>& shares) const {
  if (Groups() > 1) return 0.0;
  double seconds = 0.0;
  for (std::size_t i = 0; i < devices_.size(); ++i) {
    const DeviceJoined& device = devices_[i];
    if (!device.curve) return 0.0;
    if (shares[i].samples == 0) continue;
    seconds = std::max(seconds, device.curve->At(shares[i].samples) + device.communication_seconds);
  }
  return seconds;
}

void EqualShares::Look(const StepDone& step) {
  record_.CountStep(notes_);
  const auto steps = static_cast<std::size_t>(record_.steps());
  if (record_.told() || steps <= kUnseenSteps * Groups() || !(step.seconds > 0.0)) return;
  seconds_.push_back(step.seconds);
  spreads_.push_back(ComputeSpread(step));
  if (seconds_.size() < kSeenSteps * Groups()) return;
  record_.Tell({seconds_, MedianOf(spreads_)}, notes_);
}

std::vector<Note> EqualShares::TakeNotes() { return std::exchange(notes_, {}); }

}  // namespace motley::plan
