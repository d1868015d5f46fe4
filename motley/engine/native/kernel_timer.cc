#include "motley/engine/native/kernel_timer.h"

#include <algorithm>
#include <limits>

#include "motley/base/clock.h"

namespace motley::engine::native {

KernelTimer::KernelTimer(const Layer& layer, const Gemm& gemm, const dnnl::engine& engine,
                         const float* weights, const Make& make)
    : parameters_(layer.graph, engine),
      kernel_(make({.graph = layer.graph,
                    .id = layer.id,
                    .training = true,
                    .in = {layer.in},
                    .out = layer.out,
                    .wants_gradient = {layer.wants_gradient},
                    .relu_ceiling = {},
                    .parameters = parameters_,
                    .gemm = gemm,
                    .engine = engine})),
      in_(layer.in.size()),
      out_(layer.out.size()),
      in_grad_(layer.in.size()),
      out_grad_(layer.out.size()),
      scratch_(kernel_->needs().scratch_floats),
      workspace_(kernel_->needs().workspace_floats),
      gradients_(layer.graph.parameters().size(), nullptr) {
  for (int i = 0; i < parameters_.copies(); ++i) parameters_.Refresh(i, weights, true);
  for (const int index : layer.graph.parameters_of(layer.id)) {
    gradient_memory_.emplace_back(parameters_.GradientSize(index));
    gradients_[static_cast<std::size_t>(index)] = gradient_memory_.back().data();
  }
  run_.weights = weights;
  run_.gradients = gradients_;
  kernel_->Bind({.in = {in_.data()},
                 .out = out_.data(),
                 .in_grad = {layer.wants_gradient ? in_grad_.data() : nullptr},
                 .accumulate = {false},
                 .out_grad = out_grad_.data(),
                 .workspace = workspace_.data(),
                 .scratch = scratch_.data()});
}

double KernelTimer::Time(double give_up_after) {
  const base::RealClock clock;
  double best = std::numeric_limits<double>::infinity();
  for (int repetition = 0; repetition < 4; ++repetition) {
    const double begin = clock.Now();
    kernel_->Forward(run_);
    kernel_->Backward(run_);
    const double seconds = clock.Now() - begin;
    if (repetition == 0) continue;
    best = std::min(best, seconds);
    if (best > 3.0 * give_up_after) break;
  }
  return best;
}

}  // namespace motley::engine::native
