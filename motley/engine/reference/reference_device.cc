#include "motley/engine/reference/reference_device.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "motley/base/check.h"
#include "motley/base/clock.h"
#include "motley/engine/reference/network.h"

namespace motley::engine::reference {
namespace {

using base::Result;
using base::Status;

Values Widened(std::span<const float> values) { return {values.begin(), values.end()}; }

void Narrow(View from, std::span<float> to) {
  std::transform(from.begin(), from.end(), to.begin(),
                 [](double value) { return static_cast<float>(value); });
}

Status CheckBatch(const graph::Graph& graph, const data::Batch& batch) {
  const std::int64_t expected = batch.size() * graph::Count(graph.input_shape());
  MOTLEY_CHECK(static_cast<std::int64_t>(batch.images.size()) == expected,
               "the batch has {} values, {} samples need {}", batch.images.size(), batch.size(),
               expected);
  MOTLEY_CHECK(batch.ids.size() == batch.labels.size(), "{} ids for {} labels", batch.ids.size(),
               batch.labels.size());
  for (std::size_t i = 0; i < batch.labels.size(); ++i) {
    if (batch.labels[i] < 0 || batch.labels[i] >= graph.num_classes()) {
      return base::InvalidInput("sample {} has the label {}, but {} knows {} classes", batch.ids[i],
                                batch.labels[i], graph.name(), graph.num_classes());
    }
  }
  return {};
}

std::vector<std::pair<std::int64_t, std::int64_t>> All(const data::Batch& batch) {
  if (batch.size() == 0) return {};
  return {{0, batch.size()}};
}

class ReferenceDevice final : public Device {
 public:
  ReferenceDevice(std::shared_ptr<const graph::Graph> graph, const DeviceOptions& options)
      : graph_(std::move(graph)), bn_batch_(options.bn_batch) {}

  const graph::Graph& graph() const override { return *graph_; }
  std::string kind() const override { return "reference"; }

  Result<StepResult> Step(const StepRequest& request) override {
    const double start = clock_.Now();
    const data::Batch& batch = *request.batch;
    MOTLEY_RETURN_IF_ERROR(CheckBatch(*graph_, batch));
    CheckSizes(request.weights, request.gradient.size());
    MOTLEY_CHECK(std::ssize(request.buffer_sums) == graph_->buffer_count(),
                 "{} buffer sums, the graph has {}", request.buffer_sums.size(),
                 graph_->buffer_count());

    Network network(*graph_, Widened(request.weights), batch);
    const auto stop = [&] { return Stopped(request) || clock_.Now() >= request.deadline; };
    const bool finished =
        network.ForwardTraining({.bn_batch = bn_batch_, .seed = request.seed}, stop) &&
        network.Backward(stop);
    if (Stopped(request)) return base::Cancelled("the step was cancelled");
    if (!finished) return Nothing(request, start);

    Narrow(network.gradient(), request.gradient);
    Narrow(network.buffer_sums(), request.buffer_sums);
    if (request.on_bucket) request.on_bucket(0, graph_->parameter_count());
    if (request.on_final) request.on_final(0, graph_->parameter_count());
    return StepResult{.loss_sum = network.loss().sum,
                      .correct = network.loss().correct,
                      .samples_done = batch.size(),
                      .done = All(batch),
                      .seconds = clock_.Now() - start};
  }

  Result<StepResult> Forward(const ForwardRequest& request) override {
    const double start = clock_.Now();
    const data::Batch& batch = *request.batch;
    MOTLEY_RETURN_IF_ERROR(CheckBatch(*graph_, batch));
    CheckSizes(request.weights, request.weights.size());
    MOTLEY_CHECK(std::ssize(request.buffers) == graph_->buffer_count(),
                 "{} buffers, the graph has {}", request.buffers.size(), graph_->buffer_count());

    Network network(*graph_, Widened(request.weights), batch);
    network.ForwardTrained(Widened(request.buffers));
    if (!request.logits.empty()) {
      MOTLEY_CHECK(request.logits.size() == network.logits().size(),
                   "room for {} logits, the batch has {}", request.logits.size(),
                   network.logits().size());
      Narrow(network.logits(), request.logits);
    }
    return StepResult{.loss_sum = network.loss().sum,
                      .correct = network.loss().correct,
                      .samples_done = batch.size(),
                      .done = All(batch),
                      .seconds = clock_.Now() - start};
  }

 private:
  static bool Stopped(const StepRequest& request) {
    return request.cancel != nullptr && request.cancel->load();
  }

  void CheckSizes(std::span<const float> weights, std::size_t gradient) const {
    MOTLEY_CHECK(std::ssize(weights) == graph_->parameter_count() && gradient == weights.size(),
                 "{} weights and a gradient of {}, the graph has {} parameters", weights.size(),
                 gradient, graph_->parameter_count());
  }

  // All samples go through the net together, so at a deadline none is finished.
  StepResult Nothing(const StepRequest& request, double start) const {
    std::fill(request.gradient.begin(), request.gradient.end(), 0.0F);
    std::fill(request.buffer_sums.begin(), request.buffer_sums.end(), 0.0F);
    if (request.on_bucket) request.on_bucket(0, graph_->parameter_count());
    return StepResult{.seconds = clock_.Now() - start};
  }

  std::shared_ptr<const graph::Graph> graph_;
  std::int64_t bn_batch_;
  base::RealClock clock_;
};

}  // namespace

std::unique_ptr<Device> MakeReferenceDevice(std::shared_ptr<const graph::Graph> graph,
                                            const DeviceOptions& options) {
  MOTLEY_CHECK(options.bn_batch >= 0, "bn_batch is {}", options.bn_batch);
  return std::make_unique<ReferenceDevice>(std::move(graph), options);
}

}  // namespace motley::engine::reference
