#ifndef MOTLEY_RUN_LOCAL_EXECUTOR_H_
#define MOTLEY_RUN_LOCAL_EXECUTOR_H_

#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

#include "motley/base/clock.h"
#include "motley/data/dataset.h"
#include "motley/engine/device.h"
#include "motley/run/executor.h"
#include "motley/run/feed.h"
#include "motley/run/trainer.h"

namespace motley::run {

// The whole job on one device of this process.
class LocalExecutor final : public Executor {
 public:
  // Takes the model out of `state`, which fits the device's graph and the data. Everything borrowed
  // outlives the executor; `interrupt` may be null.
  LocalExecutor(const TrainOptions& options, engine::Device& device, const data::DataPair& data,
                const base::Clock& clock, TrainState& state, data::Ledger ledger,
                const std::atomic<bool>* interrupt);

  const graph::Graph& graph() const override { return device_.graph(); }
  std::string kind() const override { return device_.kind(); }
  std::int64_t test_samples() const override { return data_.test->size(); }
  const data::Ledger& ledger() const override { return feed_.ledger(); }
  void StartNextEpoch() override { feed_.StartNextEpoch(); }
  base::Result<Update> Step(const optim::SgdOptions& sgd) override;
  base::Result<Evaluation> Evaluate() override;
  base::Status Capture(TrainState& state) override;
  void End() override {}

 private:
  const TrainOptions& options_;
  engine::Device& device_;
  const data::DataPair& data_;
  const base::Clock& clock_;
  const std::atomic<bool>* const interrupt_;
  Feed feed_;
  std::vector<float> weights_, velocity_, buffers_, gradient_, buffer_sums_;
};

}  // namespace motley::run

#endif  // MOTLEY_RUN_LOCAL_EXECUTOR_H_
