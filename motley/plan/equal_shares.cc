#include "motley/plan/equal_shares.h"

#include <algorithm>
#include <utility>

#include "motley/plan/shares.h"

namespace motley::plan {

std::optional<Plan> EqualShares::OnEvent(const Event& event) {
  Plan plan;
  if (const auto* joined = std::get_if<DeviceJoined>(&event)) {
    devices_.push_back(joined->device);
    plan.reason = joined->device + " joined";
  } else if (const auto* lost = std::get_if<DeviceLost>(&event)) {
    std::erase(devices_, lost->device);
    plan.reason = lost->device + " lost: " + lost->reason;
  } else {
    return std::nullopt;
  }
  if (devices_.empty()) return plan;
  const std::size_t groups = std::min(static_cast<std::size_t>(groups_), devices_.size());
  std::vector<std::string> words;
  for (std::size_t group = 0; group < groups; ++group) {
    std::vector<std::string> members;
    for (std::size_t i = group; i < devices_.size(); i += groups) members.push_back(devices_[i]);
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
  notes_.push_back({"decision",
                    fmt::format("shares {}: {}", after, plan.reason),
                    {{"reason", plan.reason}, {"after", after}},
                    {}});
  return plan;
}

std::vector<Note> EqualShares::TakeNotes() { return std::exchange(notes_, {}); }

}  // namespace motley::plan
