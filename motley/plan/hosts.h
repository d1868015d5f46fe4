#ifndef MOTLEY_PLAN_HOSTS_H_
#define MOTLEY_PLAN_HOSTS_H_

#include <string>
#include <vector>

namespace motley::plan {

// A device that may hold a range of the model.
struct HostCandidate {
  std::string device;
  double communication_seconds = 0.0;  // of a step: gradient there, model back
  bool here_only = false;              // only those on its own machine reach it
};

// Who holds the `ranges` ranges of the model after the first: one each, those that are nearest by
// the network, among equals who comes first. Who holds one already (`present`) keeps it, because a
// change moves the range and everybody's connections. Empty names where there are too few.
std::vector<std::string> ChooseHosts(const std::vector<HostCandidate>& candidates,
                                     const std::vector<std::string>& present, int ranges);

}  // namespace motley::plan

#endif  // MOTLEY_PLAN_HOSTS_H_
