#ifndef MOTLEY_PLAN_GROUPS_H_
#define MOTLEY_PLAN_GROUPS_H_

#include <cstdint>
#include <span>
#include <vector>

#include "motley/base/status.h"
#include "motley/plan/balance.h"

namespace motley::plan {

// Devices in groups, each of which computes whole batches.
struct Grouped {
  std::vector<int> group;            // of every candidate
  std::vector<std::int64_t> shares;  // of every candidate, of its group's batch
  std::vector<double> seconds;       // of a step, by group
  std::vector<std::int64_t> totals;  // samples of a step, by group; below the batch for small caps
};

// `groups` groups whose steps take as nearly the same time as we can make them: otherwise the
// updates of the slow ones are stale. A group may have one fast device and another ten slow ones.
//
// The fastest devices are dealt first, each to the group that has the least speed so far; then
// devices move, or are swapped, between the slowest group and others while that makes the slowest
// faster. Not always the optimum, which is as hard as partitioning; within some percent of it when
// no single device is as fast as a whole group. The same everywhere.
//
// Fails with kInvalidInput for a number of groups outside of 1 … devices, and like Balance.
base::Result<Grouped> FormGroups(std::int64_t batch, std::int64_t multiple, int groups,
                                 std::span<const Candidate> candidates);

// The shares inside of groups that stay as they are: `group` has one for every candidate, from 0
// without gaps.
base::Result<Grouped> BalanceGroups(std::int64_t batch, std::int64_t multiple,
                                    std::vector<int> group, std::span<const Candidate> candidates);

}  // namespace motley::plan

#endif  // MOTLEY_PLAN_GROUPS_H_
