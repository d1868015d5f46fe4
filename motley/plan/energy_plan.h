#ifndef MOTLEY_PLAN_ENERGY_PLAN_H_
#define MOTLEY_PLAN_ENERGY_PLAN_H_

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "motley/base/status.h"
#include "motley/plan/balance.h"
#include "motley/plan/energy.h"

namespace motley::plan {

struct EnergyCandidate {
  std::string name;
  Candidate speed;
  PowerProfile power;
};

struct EnergyGoal {
  std::int64_t batch = 0;
  std::int64_t multiple = 1;               // train.bn_batch, or 1
  std::int64_t samples_left = 0;           // to the end of the job
  std::optional<double> deadline_seconds;  // for these
  // Of a step, for every device with a share but the first: the gradients' way through a ring.
  double moving_joules = 0.0;
};

struct EnergyPlan {
  std::vector<std::int64_t> shares;  // of every candidate; 0: left out
  std::int64_t total = 0;            // their sum; below the batch when the caps allow no more
  double seconds_per_step = 0.0;
  double joules_per_step = 0.0;  // estimated
  bool meets_deadline = true;
  std::string reason;  // for people
};

// Joules of one step, as the accounts of a run have them: every device draws busy watts while it
// computes and idle watts for the rest of the step, communication included. So a device without a
// share draws idle watts all the time: it is there, and waits for the end of the job. Leaving it
// out saves what its computing would cost on top of that, and makes the step of all longer.
double JoulesPerStep(std::span<const std::int64_t> shares,
                     std::span<const EnergyCandidate> candidates, double moving_joules);

// objective = "energy": the devices and shares with the fewest joules to the end of the job, among
// those that meet the deadline; the fastest, when none does. Devices with private data always take
// part.
//
// For each set of devices two kinds of shares are compared: balanced ones, with which the step ends
// first, and ones that let the thrifty devices work longer. Up to 12 devices every set is tried.
// Beyond that, the first so many in order of joules per sample, and then whether one device more or
// less is better; a thousand devices so take below a second.
//
// Fails like Balance, and with kInvalidInput for a device without a power profile.
base::Result<EnergyPlan> PlanForEnergy(const EnergyGoal& goal,
                                       std::span<const EnergyCandidate> candidates);

}  // namespace motley::plan

#endif  // MOTLEY_PLAN_ENERGY_PLAN_H_
