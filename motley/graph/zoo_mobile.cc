// The small nets, as torchvision has them: MobileNet v2 (Sandler et al. 2018), SqueezeNet 1.1
// (Iandola et al. 2016), ShuffleNet v2 (Ma et al. 2018). Names of layers are torchvision's.
#include <array>
#include <utility>

#include "motley/graph/zoo_nets.h"

namespace motley::graph::zoo {
namespace {

int Channels(const GraphBuilder& net, NodeId id) {
  const Shape& shape = net.shape(id);
  return shape.empty() ? 0 : static_cast<int>(shape[0]);
}

// "prefix.0" convolution, "prefix.1" batch norm, "prefix.2" ReLU6.
NodeId ConvBnRelu6(GraphBuilder& net, const std::string& prefix, NodeId input,
                   const Square& square) {
  NodeId x = net.Conv(prefix + ".0", input, Conv(square));
  x = net.BatchNorm(prefix + ".1", x);
  return net.Relu6(prefix + ".2", x);
}

struct InvertedSpec {
  std::string prefix;  // "features.1"
  int expand = 1;
  int out = 0;
  int stride = 1;
};

// Expand by 1x1, filter each channel, project back; a shortcut where the shape stays.
NodeId InvertedResidual(GraphBuilder& net, const InvertedSpec& block, NodeId input) {
  const int in = Channels(net, input);
  const int hidden = in * block.expand;
  int part = 0;
  const auto next = [&] { return fmt::format("{}.conv.{}", block.prefix, part++); };
  NodeId x = input;
  if (block.expand != 1) x = ConvBnRelu6(net, next(), x, {.out = hidden});
  x = ConvBnRelu6(net, next(), x,
                  {.out = hidden, .kernel = 3, .stride = block.stride, .pad = 1, .groups = hidden});
  x = net.Conv(next(), x, Conv({.out = block.out}));
  x = net.BatchNorm(next(), x);
  if (block.stride == 1 && in == block.out) x = net.Sum(block.prefix + ".add", x, input);
  return x;
}

struct FireSpec {
  int squeeze = 0;
  int expand = 0;  // of the 1x1 and of the 3x3 part
};

NodeId Fire(GraphBuilder& net, const std::string& prefix, NodeId input, const FireSpec& fire) {
  NodeId x = net.Conv(prefix + ".squeeze", input, Conv({.out = fire.squeeze, .bias = true}));
  x = net.Relu(prefix + ".squeeze_activation", x);
  NodeId small = net.Conv(prefix + ".expand1x1", x, Conv({.out = fire.expand, .bias = true}));
  small = net.Relu(prefix + ".expand1x1_activation", small);
  NodeId large = net.Conv(prefix + ".expand3x3", x,
                          Conv({.out = fire.expand, .kernel = 3, .pad = 1, .bias = true}));
  large = net.Relu(prefix + ".expand3x3_activation", large);
  return net.Concat(prefix + ".cat", {small, large});
}

// One unit of ShuffleNet's second branch: 1x1, depthwise 3x3, 1x1.
NodeId ShuffleBranch2(GraphBuilder& net, const std::string& prefix, NodeId input, int width,
                      int stride) {
  const std::string p = prefix + ".branch2.";
  NodeId x = net.Conv(p + "0", input, Conv({.out = width}));
  x = net.BatchNorm(p + "1", x);
  x = net.Relu(p + "2", x);
  x = net.Conv(p + "3", x,
               Conv({.out = width, .kernel = 3, .stride = stride, .pad = 1, .groups = width}));
  x = net.BatchNorm(p + "4", x);
  x = net.Conv(p + "5", x, Conv({.out = width}));
  x = net.BatchNorm(p + "6", x);
  return net.Relu(p + "7", x);
}

NodeId ShuffleBranch1(GraphBuilder& net, const std::string& prefix, NodeId input, int width) {
  const std::string p = prefix + ".branch1.";
  const int in = Channels(net, input);
  NodeId x =
      net.Conv(p + "0", input, Conv({.out = in, .kernel = 3, .stride = 2, .pad = 1, .groups = in}));
  x = net.BatchNorm(p + "1", x);
  x = net.Conv(p + "2", x, Conv({.out = width}));
  x = net.BatchNorm(p + "3", x);
  return net.Relu(p + "4", x);
}

// A unit with stride 2 sends everything through both branches; one with stride 1 passes half of the
// channels by.
NodeId ShuffleUnit(GraphBuilder& net, const std::string& prefix, NodeId input, int out, bool down) {
  const int half = out / 2;
  NodeId first, second;
  if (down) {
    first = ShuffleBranch1(net, prefix, input, half);
    second = ShuffleBranch2(net, prefix, input, half, 2);
  } else {
    first = net.Slice(prefix + ".first_half", input, {.begin = 0, .end = half});
    second = net.Slice(prefix + ".second_half", input, {.begin = half, .end = out});
    second = ShuffleBranch2(net, prefix, second, half, 1);
  }
  const NodeId x = net.Concat(prefix + ".cat", {first, second});
  return net.ChannelShuffle(prefix + ".shuffle", x, {.groups = 2});
}

}  // namespace

base::Result<Graph> MobilenetV2(const NetSpec& spec) {
  struct Stage {
    int expand, out, repeats, stride;
  };
  constexpr std::array<Stage, 7> kStages = {{{1, 16, 1, 1},
                                             {6, 24, 2, 2},
                                             {6, 32, 3, 2},
                                             {6, 64, 4, 2},
                                             {6, 96, 3, 1},
                                             {6, 160, 3, 2},
                                             {6, 320, 1, 1}}};
  GraphBuilder net(spec.name, spec.input);
  NodeId x =
      ConvBnRelu6(net, "features.0", net.input(), {.out = 32, .kernel = 3, .stride = 2, .pad = 1});
  int index = 1;
  for (const Stage& stage : kStages) {
    for (int i = 0; i < stage.repeats; ++i) {
      x = InvertedResidual(net,
                           {.prefix = fmt::format("features.{}", index++),
                            .expand = stage.expand,
                            .out = stage.out,
                            .stride = i == 0 ? stage.stride : 1},
                           x);
    }
  }
  x = ConvBnRelu6(net, "features.18", x, {.out = 1280});
  x = net.GlobalAvgPool("avgpool", x);
  x = net.Flatten("flatten", x);
  x = net.Dropout("classifier.0", x, {.probability = 0.2F});
  x = net.FullyConnected("classifier.1", x, {.out_features = spec.classes});
  return std::move(net).Build(x);
}

base::Result<Graph> Squeezenet(const NetSpec& spec) {
  constexpr bool kCeilPool = true;
  GraphBuilder net(spec.name, spec.input);
  NodeId x = net.Conv("features.0", net.input(),
                      Conv({.out = 64, .kernel = 3, .stride = 2, .bias = true}));
  x = net.Relu("features.1", x);
  x = net.MaxPool("features.2", x, Pool3x3Stride2(0, kCeilPool));
  x = Fire(net, "features.3", x, {.squeeze = 16, .expand = 64});
  x = Fire(net, "features.4", x, {.squeeze = 16, .expand = 64});
  x = net.MaxPool("features.5", x, Pool3x3Stride2(0, kCeilPool));
  x = Fire(net, "features.6", x, {.squeeze = 32, .expand = 128});
  x = Fire(net, "features.7", x, {.squeeze = 32, .expand = 128});
  x = net.MaxPool("features.8", x, Pool3x3Stride2(0, kCeilPool));
  x = Fire(net, "features.9", x, {.squeeze = 48, .expand = 192});
  x = Fire(net, "features.10", x, {.squeeze = 48, .expand = 192});
  x = Fire(net, "features.11", x, {.squeeze = 64, .expand = 256});
  x = Fire(net, "features.12", x, {.squeeze = 64, .expand = 256});
  x = net.Dropout("classifier.0", x, {});
  x = net.Conv("classifier.1", x, Conv({.out = spec.classes, .bias = true}));
  x = net.Relu("classifier.2", x);
  x = net.GlobalAvgPool("classifier.3", x);
  return std::move(net).Build(x);
}

base::Result<Graph> ShufflenetV2(const NetSpec& spec) {
  constexpr std::array<int, 3> kWidths = {116, 232, 464};
  constexpr std::array<int, 3> kUnits = {4, 8, 4};
  GraphBuilder net(spec.name, spec.input);
  NodeId x =
      net.Conv("conv1.0", net.input(), Conv({.out = 24, .kernel = 3, .stride = 2, .pad = 1}));
  x = net.BatchNorm("conv1.1", x);
  x = net.Relu("conv1.2", x);
  x = net.MaxPool("maxpool", x, Pool3x3Stride2(1, false));
  for (std::size_t stage = 0; stage < kWidths.size(); ++stage) {
    for (int unit = 0; unit < kUnits[stage]; ++unit) {
      const std::string prefix = fmt::format("stage{}.{}", stage + 2, unit);
      x = ShuffleUnit(net, prefix, x, kWidths[stage], unit == 0);
    }
  }
  x = net.Conv("conv5.0", x, Conv({.out = 1024}));
  x = net.BatchNorm("conv5.1", x);
  x = net.Relu("conv5.2", x);
  x = net.GlobalAvgPool("mean", x);
  x = net.Flatten("flatten", x);
  x = net.FullyConnected("fc", x, {.out_features = spec.classes});
  return std::move(net).Build(x);
}

}  // namespace motley::graph::zoo
