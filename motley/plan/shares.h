#ifndef MOTLEY_PLAN_SHARES_H_
#define MOTLEY_PLAN_SHARES_H_

#include <cstdint>
#include <span>
#include <vector>

namespace motley::plan {

// `total` samples in the proportions of `weights`, in multiples of `multiple` (train.bn_batch; 1
// otherwise), but for one share that also takes the rest of a total which is no multiple. Sums to
// the total exactly; a weight of 0 gets nothing. Largest remainder, ties to the earlier one: the
// same everywhere. Requires weights that are not negative and not all 0, and multiple > 0.
std::vector<std::int64_t> Apportion(std::int64_t total, std::span<const std::int64_t> weights,
                                    std::int64_t multiple);

}  // namespace motley::plan

#endif  // MOTLEY_PLAN_SHARES_H_
