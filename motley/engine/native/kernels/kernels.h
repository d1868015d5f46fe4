#ifndef MOTLEY_ENGINE_NATIVE_KERNELS_KERNELS_H_
#define MOTLEY_ENGINE_NATIVE_KERNELS_KERNELS_H_

#include <cstdint>
#include <memory>

#include "motley/engine/native/kernel.h"

namespace motley::engine::native {

// Every kernel's maker. Requirements on layouts stand beside each; the program inserts conversions
// so that they hold.

// The layouts in which oneDNN runs one convolution best. Found for a fixed number of samples, so
// that they do not depend on which batch happened to be compiled first.
struct ConvLayouts {
  // Winograd's algorithm rounds more. In the backward pass that hardly shows (resnet18's gradient
  // is 1.7 times as far from the true one as PyTorch's, at worst); in the forward pass each layer
  // hands its error to all later ones (4.3 times), so that one is always direct.
  dnnl::algorithm backward = dnnl::algorithm::convolution_direct;
  std::int64_t in_inner = 1, out_inner = 1;
  dnnl::memory::desc forward_weights, backward_weights, gradient;
};
// Throws dnnl::error where the algorithm cannot do this convolution.
ConvLayouts FindConvLayouts(const graph::Graph& graph, graph::NodeId id, dnnl::algorithm backward,
                            const dnnl::engine& engine);
// Whether Winograd's algorithm applies.
bool CanWinograd(const graph::Node& node);
std::unique_ptr<Kernel> MakeConvDnnl(const KernelContext& context, const ConvLayouts& layouts);

// The direct convolution forward, Winograd's backward, without oneDNN. Blocks of 8 channels, all of
// them full.
bool CanOwnWinograd(const graph::Node& node, const Layout& in, const Layout& out);
std::unique_ptr<Kernel> MakeConvWinograd(const KernelContext& context, const ConvLayouts& layouts);

// Convolution as one GEMM over lowered patches: input and output NHWC, groups = 1.
bool CanLower(const graph::Node& node);
// How many rows a GEMM gets at least, where the batch has as many: `rows` / output pixels images
// are lowered at once (b_p). More cost only memory; bench/lowering shows the trade.
constexpr std::int64_t kLoweredRows = 512;
std::unique_ptr<Kernel> MakeConvLowered(const KernelContext& context,
                                        std::int64_t rows = kLoweredRows);

// Converts between layouts of the same values.
std::unique_ptr<Kernel> MakeConvert(const KernelContext& context);

// Any layout, the same for input and output.
std::unique_ptr<Kernel> MakeRelu(const KernelContext& context, float ceiling);
std::unique_ptr<Kernel> MakeDropout(const KernelContext& context);
std::unique_ptr<Kernel> MakeAdd(const KernelContext& context);
std::unique_ptr<Kernel> MakeMaxPool(const KernelContext& context);
std::unique_ptr<Kernel> MakeAvgPool(const KernelContext& context);
std::unique_ptr<Kernel> MakeLrn(const KernelContext& context);
// `ordinal`: which batch norm of the net this is.
std::unique_ptr<Kernel> MakeBatchNorm(const KernelContext& context, int ordinal);

// Any layouts, not necessarily the same.
std::unique_ptr<Kernel> MakeConcat(const KernelContext& context);
std::unique_ptr<Kernel> MakeSlice(const KernelContext& context);
std::unique_ptr<Kernel> MakeChannelShuffle(const KernelContext& context);
std::unique_ptr<Kernel> MakePad(const KernelContext& context);
// Output plain.
std::unique_ptr<Kernel> MakeGlobalAvgPool(const KernelContext& context);

// Plain layouts.
std::unique_ptr<Kernel> MakeFlatten(const KernelContext& context);
std::unique_ptr<Kernel> MakeFullyConnected(const KernelContext& context);
std::unique_ptr<Kernel> MakeLoss(const KernelContext& context);
std::unique_ptr<Kernel> MakeBoundary(const KernelContext& context);

}  // namespace motley::engine::native

#endif  // MOTLEY_ENGINE_NATIVE_KERNELS_KERNELS_H_
