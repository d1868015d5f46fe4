#include "motley/tune/host_keeper.h"

#include <utility>

#include "motley/base/check.h"

namespace motley::tune {

HostKeeper::HostKeeper(std::unique_ptr<plan::Controller> planner, int shards)
    : planner_(std::move(planner)), ranges_(shards - 1) {
  MOTLEY_CHECK(shards > 1, "{} shards", shards);
}

std::optional<plan::Plan> HostKeeper::OnEvent(const plan::Event& event) {
  auto plan = planner_->OnEvent(event);
  const bool planned = plan.has_value();
  if (planned) plan_ = std::move(*plan);
  bool changed = false;
  if (const auto* joined = std::get_if<plan::DeviceJoined>(&event)) {
    if (joined->can_host) candidates_.push_back({joined->device, joined->communication_seconds});
    changed = joined->can_host && Choose(joined->device + " joined");
  } else if (const auto* lost = std::get_if<plan::DeviceLost>(&event)) {
    std::erase_if(candidates_, [&](const auto& one) { return one.device == lost->device; });
    changed = Choose(fmt::format("{} lost: {}", lost->device, lost->reason));
  }
  if (!planned && !changed) return std::nullopt;
  plan_.hosts = hosts_;
  return plan_;
}

bool HostKeeper::Choose(const std::string& reason) {
  std::vector<std::string> hosts = plan::ChooseHosts(candidates_, hosts_, ranges_);
  if (hosts == hosts_) return false;
  const std::string before = Words(hosts_), after = Words(hosts);
  hosts_ = std::move(hosts);
  if (before == after) return true;  // there was nobody, and still is not
  notes_.push_back(
      {"decision",
       fmt::format("{}: {}; the nearest by the network, who has a range keeps it", after, reason),
       {{"reason", reason}, {"before", before}, {"after", after}},
       {}});
  return true;
}

std::string HostKeeper::Words(const std::vector<std::string>& hosts) const {
  std::string words = "ranges of the model: coordinator";
  for (std::size_t i = 0; i < static_cast<std::size_t>(ranges_); ++i) {
    words += " | " + (i < hosts.size() && !hosts[i].empty() ? hosts[i] : "coordinator");
  }
  return words;
}

std::vector<plan::Note> HostKeeper::TakeNotes() {
  std::vector<plan::Note> notes = planner_->TakeNotes();
  std::move(notes_.begin(), notes_.end(), std::back_inserter(notes));
  notes_.clear();
  return notes;
}

}  // namespace motley::tune
