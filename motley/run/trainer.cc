#include "motley/run/trainer.h"

#include <utility>

#include "motley/run/local_executor.h"
#include "motley/run/loop.h"

namespace motley::run {
namespace {

base::Status CheckSet(const data::Dataset* set, const data::Transform& transform,
                      const graph::Graph& graph, const std::string& name) {
  if (set == nullptr || set->size() == 0) return base::InvalidInput("{} is empty", name);
  MOTLEY_RETURN_IF_ERROR(transform.Check(*set).In(name));
  const graph::Shape shape = transform.OutputShape(*set);
  const graph::Shape& wanted = graph.input_shape();
  if (shape != wanted && !(wanted.size() == 1 && graph::Count(shape) == wanted[0])) {
    return base::InvalidInput("{} has samples of {}, but the net '{}' takes {}", name,
                              graph::ToString(shape), graph.name(), graph::ToString(wanted))
        .WithFix("build the net for this shape, or crop or pad the samples to the net's");
  }
  if (static_cast<std::int64_t>(set->classes().size()) > graph.num_classes()) {
    return base::InvalidInput("{} has {} classes, but the net '{}' tells {} apart", name,
                              set->classes().size(), graph.name(), graph.num_classes());
  }
  return {};
}

base::Status CheckState(const TrainState& state, const graph::Graph& graph,
                        const data::Dataset& train) {
  const auto parameters = static_cast<std::size_t>(graph.parameter_count());
  MOTLEY_CHECK(state.weights.size() == parameters && state.velocity.size() == parameters &&
                   state.buffers.size() == static_cast<std::size_t>(graph.buffer_count()),
               "the state does not fit the net '{}'", graph.name());
  if (!state.private_pools.empty()) {
    return base::InvalidInput("the checkpoint is of a job with private samples of '{}'",
                              state.private_pools.front().device)
        .WithFix("go on with the devices that have them");
  }
  if (state.epoch_size != train.size()) {
    return base::InvalidInput("the checkpoint is of a training set of {} samples; this one has {}",
                              state.epoch_size, train.size())
        .WithFix("resume with the same data, or start a new run from the exported weights");
  }
  return {};
}

}  // namespace

std::string_view ToString(StopReason reason) {
  switch (reason) {
    case StopReason::kEpochs:
      return "epochs";
    case StopReason::kTarget:
      return "target";
    case StopReason::kTime:
      return "time";
    case StopReason::kInterrupted:
      return "interrupted";
  }
  return "unknown";
}

Trainer::Trainer(TrainOptions options, engine::Device& device, data::DataPair data,
                 const base::Clock& clock)
    : options_(std::move(options)), device_(device), data_(std::move(data)), clock_(clock) {
  MOTLEY_CHECK(options_.batch > 0, "a batch of {}", options_.batch);
  MOTLEY_CHECK(!options_.epochs || *options_.epochs >= 0, "{} epochs", *options_.epochs);
  const bool has_goal = options_.epochs || options_.target_accuracy || options_.max_seconds;
  if (!has_goal) options_.epochs = 1;
}

base::Result<TrainReport> Trainer::Run(TrainState state, const Hooks& hooks) {
  const graph::Graph& graph = device_.graph();
  MOTLEY_RETURN_IF_ERROR(
      CheckSet(data_.train.get(), options_.train_transform, graph, "the training set"));
  MOTLEY_RETURN_IF_ERROR(
      CheckSet(data_.test.get(), options_.test_transform, graph, "the test set"));
  MOTLEY_RETURN_IF_ERROR(CheckState(state, graph, *data_.train));
  MOTLEY_ASSIGN_OR_RETURN(data::Ledger ledger,
                          data::Ledger::Restore(state.epoch, state.epoch_size, state.committed));
  state.job = options_.job;
  LocalExecutor executor(options_, device_, data_, clock_, state, std::move(ledger),
                         hooks.interrupt);
  return Loop(options_, executor, clock_, hooks, std::move(state)).Run();
}
TrainState Trainer::Fresh(const graph::Model& model, const data::Dataset& train) {
  TrainState state;
  state.epoch_size = train.size();
  state.weights = model.weights;
  state.velocity.assign(model.weights.size(), 0.0F);
  state.buffers = model.buffers;
  return state;
}

}  // namespace motley::run
