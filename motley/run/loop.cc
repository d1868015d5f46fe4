#include "motley/run/loop.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "motley/optim/sgd.h"
#include "motley/run/update.h"

namespace motley::run {
namespace {

constexpr double kStepEventSeconds = 1.0;

TrainReport ReportFrom(TrainState state) {
  TrainReport report;
  report.state = std::move(state);
  return report;
}

}  // namespace

Loop::Loop(const TrainOptions& options, Executor& executor, const base::Clock& clock,
           const Trainer::Hooks& hooks, TrainState state)
    : options_(options),
      executor_(executor),
      clock_(clock),
      hooks_(hooks),
      start_(clock.Now()),
      start_seconds_(state.seconds),
      start_step_(state.step),
      report_(ReportFrom(std::move(state))),
      state_(report_.state),
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
  executor_.End();
  MOTLEY_RETURN_IF_ERROR(executor_.Capture(state_));
  state_.seconds = SecondsSoFar();
  state_.epoch_size = executor_.ledger().size();
  state_.committed = executor_.ledger().CommittedRanges();
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
    if (executor_.ledger().Complete()) {
      auto finished = FinishEpoch();
      if (finished.code() == base::Code::kCancelled && Interrupted()) continue;
      MOTLEY_RETURN_IF_ERROR(std::move(finished));
      MOTLEY_RETURN_IF_ERROR(Save());
    }
    if (const auto reason = GoalReached()) return *reason;
    if (options_.max_seconds && SecondsSoFar() >= *options_.max_seconds) return StopByTime();
    if (CheckpointDue()) MOTLEY_RETURN_IF_ERROR(Save());
    auto stepped = Step();
    if (stepped.code() == base::Code::kCancelled && Interrupted()) continue;
    MOTLEY_RETURN_IF_ERROR(std::move(stepped));
  }
}

std::optional<StopReason> Loop::GoalReached() const {
  // In the middle of an epoch the last evaluation is not of the weights that we have now.
  if (executor_.ledger().committed() > 0) return std::nullopt;
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
  const bool tested = executor_.ledger().committed() == 0 && state_.test.samples > 0;
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
  const double learning_rate = LearningRate();
  optim::SgdOptions sgd = options_.sgd;
  sgd.learning_rate = static_cast<float>(learning_rate);
  auto result = executor_.Step(sgd);
  if (!result.ok()) {
    return std::move(result).status().In(fmt::format("step {}", state_.step + 1));
  }
  const Update& update = *result;
  state_.wait_seconds += update.wait_seconds;
  state_.compute_seconds += update.compute_seconds;
  if (!update.not_finite.empty()) return Diverged(update.not_finite, state_.step + 1);
  if (update.samples == 0) return {};  // nothing of the epoch is left that anybody could compute
  ++state_.step;
  state_.samples += update.samples;
  state_.epoch_loss_sum += update.loss_sum;
  state_.epoch_correct += update.correct;
  report_.staleness.Add(update.staleness);
  report_.intervals.Add(update.group, clock_.Now());
  if (update.coordinate_momentum) {
    report_.coordinate_momentum_sum += *update.coordinate_momentum;
    ++report_.coordinate_momentum_updates;
  }
  ReportStep(update, learning_rate);
  return {};
}

void Loop::ReportStep(const Update& update, double learning_rate) {
  const double now = clock_.Now();
  rate_.Add(now, state_.samples);
  event_loss_sum_ += update.loss_sum;
  event_samples_ += update.samples;
  event_staleness_ += update.staleness;
  ++event_updates_;
  if (now - event_time_ >= kStepEventSeconds || executor_.ledger().Complete()) {
    Emit("step", {{"loss", event_loss_sum_ / static_cast<double>(event_samples_)},
                  {"lr", learning_rate},
                  {"compute_spread", update.compute_spread},
                  {"staleness",
                   static_cast<double>(event_staleness_) / static_cast<double>(event_updates_)},
                  {"samples", state_.samples},
                  {"samples_per_second", rate_.value()}});
    event_time_ = now;
    event_loss_sum_ = 0.0;
    event_samples_ = event_updates_ = event_staleness_ = 0;
  }
  if (hooks_.on_step) hooks_.on_step(MakeProgress());
}

Progress Loop::MakeProgress() const {
  const std::int64_t done = executor_.ledger().committed(), size = executor_.ledger().size();
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
  executor_.StartNextEpoch();
  ++state_.epoch;
  state_.epoch_loss_sum = 0.0;
  state_.epoch_correct = 0;
  return {};
}

base::Status Loop::EvaluateNow() {
  const double before = clock_.Now();
  MOTLEY_ASSIGN_OR_RETURN(const Evaluation test, executor_.Evaluate());
  evaluation_seconds_ = clock_.Now() - before;
  rate_.Restart(clock_.Now(), state_.samples);
  report_.intervals.Interrupt();
  if (!std::isfinite(test.loss)) return Diverged("the loss on the test set", state_.step);
  state_.test = test;
  const auto trained =
      static_cast<double>(std::max<std::int64_t>(1, executor_.ledger().committed()));
  // A checkpoint stood before this evaluation, so an earlier process may have told it already.
  const bool again = start_step_ > 0 && state_.step == start_step_;
  nlohmann::json fields = {{"complete", executor_.ledger().Complete()},
                           {"again", again},
                           {"samples", state_.samples},
                           {"seconds", evaluation_seconds_}};
  const bool computed = test.samples > 0;  // not on a clock alone
  if (computed) {
    fields["loss"] = test.loss;
    fields["accuracy"] = test.accuracy;
    fields["train_loss"] = state_.epoch_loss_sum / trained;
    fields["train_accuracy"] = static_cast<double>(state_.epoch_correct) / trained;
  }
  Emit("epoch", std::move(fields));
  if (computed && hooks_.on_epoch) hooks_.on_epoch(state_.epoch, test);
  return {};
}

base::Status Loop::Save() {
  if (options_.checkpoints.empty()) return {};
  const double before = clock_.Now();
  MOTLEY_RETURN_IF_ERROR(executor_.Capture(state_));
  if (!AllFinite(state_.weights) || !AllFinite(state_.velocity)) {
    return Diverged("a weight", state_.step);
  }
  state_.seconds = SecondsSoFar();
  state_.epoch_size = executor_.ledger().size();
  state_.committed = executor_.ledger().CommittedRanges();
  MOTLEY_RETURN_IF_ERROR(
      SaveCheckpoint(options_.checkpoints, executor_.graph(), state_, options_.keep_checkpoints));
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
      static_cast<double>(state_.epoch) + static_cast<double>(executor_.ledger().committed()) /
                                              static_cast<double>(executor_.ledger().size());
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
                       {"model", executor_.graph().name()},
                       {"parameters", executor_.graph().parameter_count()},
                       {"device", executor_.kind()},
                       {"train_samples", executor_.ledger().size()},
                       {"test_samples", executor_.test_samples()},
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
