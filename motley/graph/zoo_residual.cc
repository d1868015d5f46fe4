// torchvision's residual nets (He et al. 2015; the bottleneck's stride sits on its 3x3 layer).
// Names of layers are torchvision's, so that parameters carry the names of its state_dict.
#include <array>
#include <utility>

#include "motley/graph/zoo_nets.h"

namespace motley::graph::zoo {
namespace {

struct BlockSpec {
  std::string prefix;  // "layer1.0."
  int width = 0;
  int stride = 1;
};

struct ResnetSpec {
  bool bottleneck = false;
  std::array<int, 4> blocks{};
  // A 7x7/2 convolution and a max pool in front, as for 224x224 images; otherwise 3x3/1 alone.
  bool large_stem = true;
};

// The shortcut of a block: the identity, or a projection where the shape changes.
NodeId Shortcut(GraphBuilder& net, const BlockSpec& block, NodeId input, int out) {
  const Shape& shape = net.shape(input);
  if (block.stride == 1 && !shape.empty() && shape[0] == out) return input;
  const NodeId x =
      net.Conv(block.prefix + "downsample.0", input, Conv({.out = out, .stride = block.stride}));
  return net.BatchNorm(block.prefix + "downsample.1", x);
}

NodeId Basic(GraphBuilder& net, const BlockSpec& block, NodeId input) {
  const std::string& p = block.prefix;
  NodeId x = net.Conv(p + "conv1", input,
                      Conv({.out = block.width, .kernel = 3, .stride = block.stride, .pad = 1}));
  x = net.BatchNorm(p + "bn1", x);
  x = net.Relu(p + "relu1", x);
  x = net.Conv(p + "conv2", x, Conv({.out = block.width, .kernel = 3, .pad = 1}));
  x = net.BatchNorm(p + "bn2", x);
  x = net.Sum(p + "add", x, Shortcut(net, block, input, block.width));
  return net.Relu(p + "relu2", x);
}

NodeId Bottleneck(GraphBuilder& net, const BlockSpec& block, NodeId input) {
  const std::string& p = block.prefix;
  const int out = 4 * block.width;
  NodeId x = net.Conv(p + "conv1", input, Conv({.out = block.width}));
  x = net.BatchNorm(p + "bn1", x);
  x = net.Relu(p + "relu1", x);
  x = net.Conv(p + "conv2", x,
               Conv({.out = block.width, .kernel = 3, .stride = block.stride, .pad = 1}));
  x = net.BatchNorm(p + "bn2", x);
  x = net.Relu(p + "relu2", x);
  x = net.Conv(p + "conv3", x, Conv({.out = out}));
  x = net.BatchNorm(p + "bn3", x);
  x = net.Sum(p + "add", x, Shortcut(net, block, input, out));
  return net.Relu(p + "relu3", x);
}

NodeId Stem(GraphBuilder& net, bool large) {
  const Square conv = large ? Square{.out = 64, .kernel = 7, .stride = 2, .pad = 3}
                            : Square{.out = 64, .kernel = 3, .stride = 1, .pad = 1};
  NodeId x = net.Conv("conv1", net.input(), Conv(conv));
  x = net.BatchNorm("bn1", x);
  x = net.Relu("relu", x);
  return large ? net.MaxPool("maxpool", x, Pool3x3Stride2(1, false)) : x;
}

base::Result<Graph> Resnet(const NetSpec& spec, const ResnetSpec& form) {
  GraphBuilder net(spec.name, spec.input);
  NodeId x = Stem(net, form.large_stem);
  for (int layer = 0; layer < 4; ++layer) {
    for (int i = 0; i < form.blocks[static_cast<std::size_t>(layer)]; ++i) {
      const BlockSpec block{.prefix = fmt::format("layer{}.{}.", layer + 1, i),
                            .width = 64 << layer,
                            .stride = layer > 0 && i == 0 ? 2 : 1};
      x = form.bottleneck ? Bottleneck(net, block, x) : Basic(net, block, x);
    }
  }
  x = net.GlobalAvgPool("avgpool", x);
  x = net.Flatten("flatten", x);
  x = net.FullyConnected("fc", x, {.out_features = spec.classes});
  return std::move(net).Build(x);
}

}  // namespace

base::Result<Graph> Resnet18(const NetSpec& spec) {
  return Resnet(spec, {.bottleneck = false, .blocks = {2, 2, 2, 2}});
}

base::Result<Graph> Resnet18Cifar(const NetSpec& spec) {
  return Resnet(spec, {.bottleneck = false, .blocks = {2, 2, 2, 2}, .large_stem = false});
}

base::Result<Graph> Resnet50(const NetSpec& spec) {
  return Resnet(spec, {.bottleneck = true, .blocks = {3, 4, 6, 3}});
}

}  // namespace motley::graph::zoo
