#ifndef MOTLEY_RUN_TRAINER_H_
#define MOTLEY_RUN_TRAINER_H_

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "motley/base/clock.h"
#include "motley/base/status.h"
#include "motley/data/dataset.h"
#include "motley/data/transform.h"
#include "motley/engine/device.h"
#include "motley/graph/graph.h"
#include "motley/optim/schedule.h"
#include "motley/optim/sgd.h"
#include "motley/plan/staleness.h"
#include "motley/run/checkpoint.h"
#include "motley/run/evaluate.h"
#include "motley/telemetry/events.h"

namespace motley::run {

struct TrainOptions {
  std::int64_t batch = 256;
  optim::SgdOptions sgd;
  optim::Schedule schedule;
  std::uint64_t seed = 1;

  // Stop at whichever comes first; nothing set means one epoch.
  std::optional<std::int64_t> epochs;
  std::optional<double> target_accuracy;
  std::optional<double> max_seconds;

  data::Transform train_transform, test_transform;
  int loader_threads = 1;
  int update_threads = 1;  // of the optimizer, where no device updates

  std::filesystem::path checkpoints;  // folder; empty: none are written
  double checkpoint_seconds = 30.0;   // at most so much work is lost by a kill
  int keep_checkpoints = 3;
  std::map<std::string, std::string> job;  // copied into every checkpoint
};

// What somebody watching sees after every step.
struct Progress {
  std::uint64_t epoch = 0;                 // counts from 0
  std::int64_t step = 0, steps_total = 0;  // total: 0 when unknown
  double loss = 0.0;                       // mean over the epoch so far
  double accuracy = 0.0;                   // training accuracy over the epoch so far
  double samples_per_second = 0.0;
  double seconds_left = 0.0;  // negative when unknown
};

enum class StopReason { kEpochs, kTarget, kTime, kInterrupted };

// "epochs", "target", "time", "interrupted".
std::string_view ToString(StopReason reason);

struct TrainReport {
  StopReason reason = StopReason::kEpochs;
  TrainState state;
  Evaluation test;           // the last one; none (samples == 0) when stopped before the first
  std::int64_t samples = 0;  // trained on, this process
  double seconds = 0.0;      // this process
  plan::StalenessHistogram staleness;  // of the updates of this process
  plan::UpdateIntervals intervals;     // of them, without evaluations
  // What the weights showed of the momentum (plan/coordinate_momentum.h): sum over these updates.
  double coordinate_momentum_sum = 0.0;
  std::int64_t coordinate_momentum_updates = 0;
};

// Trains on one device until a goal is reached or somebody interrupts.
//
// The life of a step: the ledger hands out a ticket; the loader prepares it ahead of time;
// Device::Step; update; the ticket is committed and an event written. A checkpoint is written every
// `checkpoint_seconds`, at every epoch's end and at the stop, always between two steps. A resumed
// run takes the same batches as an uninterrupted one, so on a device that computes the same bits
// the weights are the same bits.
//
// The test set is evaluated at every epoch's end, before the checkpoint, and at a stop by time. A
// checkpoint that stands between the last step of an epoch and its evaluation (an interrupt came)
// is resumed with that evaluation: none is lost.
//
// A loss or a weight that is no finite number ends the run with an error before it can reach a
// checkpoint.
//
// Events, all with "step" and "epoch" (from 0): run_started; rolled_back on a resume behind steps
// that were already written; step (at most one a second, and the last of each epoch; "loss" and
// "staleness" are means since the event before); epoch ("again": this process has not trained since
// its checkpoint, so the event replaces one of the same step, if there is one); checkpoint;
// run_finished or run_failed.
//
// Thread safety: none. `interrupt` and `checkpoint_now` may be set from a signal handler.
class Trainer {
 public:
  struct Hooks {
    const std::atomic<bool>* interrupt = nullptr;  // checkpoint and stop
    std::atomic<bool>* checkpoint_now = nullptr;   // checkpoint and go on; reset by the trainer
    std::function<void(const Progress&)> on_step;  // may be empty
    std::function<void(std::uint64_t epoch, const Evaluation&)> on_epoch;
    telemetry::EventWriter* events = nullptr;  // may be null
  };

  Trainer(TrainOptions options, engine::Device& device, data::DataPair data,
          const base::Clock& clock);

  // From fresh weights, or from where `state` stands.
  base::Result<TrainReport> Run(TrainState state, const Hooks& hooks);

  // The state of a job that has not begun.
  static TrainState Fresh(const graph::Model& model, const data::Dataset& train);

 private:
  TrainOptions options_;
  engine::Device& device_;
  data::DataPair data_;
  const base::Clock& clock_;
};

}  // namespace motley::run

#endif  // MOTLEY_RUN_TRAINER_H_
