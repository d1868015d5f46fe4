#ifndef MOTLEY_ENGINE_NATIVE_KERNEL_TIMER_H_
#define MOTLEY_ENGINE_NATIVE_KERNEL_TIMER_H_

#include <functional>
#include <memory>
#include <vector>

#include "motley/engine/native/aligned.h"
#include "motley/engine/native/kernel.h"

namespace motley::engine::native {

// A training kernel of one layer with memory of its own, for timing.
class KernelTimer {
 public:
  using Make = std::function<std::unique_ptr<Kernel>(const KernelContext&)>;

  struct Layer {
    const graph::Graph& graph;
    graph::NodeId id = 0;
    Layout in, out;
    bool wants_gradient = true;
  };

  // `weights`: canonical, of the whole net; must live as long as the timer.
  KernelTimer(const Layer& layer, const Gemm& gemm, const dnnl::engine& engine,
              const float* weights, const Make& make);

  KernelNeeds needs() const { return kernel_->needs(); }

  // Seconds of one forward and backward pass: the best of three after one to warm up. Stops as soon
  // as it is clear that the answer is above `give_up_after`.
  double Time(double give_up_after);

 private:
  Parameters parameters_;
  std::unique_ptr<Kernel> kernel_;
  AlignedFloats in_, out_, in_grad_, out_grad_, scratch_, workspace_;
  std::vector<AlignedFloats> gradient_memory_;
  std::vector<float*> gradients_;  // by parameter
  LaneRun run_;
};

}  // namespace motley::engine::native

#endif  // MOTLEY_ENGINE_NATIVE_KERNEL_TIMER_H_
