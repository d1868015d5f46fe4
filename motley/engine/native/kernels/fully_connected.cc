#include <algorithm>

#include "motley/engine/native/kernels/kernels.h"

namespace motley::engine::native {
namespace {

// y = x * W^T + b with W as the canonical layout has it, [out][in]: nothing is ever reordered.
class FullyConnected final : public Kernel {
 public:
  explicit FullyConnected(const KernelContext& context)
      : gemm_(context.gemm),
        n_(context.in[0].n),
        in_(context.in[0].c),
        out_(context.out.c),
        bias_(context.node().fully_connected().bias),
        weight_index_(context.graph.parameters_of(context.id).front()),
        offset_(context.graph.parameters()[static_cast<std::size_t>(weight_index_)].offset) {
    if (context.training) context.parameters.LeaveAsFactors(weight_index_);
  }

  KernelNeeds needs() const override { return {.input_in_backward = true}; }

  void Forward(LaneRun& run) override {
    const float* const w = run.weights + offset_;
    float beta = 0.0F;
    if (bias_) {
      const float* const bias = w + out_ * in_;
      for (std::int64_t n = 0; n < n_; ++n) std::copy_n(bias, out_, b_.out + n * out_);
      beta = 1.0F;
    }
    gemm_(Use::kPlain, Use::kTransposed, n_, out_, in_, b_.in[0], in_, w, in_, beta, b_.out, out_);
  }

  void Backward(LaneRun& run) override {
    const GradientFactors& factors = run.factors[static_cast<std::size_t>(weight_index_)];
    std::copy_n(b_.in[0], n_ * in_, factors.input + run.first_sample * in_);
    std::copy_n(b_.out_grad, n_ * out_, factors.gradient + run.first_sample * out_);
    if (bias_) {
      float* const db = run.gradients[static_cast<std::size_t>(weight_index_) + 1];
      if (!run.accumulate) std::fill_n(db, out_, 0.0F);
      for (std::int64_t n = 0; n < n_; ++n) AddTo(db, b_.out_grad + n * out_, out_);
    }
    if (b_.in_grad[0] == nullptr) return;
    gemm_(Use::kPlain, Use::kPlain, n_, in_, out_, b_.out_grad, out_, run.weights + offset_, in_,
          b_.accumulate[0] ? 1.0F : 0.0F, b_.in_grad[0], in_);
  }

 private:
  const Gemm& gemm_;
  std::int64_t n_, in_, out_;
  bool bias_;
  int weight_index_;
  std::int64_t offset_;
};

}  // namespace

std::unique_ptr<Kernel> MakeFullyConnected(const KernelContext& context) {
  return std::make_unique<FullyConnected>(context);
}

}  // namespace motley::engine::native
