// Convolution by oneDNN's JIT kernels, in the blocked layouts that it prefers.

#include <algorithm>
#include <limits>

#include "motley/engine/native/kernels/dnnl_kernel.h"
#include "motley/engine/native/kernels/kernels.h"
#include "motley/engine/native/kernels/simd/loops.h"
#include "motley/engine/native/kernels/trim.h"
#include "motley/engine/native/reorder.h"

namespace motley::engine::native {
namespace {

using dnnl::memory;
using Dims = memory::dims;
using Tag = memory::format_tag;

memory::desc AnyLayout(const Dims& dims) { return {dims, memory::data_type::f32, Tag::any}; }

// A convolution in oneDNN's terms.
struct ConvGeometry {
  Dims weights, bias, strides, dilations, pad_before, pad_after;
  memory::desc plain_weights;  // these weights among the canonical ones

  ConvGeometry(const graph::ConvAttrs& whole, const Layout& in, const Layout& out)
      : bias{whole.out_channels},
        strides{whole.stride_h, whole.stride_w},
        dilations{whole.dilation_h - 1, whole.dilation_w - 1} {
    const TrimmedConv trimmed(whole, in, out);
    const graph::ConvAttrs& a = trimmed.attrs;
    pad_before = {a.pad.top, a.pad.left};
    pad_after = {a.pad.bottom, a.pad.right};
    weights = Weights(a, in.c);
    const Dims all = Weights(whole, in.c);
    plain_weights =
        trimmed.Part({all, memory::data_type::f32, all.size() == 4 ? Tag::oihw : Tag::goihw});
  }

  static Dims Weights(const graph::ConvAttrs& a, std::int64_t in_channels) {
    if (a.groups == 1) return {a.out_channels, in_channels, a.kernel_h, a.kernel_w};
    return {a.groups, a.out_channels / a.groups, in_channels / a.groups, a.kernel_h, a.kernel_w};
  }
  memory::desc Bias(bool present) const {
    return present ? memory::desc(bias, memory::data_type::f32, Tag::x) : memory::desc();
  }
};

using ForwardDesc = dnnl::convolution_forward::primitive_desc;
using DataDesc = dnnl::convolution_backward_data::primitive_desc;
using WeightsDesc = dnnl::convolution_backward_weights::primitive_desc;

ForwardDesc MakeForward(const ConvGeometry& g, bool bias, bool training, const memory::desc& src,
                        const memory::desc& weights, const memory::desc& dst,
                        const dnnl::engine& engine, std::optional<float> relu_ceiling = {}) {
  dnnl::primitive_attr attributes = OwnScratchpad();
  if (relu_ceiling.has_value()) {
    dnnl::post_ops after;
    const bool plain = *relu_ceiling == std::numeric_limits<float>::infinity();
    after.append_eltwise(1.0F,
                         plain ? dnnl::algorithm::eltwise_relu : dnnl::algorithm::eltwise_clip,
                         0.0F, plain ? 0.0F : *relu_ceiling);
    attributes.set_post_ops(after);
  }
  const auto kind =
      training ? dnnl::prop_kind::forward_training : dnnl::prop_kind::forward_inference;
  const auto algorithm = dnnl::algorithm::convolution_direct;
  const dnnl::convolution_forward::desc desc =
      bias ? dnnl::convolution_forward::desc(kind, algorithm, src, weights, g.Bias(true), dst,
                                             g.strides, g.dilations, g.pad_before, g.pad_after)
           : dnnl::convolution_forward::desc(kind, algorithm, src, weights, dst, g.strides,
                                             g.dilations, g.pad_before, g.pad_after);
  return {desc, attributes, engine};
}

DataDesc MakeBackwardData(dnnl::algorithm algorithm, const ConvGeometry& g, const memory::desc& src,
                          const memory::desc& weights, const memory::desc& dst,
                          const dnnl::engine& engine, const ForwardDesc& hint) {
  return {dnnl::convolution_backward_data::desc(algorithm, src, weights, dst, g.strides,
                                                g.dilations, g.pad_before, g.pad_after),
          OwnScratchpad(), engine, hint};
}

WeightsDesc MakeBackwardWeights(dnnl::algorithm algorithm, const ConvGeometry& g, bool bias,
                                const memory::desc& src, const memory::desc& weights,
                                const memory::desc& dst, const dnnl::engine& engine,
                                const ForwardDesc& hint) {
  using Desc = dnnl::convolution_backward_weights::desc;
  const Desc desc =
      bias ? Desc(algorithm, src, weights, g.Bias(true), dst, g.strides, g.dilations, g.pad_before,
                  g.pad_after)
           : Desc(algorithm, src, weights, dst, g.strides, g.dilations, g.pad_before, g.pad_after);
  return {desc, OwnScratchpad(), engine, hint};
}

class ConvDnnl final : public DnnlKernel {
 public:
  ConvDnnl(const KernelContext& context, const ConvLayouts& layouts);
  KernelNeeds needs() const override;
  void Forward(LaneRun& run) override;
  void Backward(LaneRun& run) override;

 private:
  void BackwardWeights(LaneRun& run);
  void BackwardData();

  bool training_, bias_, wants_data_;
  std::optional<float> relu_ceiling_;
  const simd::Loops& loops_;
  int weight_index_;
  Layout in_;
  std::int64_t out_size_;
  memory::desc src_desc_, dst_desc_, bias_desc_, gradient_desc_;
  memory::desc forward_weights_desc_, backward_weights_desc_;
  const float* forward_weights_ = nullptr;
  const float* backward_weights_ = nullptr;
  std::int64_t bias_offset_ = 0;  // in the canonical weights
  memory::desc forward_pad_, data_pad_, weights_pad_;
  dnnl::convolution_forward forward_;
  dnnl::convolution_backward_data backward_data_;
  dnnl::convolution_backward_weights backward_weights_primitive_;
};

ConvDnnl::ConvDnnl(const KernelContext& context, const ConvLayouts& layouts)
    : DnnlKernel(context.engine),
      training_(context.training),
      bias_(context.node().conv().bias),
      wants_data_(context.wants_gradient[0]),
      relu_ceiling_(context.relu_ceiling),
      loops_(simd::BestLoops()),
      weight_index_(context.graph.parameters_of(context.id).front()),
      in_(context.in[0]),
      out_size_(context.out.size()),
      src_desc_(ToDnnl(context.in[0])),
      dst_desc_(ToDnnl(context.out)),
      gradient_desc_(layouts.gradient),
      forward_weights_desc_(layouts.forward_weights),
      backward_weights_desc_(layouts.backward_weights) {
  const ConvGeometry g(context.node().conv(), in_, context.out);
  const auto& tensors = context.graph.parameters();
  bias_desc_ = g.Bias(bias_);
  if (bias_) bias_offset_ = tensors[static_cast<std::size_t>(weight_index_) + 1].offset;

  Parameters& parameters = context.parameters;
  const memory::desc& plain = g.plain_weights;
  forward_weights_ = parameters.Copy(weight_index_, plain, forward_weights_desc_, false);
  const ForwardDesc forward = MakeForward(g, bias_, training_, src_desc_, forward_weights_desc_,
                                          dst_desc_, engine_, relu_ceiling_);
  forward_ = dnnl::convolution_forward(forward);
  forward_pad_ = forward.scratchpad_desc();
  ReserveLibraryScratch(forward_pad_);
  if (!training_) return;

  parameters.SetGradientLayout(weight_index_, plain, gradient_desc_);
  const WeightsDesc weights = MakeBackwardWeights(layouts.backward, g, bias_, src_desc_,
                                                  gradient_desc_, dst_desc_, engine_, forward);
  backward_weights_primitive_ = dnnl::convolution_backward_weights(weights);
  weights_pad_ = weights.scratchpad_desc();
  ReserveLibraryScratch(weights_pad_);
  if (!wants_data_) return;

  backward_weights_ = parameters.Copy(weight_index_, plain, backward_weights_desc_, true);
  const DataDesc data = MakeBackwardData(layouts.backward, g, src_desc_, backward_weights_desc_,
                                         dst_desc_, engine_, forward);
  backward_data_ = dnnl::convolution_backward_data(data);
  data_pad_ = data.scratchpad_desc();
  ReserveLibraryScratch(data_pad_);
}

KernelNeeds ConvDnnl::needs() const {
  std::int64_t ours = 0;
  if (training_) {
    const std::int64_t gradient = Floats(gradient_desc_) + (bias_ ? Floats(bias_desc_) + 16 : 0);
    ours = std::max(gradient, wants_data_ ? in_.size() : 0);
  }
  return {.input_in_backward = true,
          .output_in_backward = relu_ceiling_.has_value(),
          .scratch_floats = library_floats() + ours};
}

void ConvDnnl::Forward(LaneRun& run) {
  Arguments arguments{{DNNL_ARG_SRC, At(src_desc_, b_.in[0])},
                      {DNNL_ARG_WEIGHTS, At(forward_weights_desc_, forward_weights_)},
                      {DNNL_ARG_DST, At(dst_desc_, b_.out)}};
  if (bias_) arguments[DNNL_ARG_BIAS] = At(bias_desc_, run.weights + bias_offset_);
  Execute(forward_, forward_pad_, std::move(arguments));
}

void ConvDnnl::Backward(LaneRun& run) {
  if (relu_ceiling_.has_value()) {
    loops_.relu_backward(b_.out, b_.out_grad, b_.out_grad, out_size_, *relu_ceiling_, false);
  }
  BackwardWeights(run);
  if (b_.in_grad[0] != nullptr) BackwardData();
}

void ConvDnnl::BackwardWeights(LaneRun& run) {
  const auto index = static_cast<std::size_t>(weight_index_);
  const std::int64_t floats = Floats(gradient_desc_);
  float* const target = run.accumulate ? own_scratch() : run.gradients[index];
  Arguments arguments{{DNNL_ARG_SRC, At(src_desc_, b_.in[0])},
                      {DNNL_ARG_DIFF_DST, At(dst_desc_, b_.out_grad)},
                      {DNNL_ARG_DIFF_WEIGHTS, At(gradient_desc_, target)}};
  float* bias_target = nullptr;
  if (bias_) {
    bias_target = run.accumulate ? target + (floats + 15) / 16 * 16 : run.gradients[index + 1];
    arguments[DNNL_ARG_DIFF_BIAS] = At(bias_desc_, bias_target);
  }
  Execute(backward_weights_primitive_, weights_pad_, std::move(arguments));
  if (!run.accumulate) return;
  AddTo(run.gradients[index], target, floats);
  if (bias_) AddTo(run.gradients[index + 1], bias_target, Floats(bias_desc_));
}

void ConvDnnl::BackwardData() {
  float* const target = b_.accumulate[0] ? own_scratch() : b_.in_grad[0];
  Execute(backward_data_, data_pad_,
          {{DNNL_ARG_DIFF_DST, At(dst_desc_, b_.out_grad)},
           {DNNL_ARG_WEIGHTS, At(backward_weights_desc_, backward_weights_)},
           {DNNL_ARG_DIFF_SRC, At(src_desc_, target)}});
  if (b_.accumulate[0]) AddTo(b_.in_grad[0], target, in_.size());
}

}  // namespace

ConvLayouts FindConvLayouts(const graph::Graph& graph, graph::NodeId id, dnnl::algorithm backward,
                            const dnnl::engine& engine) {
  constexpr std::int64_t kSamples = 16;
  const graph::Node& node = graph.node(id);
  const Layout in = PlainLayout(graph.node(node.inputs[0]).shape, kSamples);
  const Layout out = PlainLayout(node.shape, kSamples);
  const ConvGeometry g(node.conv(), in, out);
  const bool bias = node.conv().bias;
  const memory::desc any = AnyLayout(g.weights);

  ConvLayouts result;
  result.backward = backward;
  {
    const ForwardDesc free = MakeForward(g, bias, true, AnyLayout({in.n, in.c, in.h, in.w}), any,
                                         AnyLayout({out.n, out.c, out.h, out.w}), engine);
    // A layout that is none of ours counts as plain.
    result.in_inner = std::max<std::int64_t>(1, InnerOf(free.src_desc(), in));
    result.out_inner = std::max<std::int64_t>(1, InnerOf(free.dst_desc(), out));
  }
  const memory::desc src = ToDnnl(in.WithInner(result.in_inner));
  const memory::desc dst = ToDnnl(out.WithInner(result.out_inner));
  const ForwardDesc forward = MakeForward(g, bias, true, src, any, dst, engine);
  result.forward_weights = forward.weights_desc();
  result.backward_weights =
      MakeBackwardData(backward, g, src, any, dst, engine, forward).weights_desc();
  result.gradient =
      MakeBackwardWeights(backward, g, bias, src, any, dst, engine, forward).diff_weights_desc();
  return result;
}

bool CanWinograd(const graph::Node& node) {
  const graph::ConvAttrs& a = node.conv();
  return a.groups == 1 && a.kernel_h == 3 && a.kernel_w == 3 && a.stride_h == 1 &&
         a.stride_w == 1 && a.dilation_h == 1 && a.dilation_w == 1;
}

std::unique_ptr<Kernel> MakeConvDnnl(const KernelContext& context, const ConvLayouts& layouts) {
  return std::make_unique<ConvDnnl>(context, layouts);
}

}  // namespace motley::engine::native
