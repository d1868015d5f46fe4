#include "small_graphs.h"

#include <algorithm>
#include <utility>

#include "motley/base/rng.h"

namespace motley::engine::testing {
namespace {

using graph::BatchNormAttrs;
using graph::ConvAttrs;
using graph::GraphBuilder;
using graph::LrnAttrs;
using graph::NodeId;
using graph::Op;
using graph::Padding;
using graph::PoolAttrs;
using graph::Shape;

constexpr std::int64_t kClasses = 3;

Body One(Op op, graph::Attrs attrs = {}) {
  return [=](GraphBuilder& b, NodeId x) { return b.Add("op", op, {x}, attrs); };
}
Body Conv(ConvAttrs attrs) { return One(Op::kConv, attrs); }
Body Max(PoolAttrs attrs) { return One(Op::kMaxPool, attrs); }
Body Avg(PoolAttrs attrs) { return One(Op::kAvgPool, attrs); }

// One after the other, with names that stay unique.
Body Chain(std::vector<std::pair<Op, graph::Attrs>> steps) {
  return [=](GraphBuilder& b, NodeId x) {
    for (std::size_t i = 0; i < steps.size(); ++i) {
      x = b.Add("op" + std::to_string(i), steps[i].first, {x}, steps[i].second);
    }
    return x;
  };
}

ConvAttrs Square(int out, int kernel, int stride, int pad) {
  return {.out_channels = out,
          .kernel_h = kernel,
          .kernel_w = kernel,
          .stride_h = stride,
          .stride_w = stride,
          .pad = Padding::Same(pad)};
}
ConvAttrs NoBias(ConvAttrs attrs) {
  attrs.bias = false;
  return attrs;
}
ConvAttrs Grouped(int groups, ConvAttrs attrs) {
  attrs.groups = groups;
  return attrs;
}
ConvAttrs Dilated(int h, int w, ConvAttrs attrs) {
  attrs.dilation_h = h;
  attrs.dilation_w = w;
  return attrs;
}
ConvAttrs Padded(Padding pad, ConvAttrs attrs) {
  attrs.pad = pad;
  return attrs;
}
ConvAttrs Depthwise(int channels, int kernel, int stride, int pad) {
  return Grouped(channels, NoBias(Square(channels, kernel, stride, pad)));
}

PoolAttrs Window(int kernel, int stride, int pad = 0) {
  return {.kernel_h = kernel,
          .kernel_w = kernel,
          .stride_h = stride,
          .stride_w = stride,
          .pad = Padding::Same(pad)};
}
PoolAttrs Padded(Padding pad, PoolAttrs attrs) {
  attrs.pad = pad;
  return attrs;
}
PoolAttrs Ceil(PoolAttrs attrs) {
  attrs.ceil_mode = true;
  return attrs;
}
PoolAttrs WithoutPad(PoolAttrs attrs) {
  attrs.count_include_pad = false;
  return attrs;
}

NodeId Residual(GraphBuilder& b, NodeId x) {
  NodeId y = b.Conv("conv1", x, NoBias(Square(16, 3, 2, 1)));
  y = b.Relu("relu1", b.BatchNorm("bn1", y));
  y = b.BatchNorm("bn2", b.Conv("conv2", y, NoBias(Square(16, 3, 1, 1))));
  const NodeId down = b.BatchNorm("down.1", b.Conv("down.0", x, NoBias(Square(16, 1, 2, 0))));
  return b.GlobalAvgPool("pool", b.Relu("relu2", b.Sum("add", y, down)));
}

NodeId InvertedResidual(GraphBuilder& b, NodeId x) {
  NodeId y = b.BatchNorm("bn0", b.Conv("expand", x, NoBias(Square(24, 1, 1, 0))));
  y = b.BatchNorm("bn1", b.Conv("depthwise", b.Relu6("relu0", y), Depthwise(24, 3, 1, 1)));
  y = b.BatchNorm("bn2", b.Conv("project", b.Relu6("relu1", y), NoBias(Square(8, 1, 1, 0))));
  return b.Sum("add", x, y);
}

NodeId Fire(GraphBuilder& b, NodeId x) {
  const NodeId squeeze = b.Relu("relu0", b.Conv("squeeze", x, Square(3, 1, 1, 0)));
  const NodeId narrow = b.Relu("relu1", b.Conv("narrow", squeeze, Square(8, 1, 1, 0)));
  const NodeId wide = b.Relu("relu2", b.Conv("wide", squeeze, Square(5, 3, 1, 1)));
  return b.MaxPool("pool", b.Concat("concat", {narrow, wide}), Ceil(Window(3, 2)));
}

NodeId ShuffleUnit(GraphBuilder& b, NodeId x) {
  const NodeId kept = b.Slice("kept", x, {.begin = 0, .end = 10});
  NodeId y = b.Slice("worked", x, {.begin = 10, .end = 20});
  y = b.Relu("relu0", b.BatchNorm("bn0", b.Conv("conv0", y, NoBias(Square(10, 1, 1, 0)))));
  y = b.BatchNorm("bn1", b.Conv("conv1", y, Depthwise(10, 3, 1, 1)));
  y = b.Relu("relu2", b.BatchNorm("bn2", b.Conv("conv2", y, NoBias(Square(10, 1, 1, 0)))));
  return b.ChannelShuffle("shuffle", b.Concat("concat", {kept, y}), {.groups = 2});
}

NodeId Inception(GraphBuilder& b, NodeId x) {
  const NodeId pooled = b.AvgPool("pool", x, WithoutPad(Window(3, 1, 1)));
  const NodeId rows = b.Conv("rows", x, {.out_channels = 5, .kernel_w = 3, .pad = {0, 1, 0, 1}});
  const NodeId columns =
      b.Conv("columns", rows, {.out_channels = 3, .kernel_h = 3, .pad = {1, 0, 1, 0}});
  return b.Concat("concat", {pooled, b.Relu("relu", columns), rows, b.Lrn("lrn", x, {})});
}

NodeId ReadThreeTimes(GraphBuilder& b, NodeId x) {
  const NodeId relu = b.Relu("relu", x);
  const NodeId doubled = b.Sum("twice", relu, relu);
  return b.Sum("add", doubled, b.Conv("conv", relu, Square(5, 3, 1, 1)));
}

NodeId UnusedBranch(GraphBuilder& b, NodeId x) {
  const NodeId y = b.Relu("relu", x);
  b.BatchNorm("unused.bn", b.Conv("unused", x, Square(3, 1, 1, 0)));
  return y;
}

NodeId Head(GraphBuilder& b, NodeId x) {
  NodeId y = b.Flatten("flatten", x);
  y = b.Dropout("drop1", y, {.probability = 0.4F});
  y = b.Relu("relu1", b.FullyConnected("fc1", y, {.out_features = 13}));
  y = b.Dropout("drop2", y, {.probability = 0.25F});
  return b.FullyConnected("fc2", y, {.out_features = 7, .bias = false});
}

std::vector<SmallGraph> Convolutions() {
  return {
      {"ConvOneByOneOnOnePixel", {1, 1, 1}, Conv(Square(1, 1, 1, 0))},
      {"ConvOneByOne", {3, 5, 5}, Conv(Square(5, 1, 1, 0))},
      {"ConvOneByOneOf16To20", {16, 7, 7}, Conv(Square(20, 1, 1, 0))},
      {"ConvOneByOneWithStride", {16, 5, 5}, Conv(NoBias(Square(20, 1, 2, 0)))},
      {"ConvOneByOnePadded", {3, 4, 4}, Conv(Square(8, 1, 1, 1))},
      {"ConvOfEights", {8, 7, 7}, Conv(Square(16, 3, 1, 1))},
      {"ConvOfEightsUnpadded", {16, 6, 9}, Conv(NoBias(Square(8, 3, 1, 0)))},
      {"ConvOfEightsWidelyPadded", {8, 5, 3}, Conv(Padded({3, 0, 1, 2}, Square(8, 3, 1, 0)))},
      {"ConvOf5To13", {5, 6, 5}, Conv(Padded({0, 1, 2, 1}, Square(13, 3, 1, 0)))},
      {"ConvOf13To5", {13, 7, 7}, Conv(Square(5, 3, 1, 1))},
      {"ConvOf20To20", {20, 4, 6}, Conv(Square(20, 3, 1, 1))},
      {"ConvFiveByFive", {1, 7, 7}, Conv(Square(20, 5, 1, 0))},
      {"ConvAsLargeAsTheImage", {8, 7, 7}, Conv(Square(16, 7, 1, 0))},
      {"ConvLargerThanTheImage", {5, 2, 3}, Conv(Square(8, 5, 1, 2))},
      {"ConvStrideTwo", {16, 7, 7}, Conv(NoBias(Square(8, 3, 2, 1)))},
      {"ConvStrideBeyondTheKernel", {3, 7, 7}, Conv(Square(5, 2, 3, 0))},
      {"ConvStrideDropsTheLastColumn", {8, 6, 6}, Conv(Square(8, 3, 2, 0))},
      {"ConvRectangular",
       {8, 5, 7},
       Conv({.out_channels = 8, .kernel_h = 1, .kernel_w = 7, .pad = {0, 3, 0, 3}})},
      {"ConvTallWithUnequalStrides",
       {3, 7, 5},
       Conv({.out_channels = 13, .kernel_h = 3, .stride_h = 2, .stride_w = 1})},
      {"ConvPaddedOnOneSide", {5, 5, 5}, Conv(Padded({2, 0, 0, 1}, Square(3, 3, 2, 0)))},
      {"ConvDilated", {13, 7, 7}, Conv(Dilated(2, 2, Square(5, 3, 1, 2)))},
      {"ConvDilatedInOneDirection", {8, 6, 7}, Conv(Dilated(1, 3, Square(16, 3, 2, 1)))},
      {"ConvInTwoGroups", {8, 5, 5}, Conv(Grouped(2, Square(6, 3, 1, 1)))},
      {"ConvInTwoGroupsOfEight", {16, 5, 5}, Conv(Grouped(2, Square(16, 3, 1, 1)))},
      {"ConvInFourGroups", {20, 4, 4}, Conv(Grouped(4, NoBias(Square(8, 3, 2, 1))))},
      {"ConvInFiveGroupsOneByOne", {20, 3, 3}, Conv(Grouped(5, Square(20, 1, 1, 0)))},
      {"ConvInGroupsDilated",
       {8, 7, 7},
       Conv(Grouped(2, Dilated(2, 1, Padded({1, 2, 2, 1}, Square(8, 3, 1, 0)))))},
      {"DepthwiseOf8", {8, 7, 7}, Conv(Depthwise(8, 3, 1, 1))},
      {"DepthwiseOf13", {13, 5, 6}, Conv(Depthwise(13, 3, 1, 1))},
      {"DepthwiseOf16WithStride", {16, 7, 7}, Conv(Depthwise(16, 3, 2, 1))},
      {"DepthwiseOf20FiveByFive", {20, 7, 7}, Conv(Depthwise(20, 5, 2, 2))},
      {"DepthwiseOf3PaddedOnOneSide", {3, 6, 6}, Conv(Padded({0, 0, 1, 1}, Depthwise(3, 3, 2, 0)))},
      {"DepthwiseDilated", {5, 7, 7}, Conv(Dilated(2, 2, Depthwise(5, 3, 1, 2)))},
      {"DepthwiseWithBias", {16, 4, 4}, Conv(Grouped(16, Square(16, 3, 1, 1)))},
      {"DepthwiseThatDoubles", {3, 5, 5}, Conv(Grouped(3, Square(6, 3, 1, 1)))},
      {"FirstConvOf1", {1, 7, 7}, Conv(Square(20, 5, 1, 0)), Frame::kFirst},
      {"FirstConvOf3", {3, 7, 7}, Conv(Square(16, 7, 2, 3)), Frame::kFirst},
      {"FirstConvOf3WithoutBias", {3, 5, 5}, Conv(NoBias(Square(13, 3, 2, 1))), Frame::kFirst},
      {"FirstConvOf8", {8, 5, 5}, Conv(Square(8, 3, 1, 1)), Frame::kFirst},
      {"FirstDepthwise", {8, 5, 5}, Conv(Depthwise(8, 3, 1, 1)), Frame::kFirst},
  };
}

std::vector<SmallGraph> Norms() {
  const auto bn = One(Op::kBatchNorm, BatchNormAttrs{});
  const auto fused = Chain({{Op::kConv, NoBias(Square(16, 3, 1, 1))},
                            {Op::kBatchNorm, BatchNormAttrs{.epsilon = 1e-3F, .momentum = 0.2F}},
                            {Op::kRelu, {}}});
  const auto fused6 = Chain({{Op::kConv, NoBias(Square(13, 1, 1, 0))},
                             {Op::kBatchNorm, BatchNormAttrs{}},
                             {Op::kRelu6, {}}});
  const auto twice = Chain({{Op::kBatchNorm, BatchNormAttrs{}},
                            {Op::kConv, Square(5, 3, 1, 1)},
                            {Op::kBatchNorm, BatchNormAttrs{}}});
  return {
      {"BatchNormOf1", {1, 7, 5}, bn},
      {"BatchNormOf3", {3, 5, 5}, bn},
      {"BatchNormOf8", {8, 4, 4}, bn},
      {"BatchNormOf13", {13, 3, 2}, bn},
      {"BatchNormOf20", {20, 7, 7}, bn},
      {"BatchNormAsTheFirstLayer", {3, 5, 5}, bn, Frame::kFirst},
      {"ConvBatchNormRelu", {8, 6, 6}, fused},
      {"ConvBatchNormRelu6", {5, 5, 5}, fused6},
      {"TwoBatchNorms", {3, 6, 6}, twice},
      {"LrnOf5In20", {20, 3, 3}, One(Op::kLrn, LrnAttrs{.alpha = 0.5F})},
      {"LrnOf3In5", {5, 4, 5}, One(Op::kLrn, LrnAttrs{.size = 3, .alpha = 1.0F, .beta = 0.5F})},
      {"LrnOf1", {8, 2, 2}, One(Op::kLrn, LrnAttrs{.size = 1, .alpha = 2.0F, .k = 2.0F})},
      {"LrnWiderThanTheChannels", {3, 5, 5}, One(Op::kLrn, LrnAttrs{.size = 9, .alpha = 3.0F})},
      {"LrnAfterReluOf16",
       {16, 5, 5},
       Chain({{Op::kRelu, {}}, {Op::kLrn, LrnAttrs{.alpha = 1e-2F, .k = 2.0F}}})},
  };
}

std::vector<SmallGraph> Pools() {
  const auto after_relu = Chain({{Op::kRelu, {}}, {Op::kMaxPool, Window(3, 2, 1)}});
  return {
      {"MaxPool", {8, 6, 6}, Max(Window(2, 2))},
      {"MaxPoolDropsTheLastColumn", {13, 7, 7}, Max(Window(2, 2))},
      {"MaxPoolCeil", {5, 7, 7}, Max(Ceil(Window(2, 2)))},
      {"MaxPoolOverlapping", {16, 7, 7}, Max(Window(3, 2, 1))},
      {"MaxPoolOverlappingCeil", {20, 6, 6}, Max(Ceil(Window(3, 2)))},
      {"MaxPoolCeilPadded", {3, 5, 6}, Max(Ceil(Window(3, 2, 1)))},
      {"MaxPoolSameSize", {1, 5, 5}, Max(Window(3, 1, 1))},
      {"MaxPoolPaddedOnOneSide", {8, 5, 5}, Max(Padded({0, 1, 1, 0}, Window(3, 2)))},
      {"MaxPoolThatOnlyStrides", {5, 5, 5}, Max(Window(1, 2))},
      {"MaxPoolRectangular", {3, 6, 5}, Max({.kernel_h = 3, .kernel_w = 1, .stride_w = 1})},
      {"MaxPoolOfTies", {13, 7, 7}, after_relu},
      {"AvgPool", {8, 6, 6}, Avg(Window(2, 2))},
      {"AvgPoolPadded", {13, 7, 7}, Avg(Window(3, 2, 1))},
      {"AvgPoolPaddedWithoutPad", {16, 7, 7}, Avg(WithoutPad(Window(3, 2, 1)))},
      {"AvgPoolCeil", {5, 6, 6}, Avg(Ceil(Window(3, 2)))},
      {"AvgPoolCeilPadded", {20, 6, 5}, Avg(Ceil(Window(3, 2, 1)))},
      {"AvgPoolCeilPaddedWithoutPad", {3, 6, 5}, Avg(WithoutPad(Ceil(Window(3, 2, 1))))},
      {"AvgPoolCeilBeyondThePadding", {8, 5, 5}, Avg(Ceil(Window(2, 3, 1)))},
      {"AvgPoolPaddedOnOneSide", {5, 5, 4}, Avg(Padded({0, 1, 1, 0}, Window(3, 2)))},
      {"AvgPoolPaddedOnOneSideWithoutPad",
       {8, 5, 4},
       Avg(WithoutPad(Padded({1, 0, 0, 1}, Window(3, 1))))},
      {"GlobalAvgPool", {13, 7, 5}, One(Op::kGlobalAvgPool)},
      {"GlobalAvgPoolOf16", {16, 4, 4}, One(Op::kGlobalAvgPool)},
      {"GlobalAvgPoolOfOnePixel", {3, 1, 1}, One(Op::kGlobalAvgPool)},
  };
}

std::vector<SmallGraph> Simple() {
  const auto concat = [](GraphBuilder& b, NodeId x) {
    const NodeId y = b.Conv("other", x, Square(5, 1, 1, 0));
    return b.Concat("op", {x, y, b.Relu("relu", x)});
  };
  const auto concat_flat = [](GraphBuilder& b, NodeId x) {
    return b.Concat("op", {b.FullyConnected("fc", x, {.out_features = 3}), x});
  };
  const auto add = [](GraphBuilder& b, NodeId x) { return b.Sum("op", x, b.Relu("relu", x)); };
  const auto add_own_norm = [](GraphBuilder& b, NodeId x) {
    return b.Sum("op", x, b.BatchNorm("bn", x));
  };
  const auto residual = [](int channels) {
    return [channels](GraphBuilder& b, NodeId x) {
      const NodeId y = b.BatchNorm("bn", b.Conv("other", x, Square(channels, 3, 1, 1)));
      return b.Relu6("relu", b.Sum("op", y, x));
    };
  };
  const auto residual_without_relu = [](GraphBuilder& b, NodeId x) {
    return b.Sum("op", x, b.BatchNorm("bn", b.Conv("other", x, Square(16, 3, 1, 1))));
  };
  const auto add_flat = [](GraphBuilder& b, NodeId x) {
    return b.Sum("op", x, b.FullyConnected("fc", x, {.out_features = 13}));
  };
  const auto shuffle = [](int groups) {
    return One(Op::kChannelShuffle, graph::ShuffleAttrs{groups});
  };
  const auto pad = [](Padding p) { return One(Op::kPad, graph::PadAttrs{p}); };
  const auto slice = [](std::int64_t begin, std::int64_t end) {
    return One(Op::kSlice, graph::SliceAttrs{begin, end});
  };
  const auto dropout = [](float p) { return One(Op::kDropout, graph::DropoutAttrs{p}); };
  const auto fc = [](std::int64_t out) {
    return One(Op::kFullyConnected, graph::FullyConnectedAttrs{.out_features = out});
  };
  return {
      {"Relu", {13, 5, 3}, One(Op::kRelu)},
      {"ReluOf8", {8, 4, 4}, One(Op::kRelu)},
      {"ReluOfFeatures", {20}, One(Op::kRelu)},
      {"ReluOfTheInput", {3, 5, 5}, One(Op::kRelu), Frame::kFirst},
      {"Relu6", {5, 7, 7}, Chain({{Op::kConv, Square(5, 7, 1, 3)}, {Op::kRelu6, {}}})},
      {"Relu6OfFeatures", {13}, One(Op::kRelu6)},
      {"FullyConnectedOfOneFeature", {1}, fc(5)},
      {"FullyConnected", {13}, fc(20)},
      {"FullyConnectedOfTheInput", {20}, fc(16), Frame::kFirst},
      {"AddOf13", {13, 3, 5}, add},
      {"AddOf16", {16, 5, 5}, add},
      {"AddOfFeatures", {13}, add_flat},
      {"AddOfItsOwnBatchNorm", {16, 5, 5}, add_own_norm},
      {"ResidualOf13", {13, 5, 4}, residual(13)},
      {"ResidualOf20", {20, 3, 3}, residual(20)},
      {"ResidualWithoutRelu", {16, 5, 5}, residual_without_relu},
      {"ConcatOf3", {3, 5, 5}, concat},
      {"ConcatOf8", {8, 4, 4}, concat},
      {"ConcatOfFeatures", {5}, concat_flat},
      {"SliceOfTheFirst", {13, 5, 5}, slice(0, 5)},
      {"SliceOfTheMiddle", {20, 3, 3}, slice(3, 16)},
      {"SliceOfTheLastEight", {16, 4, 4}, slice(8, 16)},
      {"SliceOfFeatures", {13}, slice(5, 8)},
      {"ShuffleInTwoGroups", {8, 5, 5}, shuffle(2)},
      {"ShuffleInFourGroups", {20, 3, 3}, shuffle(4)},
      {"ShuffleInThreeGroupsOfFive", {15, 2, 3}, shuffle(3)},
      {"Pad", {3, 4, 5}, pad({1, 2, 3, 0})},
      {"PadThatCrops", {8, 6, 6}, pad({-1, -2, 0, -1})},
      {"PadThatShifts", {5, 5, 5}, pad({-1, 1, 1, -1})},
      {"FlattenOf13", {13, 3, 2}, Chain({{Op::kFlatten, {}}, {Op::kRelu, {}}})},
      {"FlattenOfOnePixel", {16, 1, 1}, One(Op::kFlatten)},
      {"DropoutOfAnImage", {5, 6, 7}, dropout(0.5F)},
      {"DropoutOf16Channels", {16, 3, 3}, dropout(0.2F)},
      {"DropoutOfFeatures", {20}, dropout(0.3F)},
      {"DropoutOfNothing", {8, 3, 3}, dropout(0.0F)},
      {"DropoutOfTheInput", {3, 5, 5}, dropout(0.5F), Frame::kFirst},
  };
}

std::vector<SmallGraph> Networks() {
  const auto convolutional_logits = Chain({{Op::kConv, Square(5, 3, 1, 1)},
                                           {Op::kRelu, {}},
                                           {Op::kConv, Square(7, 1, 1, 0)},
                                           {Op::kGlobalAvgPool, {}}});
  const auto conv_relu_pool = Chain({{Op::kConv, Square(20, 5, 1, 0)},
                                     {Op::kMaxPool, Window(2, 2)},
                                     {Op::kRelu, {}},
                                     {Op::kConv, Square(13, 1, 1, 0)},
                                     {Op::kRelu, {}},
                                     {Op::kMaxPool, Window(1, 1)}});
  return {
      {"ResidualBlock", {8, 7, 7}, Residual},
      {"InvertedResidualBlock", {8, 6, 6}, InvertedResidual},
      {"FireModule", {16, 6, 6}, Fire},
      {"ShuffleUnit", {20, 5, 5}, ShuffleUnit},
      {"InceptionModule", {5, 5, 5}, Inception},
      {"ValueReadThreeTimes", {5, 4, 4}, ReadThreeTimes},
      {"BranchThatNothingReads", {5, 4, 4}, UnusedBranch},
      {"HeadWithDropout", {5, 3, 3}, Head, Frame::kWhole},
      {"ConvolutionalLogits", {8, 5, 5}, convolutional_logits, Frame::kWhole},
      {"ConvPoolRelu", {1, 7, 7}, conv_relu_pool, Frame::kFirst},
  };
}

}  // namespace

const std::vector<SmallGraph>& SmallGraphs() {
  static const std::vector<SmallGraph> all = [] {
    std::vector<SmallGraph> list;
    for (auto& part : {Convolutions(), Norms(), Pools(), Simple(), Networks()}) {
      list.insert(list.end(), part.begin(), part.end());
    }
    return list;
  }();
  return all;
}

std::shared_ptr<const graph::Graph> Build(const SmallGraph& small) {
  Shape input = small.shape;
  if (small.frame != Frame::kFirst) input[0] = 2;
  GraphBuilder builder(small.name, input);
  NodeId x = builder.input();
  if (small.frame != Frame::kFirst) {
    const auto channels = small.shape[0];
    x = small.shape.size() == 3
            ? builder.Conv("before", x, {.out_channels = static_cast<int>(channels)})
            : builder.FullyConnected("before", x, {.out_features = channels});
  }
  x = small.body(builder, x);
  if (small.frame != Frame::kWhole) {
    if (builder.shape(x).size() == 3) x = builder.Flatten("before_logits", x);
    x = builder.FullyConnected("logits", x, {.out_features = kClasses});
  }
  auto graph = std::move(builder).Build(x);
  MOTLEY_CHECK(graph.ok(), "{}", graph.status().message());
  return std::make_shared<const graph::Graph>(std::move(graph).value());
}

graph::Model RandomModel(const graph::Graph& graph, std::uint64_t seed) {
  graph::Model model = InitialModel(graph, seed);
  base::Rng rng(base::Key({seed, 1}));
  for (const graph::Tensor& tensor : graph.parameters()) {
    if (tensor.shape.size() != 1) continue;
    for (std::int64_t i = 0; i < tensor.size; ++i) {
      model.weights[static_cast<std::size_t>(tensor.offset + i)] +=
          static_cast<float>(0.2 * rng.Normal());
    }
  }
  for (float& value : model.buffers) value += static_cast<float>(0.5 * rng.Uniform());
  return model;
}

data::Batch RandomBatch(const graph::Graph& graph, std::int64_t samples, std::uint64_t seed) {
  base::Rng rng(base::Key({seed, 2}));
  data::Batch batch{.epoch = 3};
  batch.images.resize(static_cast<std::size_t>(samples * graph::Count(graph.input_shape())));
  for (float& value : batch.images) value = static_cast<float>(rng.Normal());
  for (std::int64_t i = 0; i < samples; ++i) {
    const auto classes = static_cast<std::uint64_t>(graph.num_classes());
    batch.labels.push_back(static_cast<std::int32_t>(rng.Below(classes)));
    batch.ids.push_back(static_cast<data::SampleId>(1000 + 7 * i));
  }
  return batch;
}

}  // namespace motley::engine::testing
