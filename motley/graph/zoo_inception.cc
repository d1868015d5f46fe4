// Inception v3 (Szegedy et al. 2015) as torchvision has it, without the auxiliary head. Names of
// layers are torchvision's.
#include <utility>

#include "motley/graph/zoo_nets.h"

namespace motley::graph::zoo {
namespace {

constexpr float kEpsilon = 1e-3F;

// A convolution as these blocks use it: any kernel; the padding keeps the size unless `valid`.
struct Unit {
  int out = 0;
  int kernel_h = 1, kernel_w = 1;
  int stride = 1;
  bool valid = false;
};

// "name.conv", "name.bn" and a ReLU.
NodeId Basic(GraphBuilder& net, const std::string& name, NodeId input, const Unit& unit) {
  const int pad_h = unit.valid ? 0 : unit.kernel_h / 2;
  const int pad_w = unit.valid ? 0 : unit.kernel_w / 2;
  NodeId x = net.Conv(name + ".conv", input,
                      {.out_channels = unit.out,
                       .kernel_h = unit.kernel_h,
                       .kernel_w = unit.kernel_w,
                       .stride_h = unit.stride,
                       .stride_w = unit.stride,
                       .pad = {pad_h, pad_w, pad_h, pad_w},
                       .bias = false});
  x = net.BatchNorm(name + ".bn", x, {.epsilon = kEpsilon});
  return net.Relu(name + ".relu", x);
}

// The branch of most blocks that averages, then projects.
NodeId PoolBranch(GraphBuilder& net, const std::string& p, NodeId input, int out) {
  const NodeId x = net.AvgPool(
      p + "branch_pool.avg", input,
      {.kernel_h = 3, .kernel_w = 3, .stride_h = 1, .stride_w = 1, .pad = Padding::Same(1)});
  return Basic(net, p + "branch_pool", x, {.out = out});
}

NodeId BlockA(GraphBuilder& net, const std::string& name, NodeId input, int pool_features) {
  const std::string p = name + ".";
  const NodeId one = Basic(net, p + "branch1x1", input, {.out = 64});
  NodeId five = Basic(net, p + "branch5x5_1", input, {.out = 48});
  five = Basic(net, p + "branch5x5_2", five, {.out = 64, .kernel_h = 5, .kernel_w = 5});
  NodeId three = Basic(net, p + "branch3x3dbl_1", input, {.out = 64});
  three = Basic(net, p + "branch3x3dbl_2", three, {.out = 96, .kernel_h = 3, .kernel_w = 3});
  three = Basic(net, p + "branch3x3dbl_3", three, {.out = 96, .kernel_h = 3, .kernel_w = 3});
  const NodeId pool = PoolBranch(net, p, input, pool_features);
  return net.Concat(p + "cat", {one, five, three, pool});
}

NodeId BlockB(GraphBuilder& net, const std::string& name, NodeId input) {
  const std::string p = name + ".";
  const Unit half{.out = 384, .kernel_h = 3, .kernel_w = 3, .stride = 2, .valid = true};
  const NodeId three = Basic(net, p + "branch3x3", input, half);
  NodeId twice = Basic(net, p + "branch3x3dbl_1", input, {.out = 64});
  twice = Basic(net, p + "branch3x3dbl_2", twice, {.out = 96, .kernel_h = 3, .kernel_w = 3});
  twice = Basic(net, p + "branch3x3dbl_3", twice,
                {.out = 96, .kernel_h = 3, .kernel_w = 3, .stride = 2, .valid = true});
  const NodeId pool = net.MaxPool(p + "branch_pool", input, Pool3x3Stride2(0, false));
  return net.Concat(p + "cat", {three, twice, pool});
}

NodeId BlockC(GraphBuilder& net, const std::string& name, NodeId input, int width) {
  const std::string p = name + ".";
  const Unit row{.out = width, .kernel_h = 1, .kernel_w = 7};
  const Unit column{.out = width, .kernel_h = 7, .kernel_w = 1};
  const NodeId one = Basic(net, p + "branch1x1", input, {.out = 192});
  NodeId seven = Basic(net, p + "branch7x7_1", input, {.out = width});
  seven = Basic(net, p + "branch7x7_2", seven, row);
  seven = Basic(net, p + "branch7x7_3", seven, {.out = 192, .kernel_h = 7, .kernel_w = 1});
  NodeId twice = Basic(net, p + "branch7x7dbl_1", input, {.out = width});
  twice = Basic(net, p + "branch7x7dbl_2", twice, column);
  twice = Basic(net, p + "branch7x7dbl_3", twice, row);
  twice = Basic(net, p + "branch7x7dbl_4", twice, column);
  twice = Basic(net, p + "branch7x7dbl_5", twice, {.out = 192, .kernel_h = 1, .kernel_w = 7});
  const NodeId pool = PoolBranch(net, p, input, 192);
  return net.Concat(p + "cat", {one, seven, twice, pool});
}

NodeId BlockD(GraphBuilder& net, const std::string& name, NodeId input) {
  const std::string p = name + ".";
  NodeId three = Basic(net, p + "branch3x3_1", input, {.out = 192});
  three = Basic(net, p + "branch3x3_2", three,
                {.out = 320, .kernel_h = 3, .kernel_w = 3, .stride = 2, .valid = true});
  NodeId seven = Basic(net, p + "branch7x7x3_1", input, {.out = 192});
  seven = Basic(net, p + "branch7x7x3_2", seven, {.out = 192, .kernel_h = 1, .kernel_w = 7});
  seven = Basic(net, p + "branch7x7x3_3", seven, {.out = 192, .kernel_h = 7, .kernel_w = 1});
  seven = Basic(net, p + "branch7x7x3_4", seven,
                {.out = 192, .kernel_h = 3, .kernel_w = 3, .stride = 2, .valid = true});
  const NodeId pool = net.MaxPool(p + "branch_pool", input, Pool3x3Stride2(0, false));
  return net.Concat(p + "cat", {three, seven, pool});
}

// The two halves of a 3x3, side by side instead of one after the other.
NodeId SplitThree(GraphBuilder& net, const std::string& stem, NodeId input) {
  const NodeId row = Basic(net, stem + "a", input, {.out = 384, .kernel_h = 1, .kernel_w = 3});
  const NodeId column = Basic(net, stem + "b", input, {.out = 384, .kernel_h = 3, .kernel_w = 1});
  return net.Concat(stem + ".cat", {row, column});
}

NodeId BlockE(GraphBuilder& net, const std::string& name, NodeId input) {
  const std::string p = name + ".";
  const NodeId one = Basic(net, p + "branch1x1", input, {.out = 320});
  NodeId three = Basic(net, p + "branch3x3_1", input, {.out = 384});
  three = SplitThree(net, p + "branch3x3_2", three);
  NodeId twice = Basic(net, p + "branch3x3dbl_1", input, {.out = 448});
  twice = Basic(net, p + "branch3x3dbl_2", twice, {.out = 384, .kernel_h = 3, .kernel_w = 3});
  twice = SplitThree(net, p + "branch3x3dbl_3", twice);
  const NodeId pool = PoolBranch(net, p, input, 192);
  return net.Concat(p + "cat", {one, three, twice, pool});
}

NodeId Stem(GraphBuilder& net) {
  const Unit first{.out = 32, .kernel_h = 3, .kernel_w = 3, .stride = 2, .valid = true};
  NodeId x = Basic(net, "Conv2d_1a_3x3", net.input(), first);
  x = Basic(net, "Conv2d_2a_3x3", x, {.out = 32, .kernel_h = 3, .kernel_w = 3, .valid = true});
  x = Basic(net, "Conv2d_2b_3x3", x, {.out = 64, .kernel_h = 3, .kernel_w = 3});
  x = net.MaxPool("maxpool1", x, Pool3x3Stride2(0, false));
  x = Basic(net, "Conv2d_3b_1x1", x, {.out = 80});
  x = Basic(net, "Conv2d_4a_3x3", x, {.out = 192, .kernel_h = 3, .kernel_w = 3, .valid = true});
  return net.MaxPool("maxpool2", x, Pool3x3Stride2(0, false));
}

}  // namespace

base::Result<Graph> InceptionV3(const NetSpec& spec) {
  GraphBuilder net(spec.name, spec.input);
  NodeId x = Stem(net);
  x = BlockA(net, "Mixed_5b", x, 32);
  x = BlockA(net, "Mixed_5c", x, 64);
  x = BlockA(net, "Mixed_5d", x, 64);
  x = BlockB(net, "Mixed_6a", x);
  x = BlockC(net, "Mixed_6b", x, 128);
  x = BlockC(net, "Mixed_6c", x, 160);
  x = BlockC(net, "Mixed_6d", x, 160);
  x = BlockC(net, "Mixed_6e", x, 192);
  x = BlockD(net, "Mixed_7a", x);
  x = BlockE(net, "Mixed_7b", x);
  x = BlockE(net, "Mixed_7c", x);
  x = net.GlobalAvgPool("avgpool", x);
  x = net.Dropout("dropout", x, {});
  x = net.Flatten("flatten", x);
  x = net.FullyConnected("fc", x, {.out_features = spec.classes});
  return std::move(net).Build(x);
}

}  // namespace motley::graph::zoo
