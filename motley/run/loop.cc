#include "motley/run/loop.h"

#include <algorithm>
#include <cmath>
#include <span>
#include <utility>

#include "motley/optim/sgd.h"

namespace motley::run {
namespace {

constexpr double kStepEventSeconds = 1.0;

bool AllFinite(std::span<const float> values) {
  return std::all_of(values.begin(), values.end(),
                     [](float value) { return std::isfinite(value); });
}

TrainReport ReportFrom(TrainState state) {
  TrainReport report;
  report.state = std::move(state);
  return report;
}

Feed::Options FeedOptions(const TrainOptions& options) {
  Feed::Options feed{.batch = options.batch,
                     .seed = options.seed,
                     .loader_threads = options.loader_threads,
                     .end_epoch = std::nullopt};
  if (options.epochs) feed.end_epoch = static_cast<std::uint64_t>(*options.epochs);
  return feed;
}

}  // namespace

Loop::Loop(const TrainOptions& options, engine::Device& device, const data::DataPair& data,
           const base::Clock& clock, const Trainer::Hooks& hooks, TrainState state,
           data::Ledger ledger)
    : options_(options),
      device_(device),
      graph_(device.graph()),
      data_(data),
      clock_(clock),
      hooks_(hooks),
      start_(clock.Now()),
      start_seconds_(state.seconds),
      start_step_(state.step),
      report_(ReportFrom(std::move(state))),
      state_(report_.state),
      feed_(data.train, options.train_transform, FeedOptions(options), std::move(ledger)),
      gradient_(state_.weights.size()),
      buffer_sums_(state_.buffers.size()),
      next_checkpoint_(start_ + options.checkpoint_seconds),
      event_time_(start_) {
  rate_.Restart(start_, state_.samples);
}

base::Result<TrainReport> Loop::Run() {
  const std::int64_t samples_before = state_.samples;
  EmitStart();
  auto reason = Train();
  if (!reason.ok()) {
    Emit("run_failed", {{"message", reason.status().message()}});
    return std::move(reason).status();
  }
  state_.seconds = SecondsSoFar();
  state_.committed = feed_.ledger().CommittedRanges();
  report_.reason = *reason;
  report_.test = state_.test;
  report_.samples = state_.samples - samples_before;
  report_.seconds = clock_.Now() - start_;
  nlohmann::json fields = {{"reason", ToString(*reason)}, {"samples", state_.samples}};
  if (state_.test.samples > 0) {
    fields["accuracy"] = state_.test.accuracy;
    fields["loss"] = state_.test.loss;
  }
  Emit("run_finished", std::move(fields));
  return std::move(report_);
}

base::Result<StopReason> Loop::Train() {
  while (true) {
    if (Interrupted()) {
      MOTLEY_RETURN_IF_ERROR(Save());
      return StopReason::kInterrupted;
    }
    if (feed_.ledger().Complete()) {
      auto finished = FinishEpoch();
      if (finished.code() == base::Code::kCancelled && Interrupted()) continue;
      MOTLEY_RETURN_IF_ERROR(std::move(finished));
      MOTLEY_RETURN_IF_ERROR(Save());
    }
    if (const auto reason = GoalReached()) return *reason;
    if (options_.max_seconds && SecondsSoFar() >= *options_.max_seconds) return StopByTime();
    if (CheckpointDue()) MOTLEY_RETURN_IF_ERROR(Save());
    MOTLEY_RETURN_IF_ERROR(Step());
  }
}

std::optional<StopReason> Loop::GoalReached() const {
  // In the middle of an epoch the last evaluation is not of the weights that we have now.
  if (feed_.ledger().committed() > 0) return std::nullopt;
  if (options_.target_accuracy && state_.test.samples > 0 &&
      state_.test.accuracy >= *options_.target_accuracy) {
    return StopReason::kTarget;
  }
  if (options_.epochs && state_.epoch >= static_cast<std::uint64_t>(*options_.epochs)) {
    return StopReason::kEpochs;
  }
  return std::nullopt;
}

base::Result<StopReason> Loop::StopByTime() {
  const bool tested = feed_.ledger().committed() == 0 && state_.test.samples > 0;
  if (!tested) {
    auto evaluated = EvaluateNow();
    if (evaluated.code() == base::Code::kCancelled && Interrupted()) {
      MOTLEY_RETURN_IF_ERROR(Save());
      return StopReason::kInterrupted;
    }
    MOTLEY_RETURN_IF_ERROR(std::move(evaluated));
    MOTLEY_RETURN_IF_ERROR(Save());
  }
  const bool reached =
      options_.target_accuracy && state_.test.accuracy >= *options_.target_accuracy;
  return reached ? StopReason::kTarget : StopReason::kTime;
}

base::Status Loop::Step() {
  const double before = clock_.Now();
  MOTLEY_ASSIGN_OR_RETURN(const Feed::Item item, feed_.Next());
  state_.wait_seconds += clock_.Now() - before;

  const double learning_rate = LearningRate();
  MOTLEY_ASSIGN_OR_RETURN(const engine::StepResult result, Compute(item));
  optim::SgdOptions sgd = options_.sgd;
  sgd.learning_rate = static_cast<float>(learning_rate);
  if (!optim::SgdUpdate(sgd, gradient_, result.samples_done, state_.weights, state_.velocity,
                        options_.update_threads)) {
    return Diverged("a weight", state_.step + 1);
  }
  MOTLEY_RETURN_IF_ERROR(UpdateBuffers(result.samples_done));

  MOTLEY_RETURN_IF_ERROR(feed_.Commit(item.ticket));
  ++state_.step;
  state_.samples += result.samples_done;
  state_.epoch_loss_sum += result.loss_sum;
  state_.epoch_correct += result.correct;
  ReportStep(result, learning_rate);
  return {};
}

base::Result<engine::StepResult> Loop::Compute(const Feed::Item& item) {
  engine::StepRequest request;
  request.weights = state_.weights;
  request.batch = &item.batch;
  request.seed = options_.seed;
  request.gradient = gradient_;
  request.buffer_sums = buffer_sums_;
  auto result = device_.Step(request);
  if (!result.ok()) {
    return std::move(result).status().In(fmt::format("step {}", state_.step + 1));
  }
  state_.compute_seconds += result->seconds;
  if (result->samples_done != item.ticket.size()) {
    return base::Internal("step {}: device '{}' did {} of {} samples without a deadline",
                          state_.step + 1, device_.kind(), result->samples_done,
                          item.ticket.size());
  }
  if (!std::isfinite(result->loss_sum)) return Diverged("the loss", state_.step + 1);
  return result;
}

base::Status Loop::UpdateBuffers(std::int64_t samples) {
  const auto n = static_cast<float>(samples);
  for (const graph::Tensor& tensor : graph_.buffers()) {
    const float momentum = graph_.node(tensor.node).batch_norm().momentum;
    const auto offset = static_cast<std::size_t>(tensor.offset);
    const auto size = static_cast<std::size_t>(tensor.size);
    if (!AllFinite(std::span(buffer_sums_).subspan(offset, size))) {
      return Diverged(fmt::format("'{}'", tensor.name), state_.step + 1);
    }
    for (std::size_t i = offset; i < offset + size; ++i) {
      float& running = state_.buffers[i];
      running = (1.0F - momentum) * running + momentum * (buffer_sums_[i] / n);
    }
  }
  return {};
}

void Loop::ReportStep(const engine::StepResult& result, double learning_rate) {
  const double now = clock_.Now();
  rate_.Add(now, state_.samples);
  event_loss_sum_ += result.loss_sum;
  event_samples_ += result.samples_done;
  if (now - event_time_ >= kStepEventSeconds || feed_.ledger().Complete()) {
    Emit("step", {{"loss", event_loss_sum_ / static_cast<double>(event_samples_)},
                  {"lr", learning_rate},
                  {"samples", state_.samples},
                  {"samples_per_second", rate_.value()}});
    event_time_ = now;
    event_loss_sum_ = 0.0;
    event_samples_ = 0;
  }
  if (hooks_.on_step) hooks_.on_step(MakeProgress());
}

Progress Loop::MakeProgress() const {
  const std::int64_t done = feed_.ledger().committed(), size = feed_.ledger().size();
  Progress progress{
      .epoch = state_.epoch,
      .step = state_.step,
      .steps_total = 0,
      .loss = state_.epoch_loss_sum / static_cast<double>(done),
      .accuracy = static_cast<double>(state_.epoch_correct) / static_cast<double>(done),
      .samples_per_second = rate_.value(),
      .seconds_left = -1.0};
  if (options_.epochs) {
    const auto steps = [this](std::int64_t n) { return (n + options_.batch - 1) / options_.batch; };
    const auto epochs_after =
        std::max<std::int64_t>(0, *options_.epochs - static_cast<std::int64_t>(state_.epoch) - 1);
    progress.steps_total = state_.step + steps(size - done) + epochs_after * steps(size);
    if (rate_.value() > 0.0) {
      const auto samples_left = static_cast<double>(size - done + epochs_after * size);
      progress.seconds_left = samples_left / rate_.value() +
                              static_cast<double>(epochs_after + 1) * evaluation_seconds_;
    }
  }
  if (options_.max_seconds) {
    const double limit = std::max(0.0, *options_.max_seconds - SecondsSoFar());
    progress.seconds_left =
        progress.seconds_left < 0.0 ? limit : std::min(limit, progress.seconds_left);
  }
  return progress;
}

base::Status Loop::FinishEpoch() {
  MOTLEY_RETURN_IF_ERROR(EvaluateNow());
  feed_.StartNextEpoch();
  ++state_.epoch;
  state_.epoch_loss_sum = 0.0;
  state_.epoch_correct = 0;
  return {};
}

base::Status Loop::EvaluateNow() {
  const double before = clock_.Now();
  MOTLEY_ASSIGN_OR_RETURN(
      const Evaluation test,
      Evaluate(device_, state_.weights, state_.buffers, data_.test, options_.test_transform,
               options_.batch, options_.loader_threads, hooks_.interrupt));
  evaluation_seconds_ = clock_.Now() - before;
  rate_.Restart(clock_.Now(), state_.samples);
  if (!std::isfinite(test.loss)) return Diverged("the loss on the test set", state_.step);
  state_.test = test;
  const auto trained = static_cast<double>(std::max<std::int64_t>(1, feed_.ledger().committed()));
  // A checkpoint stood before this evaluation, so an earlier process may have told it already.
  const bool again = start_step_ > 0 && state_.step == start_step_;
  Emit("epoch", {{"loss", test.loss},
                 {"accuracy", test.accuracy},
                 {"train_loss", state_.epoch_loss_sum / trained},
                 {"train_accuracy", static_cast<double>(state_.epoch_correct) / trained},
                 {"complete", feed_.ledger().Complete()},
                 {"again", again},
                 {"samples", state_.samples},
                 {"seconds", evaluation_seconds_}});
  if (hooks_.on_epoch) hooks_.on_epoch(state_.epoch, test);
  return {};
}

base::Status Loop::Save() {
  if (options_.checkpoints.empty()) return {};
  if (!AllFinite(state_.weights) || !AllFinite(state_.velocity)) {
    return Diverged("a weight", state_.step);
  }
  const double before = clock_.Now();
  state_.seconds = SecondsSoFar();
  state_.committed = feed_.ledger().CommittedRanges();
  state_.kernel_choices = device_.kernel_choices();
  MOTLEY_RETURN_IF_ERROR(
      SaveCheckpoint(options_.checkpoints, graph_, state_, options_.keep_checkpoints));
  const double now = clock_.Now();
  next_checkpoint_ = now + options_.checkpoint_seconds;
  rate_.Restart(now, state_.samples);
  Emit("checkpoint", {{"name", fmt::format("ckpt-{}", state_.step)}, {"seconds", now - before}});
  return {};
}

bool Loop::Interrupted() const { return hooks_.interrupt != nullptr && hooks_.interrupt->load(); }

bool Loop::CheckpointDue() const {
  const bool asked = hooks_.checkpoint_now != nullptr && hooks_.checkpoint_now->exchange(false);
  return asked || clock_.Now() >= next_checkpoint_;
}

double Loop::LearningRate() const {
  const double epoch =
      static_cast<double>(state_.epoch) +
      static_cast<double>(feed_.ledger().committed()) / static_cast<double>(feed_.ledger().size());
  return static_cast<double>(options_.sgd.learning_rate) *
         options_.schedule.Factor(state_.step, epoch);
}

base::Status Loop::Diverged(std::string_view what, std::int64_t step) const {
  return base::InvalidInput(
             "step {} (epoch {}): {} is no longer a finite number, with learning rate {:.4g}; this "
             "state is in no checkpoint",
             step, state_.epoch, what, LearningRate())
      .WithFix("lower train.learning_rate (a third is a good try), or add warmup_steps");
}

double Loop::SecondsSoFar() const { return start_seconds_ + (clock_.Now() - start_); }

void Loop::Emit(const std::string& event, nlohmann::json fields) {
  if (hooks_.events == nullptr) return;
  fields["step"] = state_.step;
  fields["epoch"] = state_.epoch;
  hooks_.events->Write(SecondsSoFar(), event, fields);
}

void Loop::EmitStart() {
  if (hooks_.events == nullptr) return;
  Emit("run_started", {{"resumed", state_.step > 0},
                       {"model", graph_.name()},
                       {"parameters", graph_.parameter_count()},
                       {"device", device_.kind()},
                       {"train_samples", data_.train->size()},
                       {"test_samples", data_.test->size()},
                       {"batch", options_.batch},
                       {"learning_rate", options_.sgd.learning_rate},
                       {"momentum", options_.sgd.momentum},
                       {"weight_decay", options_.sgd.weight_decay},
                       {"nesterov", options_.sgd.nesterov},
                       {"seed", options_.seed}});
  const auto written = hooks_.events->last_step();
  if (written && *written > state_.step) Emit("rolled_back", {{"from_step", *written}});
}

}  // namespace motley::run
