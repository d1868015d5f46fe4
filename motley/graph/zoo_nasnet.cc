// NASNet-A mobile (Zoph et al. 2017) as Keras has it: 4 normal cells per stage, 1056 filters before
// the classifier, two reduction cells in the stem. Names of layers are Keras's; a separable
// convolution is two nodes, ".depthwise" and ".pointwise".
#include <utility>

#include "motley/graph/zoo_nets.h"

namespace motley::graph::zoo {
namespace {

constexpr int kCellsPerStage = 4;
constexpr int kStemFilters = 32;
constexpr int kFilters = 1056 / 24;

// A cell reads the output of the one before it and of the one before that.
struct Pair {
  NodeId now, before;
};

NodeId Norm(GraphBuilder& net, const std::string& name, NodeId input) {
  // Keras's momentum of 0.9997 is the part of the old value that is kept.
  return net.BatchNorm(name, input, {.epsilon = 1e-3F, .momentum = 3e-4F});
}

// What "same" means for a stride of 2: one row less in front where the extent is even.
Padding StridedPad(const Shape& shape, int kernel) {
  if (shape.size() != 3) return {};
  const int top = kernel / 2 - (shape[1] % 2 == 0 ? 1 : 0);
  const int left = kernel / 2 - (shape[2] % 2 == 0 ? 1 : 0);
  return {top, left, kernel / 2, kernel / 2};
}

struct SeparableSpec {
  std::string id;  // "normal_left1_0"
  int filters = 0;
  int kernel = 3;
  int stride = 1;
};

// ReLU, depthwise, pointwise, batch norm: half of what Keras calls a separable block.
NodeId SeparableHalf(GraphBuilder& net, const SeparableSpec& spec, int half, NodeId input) {
  const std::string name = fmt::format("separable_conv_{}_{}", half, spec.id);
  const Shape& shape = net.shape(input);
  const int channels = shape.empty() ? 0 : static_cast<int>(shape[0]);
  ConvAttrs depthwise = Conv({.out = channels,
                              .kernel = spec.kernel,
                              .stride = spec.stride,
                              .pad = spec.kernel / 2,
                              .groups = channels});
  if (spec.stride == 2) depthwise.pad = StridedPad(shape, spec.kernel);
  NodeId x = net.Relu(fmt::format("activation_{}_{}", half, spec.id), input);
  x = net.Conv(name + ".depthwise", x, depthwise);
  x = net.Conv(name + ".pointwise", x, Conv({.out = spec.filters}));
  return Norm(net, fmt::format("separable_conv_{}_bn_{}", half, spec.id), x);
}

NodeId Separable(GraphBuilder& net, const SeparableSpec& spec, NodeId input) {
  const NodeId x = SeparableHalf(net, spec, 1, input);
  SeparableSpec second = spec;
  second.stride = 1;
  return SeparableHalf(net, second, 2, x);
}

NodeId Average(GraphBuilder& net, const std::string& name, NodeId input) {
  return net.AvgPool(name, input,
                     {.kernel_h = 3,
                      .kernel_w = 3,
                      .stride_h = 1,
                      .stride_w = 1,
                      .pad = Padding::Same(1),
                      .count_include_pad = false});
}

// Halves an image without losing the odd pixels: one path takes the even ones, one the odd ones.
NodeId FactorizedReduction(GraphBuilder& net, const std::string& id, NodeId input, int filters) {
  const PoolAttrs every_second{.kernel_h = 1, .kernel_w = 1};
  const NodeId active = net.Relu("adjust_relu_1_" + id, input);
  NodeId even = net.AvgPool("adjust_avg_pool_1_" + id, active, every_second);
  even = net.Conv("adjust_conv_1_" + id, even, Conv({.out = filters / 2}));
  NodeId odd = net.Pad("adjust_shift_" + id, active, {.pad = {-1, -1, 1, 1}});
  odd = net.AvgPool("adjust_avg_pool_2_" + id, odd, every_second);
  odd = net.Conv("adjust_conv_2_" + id, odd, Conv({.out = filters / 2}));
  const NodeId both = net.Concat("adjust_concat_" + id, {even, odd});
  return Norm(net, "adjust_bn_" + id, both);
}

// Brings the older input of a cell to the size and the channels of the newer one.
NodeId Adjust(GraphBuilder& net, const std::string& id, const Pair& in, int filters) {
  const Shape& now = net.shape(in.now);
  const Shape& before = net.shape(in.before);
  if (now.empty() || before.empty() || in.now == in.before) return in.before;
  if (now[1] != before[1] || now[2] != before[2]) {
    return FactorizedReduction(net, id, in.before, filters);
  }
  if (before[0] == filters) return in.before;
  NodeId x = net.Relu("adjust_relu_1_" + id, in.before);
  x = net.Conv("adjust_conv_projection_" + id, x, Conv({.out = filters}));
  return Norm(net, "adjust_bn_" + id, x);
}

// The newer input of a cell, brought to `filters` channels; `kind` is "normal" or "reduction".
NodeId Squeeze(GraphBuilder& net, const std::string& kind, const std::string& id, NodeId input,
               int filters) {
  NodeId x = net.Relu(kind + "_activation_" + id, input);
  x = net.Conv(kind + "_conv_1_" + id, x, Conv({.out = filters}));
  return Norm(net, kind + "_bn_1_" + id, x);
}

Pair NormalCell(GraphBuilder& net, const std::string& id, const Pair& in, int filters) {
  const NodeId p = Adjust(net, id, in, filters);
  const NodeId h = Squeeze(net, "normal", id, in.now, filters);
  const auto separable = [&](const std::string& name, NodeId input, int kernel) {
    return Separable(net, {.id = name + "_" + id, .filters = filters, .kernel = kernel}, input);
  };
  NodeId a = separable("normal_left1", h, 5);
  NodeId b = separable("normal_right1", p, 3);
  const NodeId x1 = net.Sum("normal_add_1_" + id, a, b);
  a = separable("normal_left2", p, 5);
  b = separable("normal_right2", p, 3);
  const NodeId x2 = net.Sum("normal_add_2_" + id, a, b);
  a = Average(net, "normal_left3_" + id, h);
  const NodeId x3 = net.Sum("normal_add_3_" + id, a, p);
  a = Average(net, "normal_left4_" + id, p);
  b = Average(net, "normal_right4_" + id, p);
  const NodeId x4 = net.Sum("normal_add_4_" + id, a, b);
  a = separable("normal_left5", h, 3);
  const NodeId x5 = net.Sum("normal_add_5_" + id, a, h);
  return {net.Concat("normal_concat_" + id, {p, x1, x2, x3, x4, x5}), in.now};
}

Pair ReductionCell(GraphBuilder& net, const std::string& id, const Pair& in, int filters) {
  const NodeId p = Adjust(net, id, in, filters);
  const NodeId h = Squeeze(net, "reduction", id, in.now, filters);
  // The padding is a node of its own: its zeros take part in the maxima and the means.
  const NodeId h3 = net.Pad("reduction_pad_1_" + id, h, {.pad = StridedPad(net.shape(h), 3)});
  const auto halve = [&](const std::string& name, NodeId input, int kernel) {
    return Separable(
        net, {.id = name + "_" + id, .filters = filters, .kernel = kernel, .stride = 2}, input);
  };
  NodeId a = halve("reduction_left1", h, 5);
  NodeId b = halve("reduction_right1", p, 7);
  const NodeId x1 = net.Sum("reduction_add_1_" + id, a, b);
  a = net.MaxPool("reduction_left2_" + id, h3, Pool3x3Stride2(0, false));
  b = halve("reduction_right2", p, 7);
  const NodeId x2 = net.Sum("reduction_add_2_" + id, a, b);
  a = net.AvgPool("reduction_left3_" + id, h3, Pool3x3Stride2(0, false));
  b = halve("reduction_right3", p, 5);
  const NodeId x3 = net.Sum("reduction_add_3_" + id, a, b);
  a = Average(net, "reduction_left4_" + id, x1);
  const NodeId x4 = net.Sum("reduction_add_4_" + id, x2, a);
  a = Separable(net, {.id = "reduction_left4_" + id, .filters = filters}, x1);
  b = net.MaxPool("reduction_right5_" + id, h3, Pool3x3Stride2(0, false));
  const NodeId x5 = net.Sum("reduction_add_5_" + id, a, b);
  return {net.Concat("reduction_concat_" + id, {x2, x3, x4, x5}), in.now};
}

}  // namespace

base::Result<Graph> NasnetMobile(const NetSpec& spec) {
  GraphBuilder net(spec.name, spec.input);
  NodeId x =
      net.Conv("stem_conv1", net.input(), Conv({.out = kStemFilters, .kernel = 3, .stride = 2}));
  x = Norm(net, "stem_bn1", x);
  Pair pair{x, x};
  pair = ReductionCell(net, "stem_1", pair, kFilters / 4);
  pair = ReductionCell(net, "stem_2", pair, kFilters / 2);
  int cell = 0;
  for (int stage = 0; stage < 3; ++stage) {
    const int filters = kFilters << stage;
    if (stage > 0) {
      pair = ReductionCell(net, fmt::format("reduce_{}", stage * kCellsPerStage), pair, filters);
      ++cell;
    }
    for (int i = 0; i < kCellsPerStage; ++i) {
      pair = NormalCell(net, fmt::format("{}", cell++), pair, filters);
    }
  }
  x = net.Relu("activation", pair.now);
  x = net.GlobalAvgPool("global_average_pooling", x);
  x = net.Flatten("flatten", x);
  x = net.FullyConnected("predictions", x, {.out_features = spec.classes});
  return std::move(net).Build(x);
}

}  // namespace motley::graph::zoo
