#include "motley/plan/hosts.h"

#include <algorithm>

namespace motley::plan {

std::vector<std::string> ChooseHosts(const std::vector<HostCandidate>& candidates,
                                     const std::vector<std::string>& present, int ranges) {
  std::vector<std::string> hosts(static_cast<std::size_t>(ranges));
  const auto is_free = [&](const HostCandidate& candidate) {
    return std::find(hosts.begin(), hosts.end(), candidate.device) == hosts.end();
  };
  for (std::size_t i = 0; i < std::min(hosts.size(), present.size()); ++i) {
    for (const HostCandidate& candidate : candidates) {
      if (candidate.device == present[i] && is_free(candidate)) hosts[i] = present[i];
    }
  }
  std::vector<HostCandidate> nearest = candidates;
  std::stable_sort(nearest.begin(), nearest.end(), [](const auto& a, const auto& b) {
    return a.communication_seconds < b.communication_seconds;
  });
  for (std::string& host : hosts) {
    if (!host.empty()) continue;
    const auto next = std::find_if(nearest.begin(), nearest.end(), is_free);
    if (next != nearest.end()) host = next->device;
  }
  return hosts;
}

}  // namespace motley::plan
