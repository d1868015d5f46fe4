#include "motley/engine/torch/network.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <limits>

#include "motley/base/check.h"
#include "motley/engine/dropout.h"

namespace motley::engine::torch {
namespace {

using graph::NodeId;
using graph::Op;

std::size_t Index(std::int64_t value) { return static_cast<std::size_t>(value); }

at::Tensor Pad(const at::Tensor& x, const graph::Padding& pad, double value = 0.0) {
  if (pad == graph::Padding{}) return x;
  return at::constant_pad_nd(x, {pad.left, pad.right, pad.top, pad.bottom}, value);
}

bool IsSymmetric(const graph::Padding& pad) {
  return pad.top == pad.bottom && pad.left == pad.right;
}

at::Tensor Conv(const graph::ConvAttrs& a, const at::Tensor& x, const at::Tensor& weight,
                const at::Tensor& bias) {
  const std::int64_t stride[] = {a.stride_h, a.stride_w};
  const std::int64_t dilation[] = {a.dilation_h, a.dilation_w};
  const std::int64_t none[] = {0, 0};
  const std::int64_t pad[] = {a.pad.top, a.pad.left};
  if (IsSymmetric(a.pad)) return at::conv2d(x, weight, bias, stride, pad, dilation, a.groups);
  return at::conv2d(Pad(x, a.pad), weight, bias, stride, none, dilation, a.groups);
}

// The windows of a pooling layer in ATen's terms.
struct Windows {
  explicit Windows(const graph::PoolAttrs& a)
      : kernel{a.kernel_h, a.kernel_w},
        stride{a.stride_h, a.stride_w},
        pad{a.pad.top, a.pad.left} {}

  std::int64_t kernel[2], stride[2], pad[2];
};

// All that ATen pads itself.
bool IsOrdinary(const graph::PoolAttrs& a) {
  return IsSymmetric(a.pad) && 2 * a.pad.top <= a.kernel_h && 2 * a.pad.left <= a.kernel_w;
}

// The padded image, cut or filled up below and to the right to what the windows of the output
// cover: ceil_mode lets them reach beyond, and strides let them end before.
at::Tensor Covered(const graph::PoolAttrs& a, const graph::Shape& out, const at::Tensor& padded,
                   double value) {
  const std::int64_t height = (out[1] - 1) * a.stride_h + a.kernel_h;
  const std::int64_t width = (out[2] - 1) * a.stride_w + a.kernel_w;
  return at::constant_pad_nd(padded, {0, width - padded.size(3), 0, height - padded.size(2)},
                             value);
}

at::Tensor MaxPool(const graph::PoolAttrs& a, const graph::Shape& out, const at::Tensor& x) {
  const Windows w(a);
  if (IsOrdinary(a)) return at::max_pool2d(x, w.kernel, w.stride, w.pad, 1, a.ceil_mode);
  constexpr double kLeast = -std::numeric_limits<double>::infinity();
  return at::max_pool2d(Covered(a, out, Pad(x, a.pad, kLeast), kLeast), w.kernel, w.stride);
}

at::Tensor AvgPool(const graph::PoolAttrs& a, const graph::Shape& out, const at::Tensor& x) {
  const Windows w(a);
  if (IsOrdinary(a)) {
    return at::avg_pool2d(x, w.kernel, w.stride, w.pad, a.ceil_mode, a.count_include_pad);
  }
  const auto sums = [&](const at::Tensor& padded) {
    return at::avg_pool2d(Covered(a, out, padded, 0.0), w.kernel, w.stride, 0, false, true, 1);
  };
  // One for every element that counts.
  const at::Tensor ones = at::ones({1, 1, x.size(2), x.size(3)}, x.options());
  return sums(Pad(x, a.pad)) / sums(Pad(ones, a.pad, a.count_include_pad ? 1.0 : 0.0));
}

at::Tensor ShuffleChannels(const at::Tensor& x, std::int64_t groups) {
  return x.reshape({x.size(0), groups, x.size(1) / groups, -1}).transpose(1, 2).reshape(x.sizes());
}

// As torch.nn.functional has it; ATen has no such operator.
at::Tensor Lrn(const graph::LrnAttrs& a, const at::Tensor& x) {
  const at::Tensor squares = x.square().reshape({x.size(0), 1, x.size(1), -1, 1});
  const at::Tensor padded =
      at::constant_pad_nd(squares, {0, 0, 0, 0, a.size / 2, (a.size - 1) / 2});
  const at::Tensor means = at::avg_pool3d(padded, {a.size, 1, 1}, 1).reshape(x.sizes());
  return x / (means * double{a.alpha} + double{a.k}).pow(double{a.beta});
}

// One walk through the graph.
class Pass {
 public:
  Pass(const graph::Graph& graph, const PassOptions& options, const data::Batch& batch,
       const Chunk& chunk)
      : graph_(graph),
        options_(options),
        batch_(batch),
        chunk_(chunk),
        values_(graph.nodes().size()),
        last_readers_(graph.nodes().size(), graph.size()) {
    for (NodeId id = 0; id < graph_.loss(); ++id) {
      for (const NodeId input : graph_.node(id).inputs) last_readers_[Index(input)] = id;
    }
    last_readers_[Index(graph_.logits())] = graph_.size();
  }

  at::Tensor Run() {
    for (NodeId id = 0; id < graph_.loss(); ++id) {
      if (options_.stop_forward && options_.stop_forward()) throw Stopped{};
      at::Tensor& value = values_[Index(id)];
      value = Evaluate(id);
      if (options_.stop_backward && value.requires_grad()) {
        value.register_hook([&stop = options_.stop_backward](const at::Tensor&) {
          if (stop()) throw Stopped{};
        });
      }
      // Autograd keeps what it needs; the rest need not wait for the end.
      for (const NodeId input : graph_.node(id).inputs) {
        if (last_readers_[Index(input)] == id) values_[Index(input)].reset();
      }
    }
    return values_[Index(graph_.logits())].flatten(1);
  }

 private:
  // The node's parameters: which = 0 is the weight, 1 the bias; undefined if there is none.
  at::Tensor parameter(NodeId id, std::size_t which) const {
    const std::vector<int> indices = graph_.parameters_of(id);
    return which < indices.size() ? options_.parameters[Index(indices[which])] : at::Tensor();
  }

  at::Tensor Images() const;
  at::Tensor Evaluate(NodeId id) const;
  at::Tensor BatchNorm(NodeId id, const at::Tensor& x) const;
  at::Tensor DropoutFactors(NodeId id) const;

  const graph::Graph& graph_;
  const PassOptions& options_;
  const data::Batch& batch_;
  const Chunk chunk_;
  std::vector<at::Tensor> values_;    // by node
  std::vector<NodeId> last_readers_;  // by node; beyond the graph for what is kept
};

at::Tensor Pass::Images() const {
  const graph::Shape& shape = graph_.input_shape();
  std::vector<std::int64_t> sizes{chunk_.size()};
  sizes.insert(sizes.end(), shape.begin(), shape.end());
  const float* const first = batch_.images.data() + chunk_.begin * graph::Count(shape);
  // from_blob takes no const; no operator writes to its input.
  return at::from_blob(const_cast<float*>(first), sizes, at::kFloat).to(options_.device);
}

at::Tensor Pass::Evaluate(NodeId id) const {
  const graph::Node& node = graph_.node(id);
  if (node.op == Op::kInput) return Images();
  std::vector<at::Tensor> inputs;
  for (const NodeId input : node.inputs) inputs.push_back(values_[Index(input)]);
  const at::Tensor& x = inputs[0];
  switch (node.op) {
    case Op::kInput:
    case Op::kSoftmaxCrossEntropy:
    case Op::kBoundary:
      break;
    case Op::kConv:
      return Conv(node.conv(), x, parameter(id, 0), parameter(id, 1));
    case Op::kFullyConnected:
      return at::linear(x.flatten(1), parameter(id, 0), parameter(id, 1));
    case Op::kBatchNorm:
      return BatchNorm(id, x);
    case Op::kRelu:
      return at::relu(x);
    case Op::kRelu6:
      return at::relu6(x);
    case Op::kMaxPool:
      return MaxPool(node.pool(), node.shape, x);
    case Op::kAvgPool:
      return AvgPool(node.pool(), node.shape, x);
    case Op::kGlobalAvgPool:
      return x.mean({2, 3}, /*keepdim=*/true);
    case Op::kAdd:
      return x + inputs[1];
    case Op::kConcat:
      return at::cat(inputs, 1);
    case Op::kSlice:
      return x.slice(1, node.slice().begin, node.slice().end);
    case Op::kChannelShuffle:
      return ShuffleChannels(x, node.shuffle().groups);
    case Op::kPad:
      return Pad(x, node.pad().pad);
    case Op::kFlatten:
      return x.flatten(1);
    case Op::kDropout:
      return options_.training ? x * DropoutFactors(id).view(x.sizes()) : x;
    case Op::kLrn:
      return Lrn(node.lrn(), x);
  }
  MOTLEY_CHECK(false, "node '{}' has no forward function", node.name);
  return {};
}

at::Tensor Pass::BatchNorm(NodeId id, const at::Tensor& x) const {
  constexpr bool kUseCudnn = true;
  const at::Tensor gamma = parameter(id, 0), beta = parameter(id, 1);
  const double epsilon = graph_.node(id).batch_norm().epsilon;
  const std::vector<int> indices = graph_.buffers_of(id);
  const at::Tensor& mean = options_.buffers[Index(indices[0])];
  const at::Tensor& variance = options_.buffers[Index(indices[1])];
  if (!options_.training) {
    return at::batch_norm(x, gamma, beta, mean, variance, false, 0.0, epsilon, kUseCudnn);
  }
  std::vector<at::Tensor> parts;
  for (const at::Tensor& part : x.split(options_.bn_batch > 0 ? options_.bn_batch : x.size(0))) {
    // With momentum 1 the running statistics become those of the part.
    const at::Tensor part_mean = at::zeros_like(mean), part_variance = at::zeros_like(variance);
    parts.push_back(
        at::batch_norm(part, gamma, beta, part_mean, part_variance, true, 1.0, epsilon, kUseCudnn));
    mean.add_(part_mean, part.size(0));
    // Of one element LibTorch's unbiased variance is NaN; ours is 0.
    const bool is_one_element = part.numel() == part.size(1);
    if (!is_one_element) variance.add_(part_variance, part.size(0));
  }
  return parts.size() == 1 ? parts[0] : at::cat(parts);
}

// 0 or 1 / (1 - p) for every element. Made on the CPU, by the function that all devices share.
at::Tensor Pass::DropoutFactors(NodeId id) const {
  const graph::Node& node = graph_.node(id);
  const float probability = node.dropout().probability;
  const std::uint32_t threshold = DropoutThreshold(probability);
  const float kept = 1.0F / (1.0F - probability);
  const std::int64_t size = graph::Count(node.shape);
  at::Tensor factors = at::empty({chunk_.size(), size}, at::kFloat);
  float* const all = factors.data_ptr<float>();
  at::parallel_for(0, chunk_.size(), 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t n = begin; n < end; ++n) {
      const data::SampleId sample = batch_.ids[Index(chunk_.begin + n)];
      const std::uint64_t key = DropoutKey(options_.seed, batch_.epoch, sample, graph_.key(id));
      for (std::int64_t i = 0; i < size; ++i) {
        const bool keeps = DropoutKeep(key, static_cast<std::uint32_t>(i), threshold);
        all[n * size + i] = keeps ? kept : 0.0F;
      }
    }
  });
  return factors.to(options_.device);
}

}  // namespace

at::Tensor Logits(const graph::Graph& graph, const PassOptions& options, const data::Batch& batch,
                  const Chunk& chunk) {
  return Pass(graph, options, batch, chunk).Run();
}

}  // namespace motley::engine::torch
