#ifndef MOTLEY_PLAN_BALANCE_H_
#define MOTLEY_PLAN_BALANCE_H_

#include <cstdint>
#include <span>
#include <vector>

#include "motley/base/status.h"
#include "motley/plan/speed_curve.h"

namespace motley::plan {

// A device as far as its share depends on it.
struct Candidate {
  double fixed_seconds = 0.0;          // of its speed curve
  double seconds_per_sample = 0.0;     // of its speed curve, > 0
  double communication_seconds = 0.0;  // of a step in which it takes part
  std::int64_t least = 0;              // samples it must take: its private data
  std::int64_t most = kNoCap;          // samples that fit into its memory
};

// When the device has done its part of a step, gradient sent included; at once without samples.
double FinishTime(const Candidate& candidate, std::int64_t samples);
// The end of the step: when the last one has. Requires one share for each candidate.
double FinishTime(std::span<const std::int64_t> shares, std::span<const Candidate> candidates);

// The largest share with which the device finishes within `seconds`, at most `most`.
std::int64_t SamplesWithin(const Candidate& candidate, double seconds);

struct Balanced {
  std::vector<std::int64_t> shares;  // of every candidate; 0: the step is over sooner without it
  std::int64_t total = 0;            // their sum; below the batch when the caps allow no more
  double seconds = 0.0;              // predicted for the step
};

// The shares of a batch with which the step ends first: the exact optimum, not a rounded one.
//
// Shares are multiples of `multiple` (train.bn_batch; 1 otherwise), but for one that also takes the
// rest of a batch which is no multiple. Where several optima exist, those devices that do not
// decide the step's end finish as early and as equally as they can; ties go to the earlier
// candidate. The same everywhere; linear in the number of devices.
//
// When the caps are too small for the batch, every device gets what it can in whole multiples, and
// `total` is the batch that can be kept. Fails with kInvalidInput when the least shares are more
// than the batch, when no multiple lies between a device's least and most, and for times that are
// no times. Requires multiple > 0.
base::Result<Balanced> Balance(std::int64_t batch, std::int64_t multiple,
                               std::span<const Candidate> candidates);

}  // namespace motley::plan

#endif  // MOTLEY_PLAN_BALANCE_H_
