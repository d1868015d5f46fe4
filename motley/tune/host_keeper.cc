#include "motley/tune/host_keeper.h"

#include <algorithm>
#include <utility>

#include "motley/base/check.h"

namespace motley::tune {

HostKeeper::HostKeeper(std::unique_ptr<plan::Controller> planner, int shards)
    : planner_(std::move(planner)), ranges_(shards - 1) {
  MOTLEY_CHECK(shards > 1, "{} shards", shards);
}

std::optional<plan::Plan> HostKeeper::OnEvent(const plan::Event& event) {
  const auto forget = [this](const std::string& device) {
    std::erase_if(candidates_, [&](const auto& one) { return one.device == device; });
  };
  const auto* unfit = std::get_if<plan::HostUnfit>(&event);
  auto plan = unfit == nullptr ? planner_->OnEvent(event) : std::nullopt;
  const bool planned = plan.has_value();
  if (planned) plan_ = std::move(*plan);
  bool changed = false;
  if (const auto* joined = std::get_if<plan::DeviceJoined>(&event)) {
    if (!joined->here_only) elsewhere_.push_back(joined->device);
    if (joined->can_host) {
      candidates_.push_back({joined->device, joined->communication_seconds, joined->here_only});
    }
    changed = !candidates_.empty() && Choose(joined->device + " joined");
  } else if (const auto* lost = std::get_if<plan::DeviceLost>(&event)) {
    forget(lost->device);
    std::erase(elsewhere_, lost->device);
    changed = Choose(fmt::format("{} lost: {}", lost->device, lost->reason));
  } else if (unfit != nullptr) {
    forget(unfit->device);
    changed = Choose(fmt::format("{} is unfit: {}", unfit->device, unfit->reason));
  }
  if (!planned && !changed) return std::nullopt;
  plan_.hosts = hosts_;
  return plan_;
}

bool HostKeeper::Choose(const std::string& reason) {
  std::vector<plan::HostCandidate> candidates = candidates_;
  if (!elsewhere_.empty()) {
    std::erase_if(candidates, [](const auto& one) { return one.here_only; });
  }
  std::vector<std::string> hosts = plan::ChooseHosts(candidates, hosts_, ranges_);
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
