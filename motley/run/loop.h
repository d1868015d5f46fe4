#ifndef MOTLEY_RUN_LOOP_H_
#define MOTLEY_RUN_LOOP_H_

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "motley/base/clock.h"
#include "motley/base/status.h"
#include "motley/run/executor.h"
#include "motley/run/rate.h"
#include "motley/run/trainer.h"

namespace motley::run {

// The training loop over any executor: goals, evaluations, checkpoints, events. What it does and in
// which order is Trainer's contract.
//
// Thread safety: none.
class Loop {
 public:
  // Everything borrowed outlives the loop. The executor stands where `state` does, and has taken
  // the model out of it.
  Loop(const TrainOptions& options, Executor& executor, const base::Clock& clock,
       const Trainer::Hooks& hooks, TrainState state);

  base::Result<TrainReport> Run();

 private:
  // Steps, evaluates and saves until there is a reason to stop.
  base::Result<StopReason> Train();
  // The goal that is reached between two epochs, if any.
  std::optional<StopReason> GoalReached() const;
  base::Result<StopReason> StopByTime();

  base::Status Step();
  void ReportStep(const Update& update, double learning_rate);
  Progress MakeProgress() const;

  // Evaluates and turns to the next epoch.
  base::Status FinishEpoch();
  base::Status EvaluateNow();
  base::Status Save();

  bool Interrupted() const;
  bool CheckpointDue() const;
  double LearningRate() const;
  base::Status Diverged(std::string_view what, std::int64_t step) const;
  double SecondsSoFar() const;
  void Emit(const std::string& event, nlohmann::json fields);
  void EmitStart();

  const TrainOptions& options_;
  Executor& executor_;
  const base::Clock& clock_;
  const Trainer::Hooks& hooks_;
  const double start_;          // on the clock
  const double start_seconds_;  // of the job, at `start_`
  const std::int64_t start_step_;
  TrainReport report_;
  TrainState& state_;
  Rate rate_;
  double next_checkpoint_;
  double evaluation_seconds_ = 0.0;
  // Since the last step event.
  double event_time_;
  double event_loss_sum_ = 0.0;
  std::int64_t event_samples_ = 0, event_updates_ = 0, event_staleness_ = 0;
};

}  // namespace motley::run

#endif  // MOTLEY_RUN_LOOP_H_
