#include <algorithm>
#include <cmath>

#include "motley/engine/native/kernels/kernels.h"

namespace motley::engine::native {
namespace {

// Softmax cross-entropy, summed over the samples. The gradient, softmax minus one at the label, is
// made in the forward pass, while the exponentials are at hand.
class Loss final : public Kernel {
 public:
  explicit Loss(const KernelContext& context)
      : n_(context.in[0].n), classes_(context.in[0].c), training_(context.training) {}

  KernelNeeds needs() const override { return {.workspace_floats = training_ ? n_ * classes_ : 0}; }

  void Forward(LaneRun& run) override {
    for (std::int64_t n = 0; n < n_; ++n) {
      const float* const x = b_.in[0] + n * classes_;
      const float* const largest = std::max_element(x, x + classes_);
      const auto label = static_cast<std::int64_t>(run.labels[n]);
      double sum = 0.0;
      for (std::int64_t k = 0; k < classes_; ++k) {
        sum += std::exp(static_cast<double>(x[k]) - static_cast<double>(*largest));
      }
      run.loss_sum += std::log(sum) + static_cast<double>(*largest) - static_cast<double>(x[label]);
      if (largest - x == label) ++run.correct;
      if (!training_) continue;
      float* const g = b_.workspace + n * classes_;
      for (std::int64_t k = 0; k < classes_; ++k) {
        const double p = std::exp(static_cast<double>(x[k]) - static_cast<double>(*largest)) / sum;
        g[k] = static_cast<float>(k == label ? p - 1.0 : p);
      }
    }
  }

  void Backward(LaneRun&) override {
    if (b_.in_grad[0] == nullptr) return;
    if (b_.accumulate[0]) {
      AddTo(b_.in_grad[0], b_.workspace, n_ * classes_);
    } else {
      std::copy_n(b_.workspace, n_ * classes_, b_.in_grad[0]);
    }
  }

 private:
  std::int64_t n_, classes_;
  bool training_;
};

// The end of a body: the gradient comes from whoever has the head.
class Boundary final : public Kernel {
 public:
  explicit Boundary(const KernelContext& context)
      : n_(context.in[0].n), size_(context.in[0].size()) {}

  KernelNeeds needs() const override { return {.input_in_backward = true}; }
  void Forward(LaneRun&) override {}

  void Backward(LaneRun& run) override {
    const auto floats = static_cast<std::size_t>(size_);
    const Crossing crossing{.begin = run.first_sample,
                            .end = run.first_sample + n_,
                            .activations = {b_.in[0], floats},
                            .gradient = {b_.in_grad[0], floats},
                            .given_up = run.given_up};
    if (!(*run.on_boundary)(crossing)) throw Stopped();
  }

 private:
  std::int64_t n_, size_;
};

}  // namespace

std::unique_ptr<Kernel> MakeBoundary(const KernelContext& context) {
  return std::make_unique<Boundary>(context);
}

std::unique_ptr<Kernel> MakeLoss(const KernelContext& context) {
  return std::make_unique<Loss>(context);
}

}  // namespace motley::engine::native
