#include "motley/plan/update_time.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "motley/base/check.h"

namespace motley::plan {
namespace {

// Seconds per update of `groups` equal ones: the exact recursion over the number of customers.
double ExactSeconds(std::size_t groups, double away, std::span<const double> stations) {
  std::vector<double> queue(stations.size());
  double throughput = 0.0;
  for (std::size_t n = 1; n <= groups; ++n) {
    double round = away;
    std::vector<double> stay(stations.size());
    for (std::size_t k = 0; k < stations.size(); ++k) {
      stay[k] = stations[k] * (1.0 + queue[k]);
      round += stay[k];
    }
    throughput = static_cast<double>(n) / round;
    for (std::size_t k = 0; k < stations.size(); ++k) queue[k] = throughput * stay[k];
  }
  return 1.0 / throughput;
}

// Bard and Schweitzer, for classes of one customer each: who arrives finds the others as they are
// on the average.
double ApproximateSeconds(std::span<const double> away, std::span<const double> stations) {
  const std::size_t groups = away.size(), count = stations.size();
  std::vector<double> part(groups * count), total(count);  // of a group at a station: its queue
  double before = 0.0, rate = 0.0;
  constexpr int kMostRounds = 1000;
  for (int round = 0; round < kMostRounds; ++round) {
    rate = 0.0;
    for (std::size_t r = 0; r < groups; ++r) {
      double seconds = away[r];
      std::vector<double> stay(count);
      for (std::size_t k = 0; k < count; ++k) {
        stay[k] = stations[k] * (1.0 + total[k] - part[r * count + k]);
        seconds += stay[k];
      }
      for (std::size_t k = 0; k < count; ++k) {
        const double queue = stay[k] / seconds;
        total[k] += queue - part[r * count + k];
        part[r * count + k] = queue;
      }
      rate += 1.0 / seconds;
    }
    if (std::abs(rate - before) <= 1e-12 * rate) break;
    before = rate;
  }
  return 1.0 / rate;
}

}  // namespace

double ClosedFormSeconds(const UpdateCosts& costs, int devices, int groups) {
  MOTLEY_CHECK(groups >= 1 && groups <= devices, "{} groups of {} devices", groups, devices);
  const double g = groups, k = static_cast<double>(devices) / g;
  const double step = std::max(costs.compute_seconds / k, costs.network_seconds * k);
  return std::max(costs.server_seconds, (step + costs.server_seconds) / g);
}

int SaturatingGroups(const UpdateCosts& costs, int devices) {
  for (int groups = 1; groups < devices; ++groups) {
    if (ClosedFormSeconds(costs, devices, groups) <= costs.server_seconds) return groups;
  }
  return devices;
}

UpdateCosts WithHeadOnDevices(const HeadCosts& head) {
  const double bytes = head.body_bytes + head.head_bytes;
  return {.compute_seconds = head.body_seconds + head.head_seconds,
          .network_seconds = 2.0 * bytes / head.bytes_per_second,
          .server_seconds = bytes * head.update_seconds_per_byte};
}

UpdateCosts WithMergedHead(const HeadCosts& head, double group_size) {
  MOTLEY_CHECK(group_size >= 1.0, "a group of {}", group_size);
  const double activations = head.activation_bytes / group_size;
  return {.compute_seconds = head.body_seconds,
          .network_seconds = 2.0 * (head.body_bytes + activations) / head.bytes_per_second,
          .server_seconds = head.server_head_seconds +
                            (head.body_bytes + head.head_bytes) * head.update_seconds_per_byte};
}

double QueueingSeconds(std::span<const double> away_seconds,
                       std::span<const double> station_seconds) {
  MOTLEY_CHECK(!away_seconds.empty(), "no group");
  const double first = away_seconds.front();
  const bool equal = std::all_of(away_seconds.begin(), away_seconds.end(),
                                 [first](double away) { return away == first; });
  return equal ? ExactSeconds(away_seconds.size(), first, station_seconds)
               : ApproximateSeconds(away_seconds, station_seconds);
}

}  // namespace motley::plan
