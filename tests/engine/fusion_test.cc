#include "motley/engine/native/fusion.h"

#include <gtest/gtest.h>

#include <limits>
#include <string>

namespace motley::engine::native {
namespace {

using graph::GraphBuilder;
using graph::NodeId;

// "first..last+other<ceiling" of every fusion, by names.
std::string Describe(const graph::Graph& graph) {
  std::string text;
  for (const Fusion& fusion : FuseNodes(graph)) {
    if (!text.empty()) text += " ";
    text += graph.node(fusion.first).name;
    if (fusion.last != fusion.first) text += ".." + graph.node(fusion.last).name;
    if (fusion.other.has_value()) text += "+" + graph.node(*fusion.other).name;
    if (fusion.relu_ceiling.has_value()) text += *fusion.relu_ceiling == 6.0F ? "<6" : "<";
  }
  return text;
}

graph::Graph Build(GraphBuilder builder, NodeId last) {
  const NodeId pooled = builder.GlobalAvgPool("pool", last);
  const NodeId flat = builder.Flatten("flat", pooled);
  const NodeId logits = builder.FullyConnected("fc", flat, {.out_features = 3});
  return std::move(builder).Build(logits).value();
}

constexpr graph::ConvAttrs kConv{
    .out_channels = 4, .kernel_h = 3, .kernel_w = 3, .pad = {1, 1, 1, 1}};

TEST(FusionTest, TakesTheReluAfterAConvolutionOrBatchNorm) {
  GraphBuilder b("net", {4, 5, 5});
  const NodeId conv1 = b.Relu("relu1", b.Conv("conv1", b.input(), kConv));
  const NodeId norm = b.Relu6("relu2", b.BatchNorm("bn", b.Conv("conv2", conv1, kConv)));
  EXPECT_EQ(Describe(Build(std::move(b), norm)),
            "conv1..relu1< conv2 bn..relu2<6 pool flat fc loss");
}

TEST(FusionTest, TheFirstBatchNormTakesTheAdditionAndWaitsForWhatItAdds) {
  GraphBuilder b("net", {4, 5, 5});
  const NodeId left = b.BatchNorm("bn1", b.Conv("conv1", b.input(), kConv));
  const NodeId right = b.BatchNorm("bn2", b.Conv("conv2", b.input(), kConv));
  const NodeId sum = b.Relu("relu", b.Sum("add", left, right));
  EXPECT_EQ(Describe(Build(std::move(b), sum)), "conv1 conv2 bn2 bn1..relu+bn2< pool flat fc loss");
}

TEST(FusionTest, AnAdditionWithoutReluIsTakenToo) {
  GraphBuilder b("net", {4, 5, 5});
  const NodeId norm = b.BatchNorm("bn", b.Conv("conv", b.input(), kConv));
  const NodeId sum = b.Sum("add", b.input(), norm);
  EXPECT_EQ(Describe(Build(std::move(b), sum)), "conv bn..add+input pool flat fc loss");
}

TEST(FusionTest, AnAdditionOfTheBatchNormsOwnInputStandsAlone) {
  GraphBuilder b("net", {4, 5, 5});
  const NodeId conv = b.Conv("conv", b.input(), kConv);
  const NodeId sum = b.Relu("relu", b.Sum("add", conv, b.BatchNorm("bn", conv)));
  EXPECT_EQ(Describe(Build(std::move(b), sum)), "conv bn add relu pool flat fc loss");
}

TEST(FusionTest, AValueThatSomebodyElseReadsIsKept) {
  GraphBuilder b("net", {4, 5, 5});
  const NodeId norm = b.BatchNorm("bn", b.input());
  const NodeId both = b.Concat("concat", {norm, b.Relu("relu", norm)});
  EXPECT_EQ(Describe(Build(std::move(b), both)), "bn relu concat pool flat fc loss");
  GraphBuilder c("net", {4, 5, 5});
  const NodeId again = c.BatchNorm("bn", c.input());
  const NodeId twice = c.Sum("add", again, again);
  EXPECT_EQ(Describe(Build(std::move(c), twice)), "bn add pool flat fc loss");
}

}  // namespace
}  // namespace motley::engine::native
