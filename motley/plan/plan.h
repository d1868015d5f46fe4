#ifndef MOTLEY_PLAN_PLAN_H_
#define MOTLEY_PLAN_PLAN_H_

#include <cstdint>
#include <string>
#include <vector>

namespace motley::plan {

// How many samples of a full batch a device gets; 0: it stays a member and waits.
struct Share {
  std::string device;
  std::int64_t samples = 0;
  bool operator==(const Share&) const = default;
};

// What the devices do from the next step boundary on. Plain data: it can be printed, compared and
// predicted from.
struct Plan {
  std::vector<Share> shares;  // their sum is the batch; a device that is missing has 0
  std::string reason;         // for people
  // Of one step; 0: nobody knows. Without the part of each device that a step may last.
  double predicted_seconds = 0.0;
  // When the devices cannot do the job's whole batch: what the learning rate is multiplied by.
  double learning_rate_factor = 1.0;
};

}  // namespace motley::plan

#endif  // MOTLEY_PLAN_PLAN_H_
