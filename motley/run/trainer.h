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

#include "motley/base/clock.h"
#include "motley/base/status.h"
#include "motley/data/dataset.h"
#include "motley/data/transform.h"
#include "motley/engine/device.h"
#include "motley/graph/graph.h"
#include "motley/optim/schedule.h"
#include "motley/optim/sgd.h"
#include "motley/run/checkpoint.h"
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

  std::filesystem::path checkpoints;  // folder
  double checkpoint_seconds = 30.0;   // at most so much work is lost by a kill
  int keep_checkpoints = 3;
  std::map<std::string, std::string> job;  // copied into every checkpoint
};

// What somebody watching sees after every step.
struct Progress {
  std::uint64_t epoch = 0;
  std::int64_t step = 0, steps_total = 0;  // total: 0 when unknown
  double loss = 0.0;                       // mean over the epoch so far
  double accuracy = 0.0;                   // training accuracy over the epoch so far
  double samples_per_second = 0.0;
  double seconds_left = 0.0;  // negative when unknown
};

struct Evaluation {
  double loss = 0.0;
  double accuracy = 0.0;
  std::int64_t samples = 0;
};

enum class StopReason { kEpochs, kTarget, kTime, kInterrupted };

struct TrainReport {
  StopReason reason = StopReason::kEpochs;
  TrainState state;
  Evaluation test;           // the last one
  double compute_seconds = 0.0;  // of the device, this process
  double wait_seconds = 0.0;     // for data, this process
};

// Mean loss and accuracy over the whole dataset.
base::Result<Evaluation> Evaluate(engine::Device& device, std::span<const float> weights,
                                  std::span<const float> buffers,
                                  std::shared_ptr<const data::Dataset> dataset,
                                  const data::Transform& transform, std::int64_t batch,
                                  int loader_threads);

// Trains on one device until a goal is reached or somebody interrupts.
//
// The life of a step: the ledger hands out a ticket; the loader prepares it ahead of time;
// Device::Step; update; the ticket is committed and an event written. A checkpoint is written every
// `checkpoint_seconds`, at every epoch's end and at the stop, always between two steps.
//
// Thread safety: none. `interrupt` and `checkpoint_now` may be set from a signal handler.
class Trainer {
 public:
  struct Hooks {
    const std::atomic<bool>* interrupt = nullptr;   // checkpoint and stop
    std::atomic<bool>* checkpoint_now = nullptr;    // checkpoint and go on; reset by the trainer
    std::function<void(const Progress&)> on_step;   // may be empty
    std::function<void(std::uint64_t epoch, const Evaluation&)> on_epoch;
    telemetry::EventWriter* events = nullptr;       // may be null
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
