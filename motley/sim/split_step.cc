#include "motley/sim/split_step.h"

#include <algorithm>
#include <chrono>
#include <utility>

namespace motley::sim {

double HeadPart(const graph::Halves& halves) {
  const auto flops = [](const graph::Graph& graph) {
    return static_cast<double>(graph.ForwardFlops() + graph.BackwardFlops());
  };
  return flops(halves.head) / (flops(halves.body) + flops(halves.head));
}

SplitStep::SplitStep(engine::Device& body, engine::Device& head)
    : body_(body),
      head_(head),
      features_(graph::Count(head.graph().input_shape())),
      outcome_(engine::StepResult{}) {}

base::Result<engine::StepResult> SplitStep::Step(engine::StepRequest request,
                                                 std::span<const float> head_weights,
                                                 std::span<float> head_gradient) {
  const data::Batch& samples = *request.batch;
  batch_.labels = samples.labels;
  batch_.ids = samples.ids;
  batch_.epoch = samples.epoch;
  batch_.images.resize(static_cast<std::size_t>(samples.size() * features_));
  gradient_.resize(batch_.images.size());
  missing_ = samples.size();
  outcome_ = base::Cancelled("the body gave the step up");
  engine::StepRequest head;
  head.weights = head_weights;
  head.batch = &batch_;
  head.seed = request.seed;
  head.gradient = head_gradient;
  head.input_gradient = gradient_;
  request.on_boundary = [&](const engine::Crossing& crossing) { return Cross(crossing, head); };
  auto result = body_.Step(request);
  if (missing_ == 0 && !outcome_.ok()) return outcome_.status();
  if (!result.ok()) return result;
  result->loss_sum = outcome_->loss_sum;
  result->correct = outcome_->correct;
  return result;
}

bool SplitStep::Cross(const engine::Crossing& crossing, engine::StepRequest& head) {
  constexpr auto kLook = std::chrono::milliseconds(50);
  const std::int64_t begin = crossing.begin * features_, end = crossing.end * features_;
  // Threads have different samples.
  std::copy(crossing.activations.begin(), crossing.activations.end(),
            batch_.images.begin() + begin);
  {
    std::unique_lock lock(mutex_);
    missing_ -= crossing.end - crossing.begin;
    if (missing_ == 0) {
      outcome_ = head_.Step(head);
      changed_.notify_all();
    }
    while (missing_ > 0) {
      if (*crossing.given_up) return false;
      changed_.wait_for(lock, kLook);
    }
    if (!outcome_.ok()) return false;
  }
  std::copy(gradient_.begin() + begin, gradient_.begin() + end, crossing.gradient.begin());
  return true;
}

}  // namespace motley::sim
