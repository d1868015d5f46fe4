#include "motley/engine/native/kernels/dnnl_kernel.h"
#include "motley/engine/native/kernels/kernels.h"
#include "motley/engine/native/reorder.h"

namespace motley::engine::native {
namespace {

using dnnl::memory;

class Lrn final : public DnnlKernel {
 public:
  explicit Lrn(const KernelContext& context)
      : DnnlKernel(context.engine), layout_(context.in[0]), desc_(ToDnnl(context.in[0])) {
    const graph::LrnAttrs& a = context.node().lrn();
    const auto algorithm = dnnl::algorithm::lrn_across_channels;
    const auto kind =
        context.training ? dnnl::prop_kind::forward_training : dnnl::prop_kind::forward_inference;
    const dnnl::lrn_forward::primitive_desc forward(
        {kind, algorithm, desc_, a.size, a.alpha, a.beta, a.k}, OwnScratchpad(), engine_);
    forward_ = dnnl::lrn_forward(forward);
    forward_pad_ = forward.scratchpad_desc();
    ReserveLibraryScratch(forward_pad_);
    if (!context.training) return;
    workspace_ = forward.workspace_desc();
    const dnnl::lrn_backward::primitive_desc backward(
        {algorithm, desc_, desc_, a.size, a.alpha, a.beta, a.k}, OwnScratchpad(), engine_, forward);
    backward_ = dnnl::lrn_backward(backward);
    backward_pad_ = backward.scratchpad_desc();
    ReserveLibraryScratch(backward_pad_);
  }

  KernelNeeds needs() const override {
    return {.input_in_backward = true,
            .workspace_floats = Floats(workspace_),
            .scratch_floats = library_floats() + layout_.size()};
  }

  void Forward(LaneRun&) override {
    Arguments arguments{{DNNL_ARG_SRC, At(desc_, b_.in[0])}, {DNNL_ARG_DST, At(desc_, b_.out)}};
    if (b_.workspace != nullptr) arguments[DNNL_ARG_WORKSPACE] = At(workspace_, b_.workspace);
    Execute(forward_, forward_pad_, std::move(arguments));
  }

  void Backward(LaneRun&) override {
    if (b_.in_grad[0] == nullptr) return;
    float* const target = b_.accumulate[0] ? own_scratch() : b_.in_grad[0];
    Arguments arguments{{DNNL_ARG_SRC, At(desc_, b_.in[0])},
                        {DNNL_ARG_DIFF_DST, At(desc_, b_.out_grad)},
                        {DNNL_ARG_DIFF_SRC, At(desc_, target)}};
    if (b_.workspace != nullptr) arguments[DNNL_ARG_WORKSPACE] = At(workspace_, b_.workspace);
    Execute(backward_, backward_pad_, std::move(arguments));
    if (b_.accumulate[0]) AddTo(b_.in_grad[0], target, layout_.size());
  }

 private:
  Layout layout_;
  memory::desc desc_, workspace_, forward_pad_, backward_pad_;
  dnnl::lrn_forward forward_;
  dnnl::lrn_backward backward_;
};

}  // namespace

std::unique_ptr<Kernel> MakeLrn(const KernelContext& context) {
  return std::make_unique<Lrn>(context);
}

}  // namespace motley::engine::native
