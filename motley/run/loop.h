#ifndef MOTLEY_RUN_LOOP_H_
#define MOTLEY_RUN_LOOP_H_

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "motley/base/clock.h"
#include "motley/base/status.h"
#include "motley/data/ledger.h"
#include "motley/engine/device.h"
#include "motley/run/feed.h"
#include "motley/run/rate.h"
#include "motley/run/trainer.h"

namespace motley::run {

// One call of Trainer::Run: what it knows while it runs. Use Trainer.
class Loop {
 public:
  // Everything borrowed outlives the loop; the state fits the device's graph and the data.
  Loop(const TrainOptions& options, engine::Device& device, const data::DataPair& data,
       const base::Clock& clock, const Trainer::Hooks& hooks, TrainState state,
       data::Ledger ledger);

  base::Result<TrainReport> Run();

 private:
  // Steps, evaluates and saves until there is a reason to stop.
  base::Result<StopReason> Train();
  // The goal that is reached between two epochs, if any.
  std::optional<StopReason> GoalReached() const;
  base::Result<StopReason> StopByTime();

  base::Status Step();
  base::Result<engine::StepResult> Compute(const Feed::Item& item);
  base::Status UpdateBuffers(std::int64_t samples);
  void ReportStep(const engine::StepResult& result, double learning_rate);
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
  engine::Device& device_;
  const graph::Graph& graph_;
  const data::DataPair& data_;
  const base::Clock& clock_;
  const Trainer::Hooks& hooks_;
  const double start_;          // on the clock
  const double start_seconds_;  // of the job, at `start_`
  const std::int64_t start_step_;
  TrainReport report_;
  TrainState& state_;
  Feed feed_;
  std::vector<float> gradient_, buffer_sums_;
  Rate rate_;
  double next_checkpoint_;
  double evaluation_seconds_ = 0.0;
  // Since the last step event.
  double event_time_;
  double event_loss_sum_ = 0.0;
  std::int64_t event_samples_ = 0;
};

}  // namespace motley::run

#endif  // MOTLEY_RUN_LOOP_H_
