#ifndef MOTLEY_SIM_VIRTUAL_EXECUTOR_H_
#define MOTLEY_SIM_VIRTUAL_EXECUTOR_H_

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "motley/base/clock.h"
#include "motley/data/dataset.h"
#include "motley/data/loader.h"
#include "motley/engine/device.h"
#include "motley/engine/throttled.h"
#include "motley/plan/controller.h"
#include "motley/plan/coordinate_momentum.h"
#include "motley/plan/noise.h"
#include "motley/run/executor.h"
#include "motley/run/pools.h"
#include "motley/run/trainer.h"
#include "motley/sim/split_step.h"
#include "motley/sim/timeline.h"

namespace motley::sim {

// A device that takes its time on the virtual clock.
struct VirtualDevice {
  std::string name, kind;
  plan::SpeedCurve curve;  // at full speed
  engine::Pace pace;
  Service service;
  double bytes_per_second = 0.0;  // of its link
  // Without a copy of the public samples. They are fetched while others are computed, so that the
  // clock knows nothing of it; only their bytes are counted, each time a sample is used.
  bool streamed = false;
  std::optional<plan::PowerProfile> power;
  std::shared_ptr<const data::Dataset> secret;  // its private samples; may be null
  std::optional<double> fails_at;               // in seconds of the clock
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
// samples and the same loop as in the real one; deterministic for given curves and seed.
//
// Timeline says when each group's update happens. A group's gradient is computed when the group
// reads the model, from the weights of that instant, and waits in a buffer until its update is due:
// no copies of weights, one gradient for each group.
//
// With a merged head that is so of the body only, and its gradient is computed when the head's turn
// has come, from the body that the group has read and the head of that moment. The head's update
// counts for the next pass through the head: it is never stale. It is made when that begins, or
// with the body's: a step that is given up before takes it along.
//
// A new plan counts from the next boundary of every group: what is under way is finished and
// applied as it was begun, and a group of the new plan begins as soon as all its members are free.
// No update and no sample is lost. The step of a group that loses a device is given up, and its
// samples go back to the pool. At the end of an epoch the groups finish one after the other.
//
// An evaluation is taken to cost a third of as many training samples, on all devices at once.
//
// Thread safety: none.
class VirtualExecutor final : public run::Executor {
 public:
  struct Options {
    std::vector<VirtualDevice> devices;
    double latency_seconds = 0.0;
    double server_seconds = 0.0;  // of an update, with several groups
    double server_bytes_per_second = std::numeric_limits<double>::infinity();
    std::int64_t max_staleness = 0;  // of any update; 0: no bound. At least `groups` - 1
    int groups = 1;             // that the controller will form: what devices are told of the costs
    std::int64_t multiple = 1;  // of shares: train.bn_batch
    bool time_only = false;     // no gradients: the weights stay, losses are 0
    // The head is computed by a server for all groups. Devices and the server need for their half
    // of the net its part of the FLOPs. Requires a head without batch norm, no private samples, and
    // with gradients both devices, which outlive the executor.
    struct MergedHead {
      graph::Halves halves;
      plan::SpeedCurve server;  // for the whole net
      engine::Device* body = nullptr;
      engine::Device* head = nullptr;
    };
    std::optional<MergedHead> merged_head;
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
  void StartNextEpoch() override;
  base::Result<run::Update> Step(const optim::SgdOptions& sgd) override;
  base::Result<run::Evaluation> Evaluate() override;
  base::Status Capture(run::TrainState& state) override;
  void End() override { Tell(plan::JobEnded{}); }

  std::vector<VirtualTotal> totals() const;
  std::int64_t gradient_bytes() const { return gradient_bytes_; }
  std::int64_t weight_bytes() const { return weight_bytes_; }
  std::int64_t activation_bytes() const { return activation_bytes_; }  // and of their gradients
  std::int64_t sample_bytes() const { return sample_bytes_; }          // of training
  // Private samples that nobody could compute, because their devices had failed.
  std::int64_t unreachable() const { return unreachable_; }
  int groups() const { return static_cast<int>(groups_.size()); }  // of the present plan
  // Seconds of the real clock, of all that passed.
  double gradient_seconds() const { return gradient_seconds_; }
  double evaluation_seconds() const { return evaluation_seconds_; }

 private:
  // Where the samples of one device come from.
  struct Source {
    std::unique_ptr<data::Loader> loader;
    std::uint64_t seed = 0;  // of its private order
    data::SampleId first_id = 0;
  };
  // A group of the present plan.
  struct Group {
    std::vector<std::size_t> members;
    std::vector<run::Pools::Device> planned;  // by member
    std::int64_t batch = 0;
    bool exhausted = false;  // nothing of the epoch is left for it
  };
  // A step under way, whatever the plan is by now.
  struct Flight {
    bool under_way = false;
    std::vector<std::size_t> members;
    std::vector<Timeline::Work> work;  // of those that have any
    // What the controller will be told, by work. Kept from step to step, because the names of very
    // many devices are not copied for nothing.
    std::vector<plan::StepDone::Part> told;
    // Without gradients: the number of a plan and the group in it whose whole batch `work` is; plan
    // 0 is none.
    std::pair<std::int64_t, int> whole;
    std::vector<run::Pools::Part> parts;  // by member; without gradients one for all
    // But for times and staleness. The group is of the plan that it was begun with.
    run::Update update;
    std::int64_t possible = 0;  // samples, if every memory were large enough
    // Of the plan that it was begun with.
    double learning_rate_factor = 1.0;
    std::optional<double> momentum;
    std::vector<float> sum, buffer_sums;
    std::vector<plan::GradientNorm> norms;  // of what `sum` is made of
    // With a merged head, until its pass: the samples, and the body as it was read.
    std::vector<data::Batch> batches;
    std::vector<float> body;
  };
  // An update of the head that may still be given up.
  struct HeadUpdate {
    int flight = 0;
    optim::SgdOptions sgd;
    std::int64_t samples = 0;
  };
  // What the controller makes of it. Passes its notes on.
  std::optional<plan::Plan> Ask(const plan::Event& event);
  void Tell(const plan::Event& event);
  // Groups of the plan, without the lost devices.
  void TakePlan(plan::Plan plan);
  base::Status BeginIdleGroups();
  // `next`: the group that is most likely to begin after this one.
  base::Status Begin(int number, std::optional<int> next);
  // Takes the next samples of the epoch for a group.
  void TakeSamples(int number, Flight& flight);
  base::Status ComputeGradient(std::span<const data::Batch> batches, Flight& flight);
  // With a merged head only:
  void PrepareHead();
  // The group's batch goes through the head. False when something in the flight's update is no
  // finite number.
  base::Result<bool> PassHead(int number, const optim::SgdOptions& wanted);
  // False when a weight is no finite number any more.
  bool UpdateHead();
  std::int64_t ActivationBytes(std::int64_t samples) const;  // there and back
  // Of what was sent to devices for this step.
  std::int64_t SampleBytes(const Flight& flight) const;
  // Its weights go to all devices, before a test. The seconds of that.
  double SendHead();

  static optim::SgdOptions OfPlan(optim::SgdOptions wanted, const Flight& flight);
  base::Result<run::Update> Apply(const Timeline::Event& event, const optim::SgdOptions& wanted);
  // The members are free for another step.
  void Release(Flight& flight);
  base::Status Lose(const Timeline::Event& event);
  // Those that have not failed.
  std::vector<run::Pools::Device> Present() const;

  std::vector<data::SampleId> IdsOf(std::size_t device, const run::Pools::Part& part);
  data::Loader& LoaderOf(std::size_t device);
  // Lets the loaders prepare what the group will need when it begins next, if the plan stays.
  void Prepare(int number);
  base::Result<data::Batch> Load(std::size_t device, const run::Pools::Part& part);
  const data::Permutation& Order(std::uint64_t seed, std::int64_t size, std::uint64_t epoch);
  // Of a step in which a device takes part.
  double CommunicationSeconds(std::size_t device) const;

  const Options options_;
  const run::TrainOptions& train_;
  engine::Device& device_;
  const data::DataPair& data_;
  base::VirtualClock& clock_;
  plan::Controller& controller_;
  const double began_;
  run::Pools pools_;
  // The devices compute the first `own_` weights: all, or the body's.
  const std::size_t own_;
  std::vector<float> weights_, velocity_, buffers_, gradient_, part_sums_;
  std::optional<SplitStep> split_;  // with a merged head and gradients,
  std::vector<float> head_sum_, head_part_;
  std::optional<HeadUpdate> head_update_;
  Timeline timeline_;
  plan::Plan plan_;
  std::int64_t plans_ = 0;  // so far
  std::vector<Group> groups_;
  std::vector<Flight> flights_;  // by the timeline's number
  plan::NoiseScale noise_;
  std::optional<plan::CoordinateWatch> watch_;  // with gradients
  std::vector<bool> busy_;                      // by device
  std::vector<std::optional<double>> lost_at_;
  std::vector<Source> sources_;
  struct Prepared {
    std::size_t device = 0;
    std::vector<data::SampleId> ids;
  };
  std::deque<Prepared> prepared_;  // submitted to the loaders, in order
  std::map<std::uint64_t, std::pair<std::uint64_t, data::Permutation>> orders_;  // by seed
  std::int64_t step_ = 0, gradient_bytes_ = 0, weight_bytes_ = 0, activation_bytes_ = 0,
               sample_bytes_ = 0, unreachable_ = 0;
  double gradient_seconds_ = 0.0, evaluation_seconds_ = 0.0;
  std::vector<VirtualTotal> totals_;
};

}  // namespace motley::sim

#endif  // MOTLEY_SIM_VIRTUAL_EXECUTOR_H_
