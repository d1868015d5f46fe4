#include "motley/run/local_executor.h"

#include <atomic>
#include <cmath>
#include <span>
#include <utility>

#include "motley/optim/sgd.h"
#include "motley/run/evaluate.h"
#include "motley/run/update.h"

namespace motley::run {
namespace {

Feed::Options FeedOptions(const TrainOptions& options) {
  Feed::Options feed{.batch = options.batch,
                     .seed = options.seed,
                     .loader_threads = options.loader_threads,
                     .end_epoch = std::nullopt};
  if (options.epochs) feed.end_epoch = static_cast<std::uint64_t>(*options.epochs);
  return feed;
}

}  // namespace

LocalExecutor::LocalExecutor(const TrainOptions& options, engine::Device& device,
                             const data::DataPair& data, const base::Clock& clock,
                             TrainState& state, data::Ledger ledger,
                             const std::atomic<bool>* interrupt)
    : options_(options),
      device_(device),
      data_(data),
      clock_(clock),
      interrupt_(interrupt),
      feed_(data.train, options.train_transform, FeedOptions(options), std::move(ledger)),
      weights_(std::move(state.weights)),
      velocity_(std::move(state.velocity)),
      buffers_(std::move(state.buffers)),
      gradient_(weights_.size()),
      buffer_sums_(buffers_.size()) {}

base::Result<Update> LocalExecutor::Step(const optim::SgdOptions& sgd) {
  const double before = clock_.Now();
  MOTLEY_ASSIGN_OR_RETURN(const Feed::Item item, feed_.Next());
  const double wait_seconds = clock_.Now() - before;

  engine::StepRequest request;
  request.weights = weights_;
  request.batch = &item.batch;
  request.seed = options_.seed;
  request.gradient = gradient_;
  request.buffer_sums = buffer_sums_;
  std::atomic<bool> finite = true;
  std::atomic<std::int64_t> updated = 0;
  request.on_final = [&](std::int64_t offset, std::int64_t count) {
    updated += count;
    const auto part = [&](std::vector<float>& all) {
      return std::span(all).subspan(static_cast<std::size_t>(offset),
                                    static_cast<std::size_t>(count));
    };
    if (!optim::SgdUpdate(sgd, part(gradient_), item.ticket.size(), part(weights_),
                          part(velocity_))) {
      finite.store(false, std::memory_order_relaxed);
    }
  };
  MOTLEY_ASSIGN_OR_RETURN(const engine::StepResult result, device_.Step(request));
  if (updated != std::ssize(weights_)) {
    return base::Internal("device '{}' finished {} of {} gradients", device_.kind(), updated.load(),
                          weights_.size());
  }
  if (result.samples_done != item.ticket.size()) {
    return base::Internal("device '{}' did {} of {} samples without a deadline", device_.kind(),
                          result.samples_done, item.ticket.size());
  }
  Update update{.samples = result.samples_done,
                .loss_sum = result.loss_sum,
                .correct = result.correct,
                .compute_seconds = result.seconds,
                .wait_seconds = wait_seconds,
                .not_finite = {}};
  if (!std::isfinite(result.loss_sum)) {
    update.not_finite = "the loss";
  } else if (!finite) {
    update.not_finite = "a weight";
  } else {
    update.not_finite = UpdateBuffers(graph(), buffer_sums_, result.samples_done, buffers_);
  }
  if (update.not_finite.empty()) MOTLEY_RETURN_IF_ERROR(feed_.Commit(item.ticket));
  return update;
}

base::Result<Evaluation> LocalExecutor::Evaluate() {
  return run::Evaluate(device_, weights_, buffers_, data_.test, options_.test_transform,
                       options_.batch, options_.loader_threads, interrupt_);
}

base::Status LocalExecutor::Capture(TrainState& state) {
  state.weights = weights_;
  state.velocity = velocity_;
  state.buffers = buffers_;
  state.kernel_choices = device_.kernel_choices();
  return {};
}

}  // namespace motley::run
