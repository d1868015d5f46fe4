#include <cblas.h>

#include <algorithm>

#include "motley/engine/native/kernels/kernels.h"

namespace motley::engine::native {
namespace {

// y = x * W^T + b with W as the canonical layout has it, [out][in]: nothing is ever reordered.
class FullyConnected final : public Kernel {
 public:
  explicit FullyConnected(const KernelContext& context)
      : n_(static_cast<int>(context.in[0].n)),
        in_(static_cast<int>(context.in[0].c)),
        out_(static_cast<int>(context.out.c)),
        bias_(context.node().fully_connected().bias),
        weight_index_(context.graph.parameters_of(context.id).front()),
        offset_(context.graph.parameters()[static_cast<std::size_t>(weight_index_)].offset) {}

  KernelNeeds needs() const override { return {.input_in_backward = true}; }

  void Forward(LaneRun& run) override {
    const float* const w = run.weights + offset_;
    float beta = 0.0F;
    if (bias_) {
      const float* const bias = w + std::int64_t{out_} * in_;
      for (int n = 0; n < n_; ++n) std::copy_n(bias, out_, b_.out + std::int64_t{n} * out_);
      beta = 1.0F;
    }
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, n_, out_, in_, 1.0F, b_.in[0], in_, w, in_,
                beta, b_.out, out_);
  }

  void Backward(LaneRun& run) override {
    const float beta = run.accumulate ? 1.0F : 0.0F;
    cblas_sgemm(CblasRowMajor, CblasTrans, CblasNoTrans, out_, in_, n_, 1.0F, b_.out_grad, out_,
                b_.in[0], in_, beta, run.gradients[static_cast<std::size_t>(weight_index_)], in_);
    if (bias_) {
      float* const db = run.gradients[static_cast<std::size_t>(weight_index_) + 1];
      if (!run.accumulate) std::fill_n(db, out_, 0.0F);
      for (int n = 0; n < n_; ++n) AddTo(db, b_.out_grad + std::int64_t{n} * out_, out_);
    }
    if (b_.in_grad[0] == nullptr) return;
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, n_, in_, out_, 1.0F, b_.out_grad, out_,
                run.weights + offset_, in_, b_.accumulate[0] ? 1.0F : 0.0F, b_.in_grad[0], in_);
  }

 private:
  int n_, in_, out_;
  bool bias_;
  int weight_index_;
  std::int64_t offset_;
};

}  // namespace

std::unique_ptr<Kernel> MakeFullyConnected(const KernelContext& context) {
  return std::make_unique<FullyConnected>(context);
}

}  // namespace motley::engine::native
