#include "motley/graph/graph.h"

#include <gtest/gtest.h>

namespace motley::graph {
namespace {

TEST(GraphTest, LaysParametersOutInNodeOrderWeightBeforeBias) {
  GraphBuilder b("net", {3, 8, 8});
  NodeId x = b.Conv("conv", b.input(), {.out_channels = 4, .kernel_h = 3, .kernel_w = 3});
  x = b.BatchNorm("bn", x);
  x = b.FullyConnected("fc", b.Flatten("flat", x), {.out_features = 2});
  const Graph g = std::move(b).Build(x).value();
  std::vector<std::string> names;
  std::int64_t offset = 0;
  for (const Tensor& t : g.parameters()) {
    names.push_back(t.name);
    EXPECT_EQ(t.offset, offset);
    offset += t.size;
  }
  EXPECT_EQ(names, (std::vector<std::string>{"conv.weight", "conv.bias", "bn.weight", "bn.bias",
                                             "fc.weight", "fc.bias"}));
  EXPECT_EQ(g.parameter_count(), 4 * 27 + 4 + 4 + 4 + 2 * 144 + 2);
  EXPECT_EQ(g.buffers().size(), 2U);
  EXPECT_EQ(g.buffer_count(), 8);
}

TEST(GraphTest, CountsTheFlopsOfAHandComputedNet) {
  GraphBuilder b("net", {1, 4, 4});
  NodeId x = b.Conv("a", b.input(), {.out_channels = 2, .kernel_h = 3, .kernel_w = 3});  // 2x2x2
  x = b.Conv("b", x, {.out_channels = 4, .groups = 2});
  x = b.FullyConnected("fc", b.Flatten("flat", x), {.out_features = 3});
  const Graph g = std::move(b).Build(x).value();
  const std::int64_t a = 8 * 9, grouped = 16 * 1, fc = 16 * 3;
  EXPECT_EQ(g.ForwardFlops(), 2 * (a + grouped + fc));
  EXPECT_EQ(g.BackwardFlops(), 2 * a + 4 * grouped + 4 * fc);
}

TEST(GraphTest, AMistakeNamesTheNodeAndLaterNodesDoNoHarm) {
  GraphBuilder b("net", {3, 8, 8});
  const NodeId bad =
      b.Conv("too.big", b.input(), {.out_channels = 4, .kernel_h = 9, .kernel_w = 9});
  const NodeId end = b.FullyConnected("fc", b.Flatten("flat", bad), {.out_features = 2});
  const auto result = std::move(b).Build(end);
  ASSERT_FALSE(result.ok());
  EXPECT_NE(result.status().message().find("'too.big' (convolution)"), std::string::npos);
  EXPECT_NE(result.status().message().find("does not fit"), std::string::npos);
}

TEST(GraphTest, RefusesNamesUsedTwice) {
  GraphBuilder b("net", {4});
  const NodeId a = b.FullyConnected("fc", b.input(), {.out_features = 3});
  const NodeId c = b.FullyConnected("fc", a, {.out_features = 3});
  EXPECT_FALSE(std::move(b).Build(c).ok());
}

TEST(GraphTest, RefusesWeightsBeyondAnyMemory) {
  GraphBuilder b("net", {1 << 20});
  const NodeId a = b.FullyConnected("fc", b.input(), {.out_features = std::int64_t{1} << 39});
  const auto result = std::move(b).Build(a);
  ASSERT_FALSE(result.ok());
  EXPECT_NE(result.status().message().find("'fc'"), std::string::npos);
}

TEST(GraphTest, CeilModeDropsAWindowThatWouldStartInThePadding) {
  // PyTorch: 4 pixels, kernel 2, stride 3, padding 1, ceil: 3 windows would start at -1, 2, 5.
  GraphBuilder b("net", {1, 4, 4});
  const PoolAttrs pool{.kernel_h = 2,
                       .kernel_w = 2,
                       .stride_h = 3,
                       .stride_w = 3,
                       .pad = Padding::Same(1),
                       .ceil_mode = true};
  const NodeId x = b.MaxPool("pool", b.input(), pool);
  EXPECT_EQ(b.shape(x), (Shape{1, 2, 2}));
}

TEST(GraphTest, TheHeadBeginsAtTheFirstFullyConnectedLayer) {
  GraphBuilder b("net", {1, 4, 4});
  NodeId x = b.Conv("conv", b.input(), {.out_channels = 2});
  const NodeId flat = b.Flatten("flat", x);
  const NodeId fc1 = b.FullyConnected("fc1", flat, {.out_features = 3});
  x = b.FullyConnected("fc2", b.Relu("relu", fc1), {.out_features = 3});
  const Graph g = std::move(b).Build(x).value();
  const Cut cut = g.BodyHeadCut().value();
  EXPECT_EQ(cut.boundary, flat);
  EXPECT_EQ(cut.head_begin, fc1);
}

TEST(GraphTest, ANetWithoutFullyConnectedLayerHasNoHead) {
  GraphBuilder b("allconv", {1, 4, 4});
  const NodeId x = b.GlobalAvgPool("pool", b.Conv("conv", b.input(), {.out_channels = 2}));
  const Graph g = std::move(b).Build(x).value();
  const auto cut = g.BodyHeadCut();
  ASSERT_FALSE(cut.ok());
  EXPECT_NE(cut.status().message().find("no fully connected layer"), std::string::npos);
}

TEST(GraphTest, WithoutDropoutOnlyTheProbabilitiesDiffer) {
  GraphBuilder b("net", {8});
  const NodeId dropped = b.Dropout("drop", b.input(), {.probability = 0.25F});
  const NodeId logits = b.FullyConnected("fc", dropped, {.out_features = 3});
  const Graph g = std::move(b).Build(logits).value();
  const Graph without = WithoutDropout(g);
  EXPECT_EQ(g.node(dropped).dropout().probability, 0.25F);
  EXPECT_EQ(without.node(dropped).dropout().probability, 0.0F);
  EXPECT_EQ(without.size(), g.size());
  EXPECT_EQ(without.logits(), g.logits());
  EXPECT_EQ(InitialModel(without, 1).weights, InitialModel(g, 1).weights);
}

TEST(GraphTest, InitialWeightsDependOnTheSeedOnly) {
  const auto make = [](std::uint64_t seed) {
    GraphBuilder b("net", {8});
    const NodeId a = b.FullyConnected("fc", b.input(), {.out_features = 3});
    return InitialModel(std::move(b).Build(a).value(), seed);
  };
  EXPECT_EQ(make(1).weights, make(1).weights);
  EXPECT_NE(make(1).weights, make(2).weights);
}

}  // namespace
}  // namespace motley::graph
