#ifndef MOTLEY_PLAN_PLAN_H_
#define MOTLEY_PLAN_PLAN_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "motley/plan/speed_curve.h"

namespace motley::plan {

// How many samples of a full batch a device gets; 0: it stays a member and waits.
struct Share {
  std::string device;
  std::int64_t samples = 0;
  // Devices of one group make a step together; groups do not wait for each other.
  int group = 0;
  std::int64_t most = kNoCap;  // that its memory holds, whatever its private samples demand
  bool operator==(const Share&) const = default;
};

// What the devices do from the next step boundary on. Plain data: it can be printed, compared and
// predicted from.
struct Plan {
  // In each group their sum is the batch. A device that is missing has 0. Groups are numbered from
  // 0 without gaps.
  std::vector<Share> shares;
  std::string reason;  // for people
  // Of one step; 0: nobody knows. Without the part of each device that a step may last.
  double predicted_seconds = 0.0;
  // When the devices cannot do the job's whole batch: what the learning rate is multiplied by.
  double learning_rate_factor = 1.0;
  // Instead of the job's, to make up for the momentum that asynchrony brings; may be negative.
  std::optional<double> momentum;
  // Who holds the ranges of the model after the first, which the coordinator has; empty, or none:
  // the coordinator holds that one as well.
  std::vector<std::string> hosts;
};

}  // namespace motley::plan

#endif  // MOTLEY_PLAN_PLAN_H_
