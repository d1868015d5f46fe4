#ifndef MOTLEY_RUN_EXECUTOR_H_
#define MOTLEY_RUN_EXECUTOR_H_

#include <cstdint>
#include <optional>
#include <string>

#include "motley/base/status.h"
#include "motley/data/ledger.h"
#include "motley/graph/graph.h"
#include "motley/optim/sgd.h"
#include "motley/run/checkpoint.h"

namespace motley::run {

// One update of the model: what it was computed from.
struct Update {
  std::int64_t samples = 0;
  double loss_sum = 0.0;
  std::int64_t correct = 0;
  double compute_seconds = 0.0;
  double wait_seconds = 0.0;    // for data and for others
  double compute_spread = 0.0;  // (slowest - fastest device) / slowest, by their compute times
  int group = 0;                // of the devices that made it
  std::int64_t staleness = 0;   // updates of other groups since this one read the model
  // What plan::CoordinateWatch makes of it; none: nothing, or the weights are elsewhere.
  std::optional<double> coordinate_momentum;
  // What is no finite number any more ("the loss", "a weight"): training has diverged, and nothing
  // was committed. Empty when all is well.
  std::string not_finite;
};

// Carries out the steps of a job: on one device of this process (LocalExecutor), or on the members
// of a cluster. Holds the model; the training loop holds goals, events and checkpoints, and is the
// same for all.
//
// Every call may take long; a call that waits for something outside of this process ends with
// kCancelled soon after the loop's `interrupt` became true.
//
// Thread safety: none.
class Executor {
 public:
  virtual ~Executor() = default;

  virtual const graph::Graph& graph() const = 0;
  // For people and events: "native", "3 workers".
  virtual std::string kind() const = 0;
  virtual std::int64_t test_samples() const = 0;

  // The account of the current epoch.
  virtual const data::Ledger& ledger() const = 0;
  // Goes on to the next epoch. Requires ledger().Complete().
  virtual void StartNextEpoch() = 0;

  // Trains on the next samples of the epoch, updates the model and commits them: all or nothing.
  // Without samples in the update there was nothing left that could be trained on, and the epoch is
  // complete. Requires that it was not before.
  virtual base::Result<Update> Step(const optim::SgdOptions& sgd) = 0;

  // Mean loss and accuracy over the whole test set; of no samples when nothing is computed at all.
  virtual base::Result<Evaluation> Evaluate() = 0;

  // Copies weights, velocity, buffers and kernel choices into `state`.
  virtual base::Status Capture(TrainState& state) = 0;

  // There will be no further step.
  virtual void End() = 0;
};

}  // namespace motley::run

#endif  // MOTLEY_RUN_EXECUTOR_H_
