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
  const std::vector<std::int64_t> equal(devices_.size(), 1);
  const auto shares = Apportion(batch_, equal, multiple_);
  for (std::size_t i = 0; i < devices_.size(); ++i) {
    plan.shares.push_back({devices_[i], shares[i]});
  }
  std::vector<std::string> words;
  for (const Share& share : plan.shares) {
    words.push_back(fmt::format("{} {}", share.device, share.samples));
  }
  const std::string after = fmt::format("{}", fmt::join(words, ", "));
  notes_.push_back({"decision",
                    fmt::format("shares {}: {}", after, plan.reason),
                    {{"reason", plan.reason}, {"after", after}},
                    {}});
  return plan;
}

std::vector<Note> EqualShares::TakeNotes() { return std::exchange(notes_, {}); }

}  // namespace motley::plan
