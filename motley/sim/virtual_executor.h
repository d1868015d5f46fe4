#ifndef MOTLEY_SIM_VIRTUAL_EXECUTOR_H_
#define MOTLEY_SIM_VIRTUAL_EXECUTOR_H_

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "motley/base/clock.h"
#include "motley/data/dataset.h"
#include "motley/data/loader.h"
#include "motley/engine/device.h"
#include "motley/engine/throttled.h"
#include "motley/plan/controller.h"
#include "motley/run/executor.h"
#include "motley/run/pools.h"
#include "motley/run/trainer.h"

namespace motley::sim {

// A device that takes its time on the virtual clock.
struct VirtualDevice {
  std::string name, kind;
  plan::SpeedCurve curve;  // at full speed
  engine::Pace pace;
  double bytes_per_second = 0.0;  // of its link
  std::optional<plan::PowerProfile> power;
  std::shared_ptr<const data::Dataset> secret;  // its private samples; may be null
};

// What became of one device.
struct VirtualTotal {
  std::string name, kind;
  std::int64_t samples = 0;
  double compute_seconds = 0.0, wait_seconds = 0.0;
  std::optional<plan::PowerProfile> power;
};

// The virtual cluster: real gradients, computed one after the other on a device of this machine, on
// a clock that moves as the modelled devices would need. The same controller, the same cut of the
// samples and the same loop as in the real one; deterministic for given curves.
//
// A step ends when its last device has computed its part and the gradients are summed in a ring:
// 2 (n - 1) / n of the model over the slowest link, and 2 (n - 1) latencies. An evaluation is taken
// to cost a third of as many training samples, in the shares of the plan.
//
// Thread safety: none.
class VirtualExecutor final : public run::Executor {
 public:
  struct Options {
    std::vector<VirtualDevice> devices;
    double latency_seconds = 0.0;
    std::int64_t multiple = 1;                            // of shares: train.bn_batch
    std::function<void(const plan::Note& note)> on_note;  // may be empty
    const std::atomic<bool>* interrupt = nullptr;
  };

  // Takes the model out of `state`. Everything borrowed outlives the executor; `device` computes
  // all gradients.
  VirtualExecutor(Options options, const run::TrainOptions& train, engine::Device& device,
                  const data::DataPair& data, base::VirtualClock& clock, run::TrainState& state,
                  run::Pools pools, plan::Controller& controller);

  const graph::Graph& graph() const override { return device_.graph(); }
  std::string kind() const override;
  std::int64_t test_samples() const override { return data_.test->size(); }
  const data::Ledger& ledger() const override { return pools_.ledger(); }
  void StartNextEpoch() override { pools_.StartNextEpoch(pools_.pools()); }
  base::Result<run::Update> Step(const optim::SgdOptions& sgd) override;
  base::Result<run::Evaluation> Evaluate() override;
  base::Status Capture(run::TrainState& state) override;

  const std::vector<VirtualTotal>& totals() const { return totals_; }
  std::int64_t gradient_bytes() const { return gradient_bytes_; }
  // Seconds of the real clock in gradients, of all that passed.
  double gradient_seconds() const { return gradient_seconds_; }

 private:
  // Where the samples of one device come from.
  struct Source {
    std::unique_ptr<data::Loader> loader;
    std::uint64_t seed = 0;  // of its private order
    data::SampleId first_id = 0;
  };
  void Tell(const plan::Event& event);
  base::Result<data::Batch> Load(std::size_t device, const run::Pools::Part& part);
  const data::Permutation& Order(std::uint64_t seed, std::int64_t size, std::uint64_t epoch);
  // Of a ring of these devices, by their number.
  double ReductionSeconds(std::span<const std::size_t> members) const;
  std::vector<run::Pools::Device> Planned() const;

  const Options options_;
  const run::TrainOptions& train_;
  engine::Device& device_;
  const data::DataPair& data_;
  base::VirtualClock& clock_;
  plan::Controller& controller_;
  run::Pools pools_;
  plan::Plan plan_;
  std::vector<float> weights_, velocity_, buffers_, gradient_, sum_, part_sums_, buffer_sums_;
  std::vector<Source> sources_;
  std::map<std::uint64_t, std::pair<std::uint64_t, data::Permutation>> orders_;  // by seed
  std::int64_t step_ = 0, gradient_bytes_ = 0;
  double gradient_seconds_ = 0.0;
  std::vector<VirtualTotal> totals_;
};

}  // namespace motley::sim

#endif  // MOTLEY_SIM_VIRTUAL_EXECUTOR_H_
