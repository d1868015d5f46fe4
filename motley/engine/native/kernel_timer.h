#ifndef MOTLEY_ENGINE_NATIVE_KERNEL_TIMER_H_
#define MOTLEY_ENGINE_NATIVE_KERNEL_TIMER_H_

#include <algorithm>
#include <limits>
#include <memory>

#include "motley/base/clock.h"
#include "motley/engine/native/aligned.h"
#include "motley/engine/native/kernel.h"

namespace motley::engine::native {

// A kernel with memory of its own, for timing.
class KernelTimer {
 public:
  KernelTimer(std::unique_ptr<Kernel> kernel, const Layout& in, const Layout& out,
              bool wants_gradient)
      : kernel_(std::move(kernel)),
        in_(in.size()),
        out_(out.size()),
        in_grad_(in.size()),
        out_grad_(out.size()),
        scratch_(kernel_->needs().scratch_floats),
        workspace_(kernel_->needs().workspace_floats) {
    kernel_->Bind({.in = {in_.data()},
                   .out = out_.data(),
                   .in_grad = {wants_gradient ? in_grad_.data() : nullptr},
                   .accumulate = {false},
                   .out_grad = out_grad_.data(),
                   .workspace = workspace_.data(),
                   .scratch = scratch_.data()});
  }

  // Seconds of one forward and backward pass: the best of three after one to warm up. Stops as soon
  // as it is clear that the answer is above `give_up_after`.
  double Time(LaneRun& run, double give_up_after) {
    const base::RealClock clock;
    double best = std::numeric_limits<double>::infinity();
    for (int repetition = 0; repetition < 4; ++repetition) {
      const double begin = clock.Now();
      kernel_->Forward(run);
      kernel_->Backward(run);
      const double seconds = clock.Now() - begin;
      if (repetition == 0) continue;
      best = std::min(best, seconds);
      if (best > 3.0 * give_up_after) break;
    }
    return best;
  }

 private:
  std::unique_ptr<Kernel> kernel_;
  AlignedFloats in_, out_, in_grad_, out_grad_, scratch_, workspace_;
};

}  // namespace motley::engine::native

#endif  // MOTLEY_ENGINE_NATIVE_KERNEL_TIMER_H_
