#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "motley/graph/onnx.h"
#include "motley/graph/zoo.h"

namespace motley::graph {
namespace {

// A small input that every layer of the net still fits.
Shape SmallInput(const ZooEntry& entry) {
  if (entry.name == "lenet") return {1, 28, 28};
  if (entry.name == "inception_v3") return {3, 75, 75};
  if (entry.name == "caffenet" || entry.name == "alexnet") return {3, 67, 67};
  return {3, 33, 35};
}

// All values different, and quicker to make than real initial weights.
std::vector<float> Distinct(std::int64_t count) {
  std::vector<float> values(static_cast<std::size_t>(count));
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = 1e-7F * static_cast<float>(i);
  return values;
}

Model Filled(Graph graph) {
  std::vector<float> weights = Distinct(graph.parameter_count());
  std::vector<float> buffers = Distinct(graph.buffer_count());
  return {std::move(graph), std::move(weights), std::move(buffers)};
}

class OnnxRoundTripTest : public testing::TestWithParam<ZooEntry> {
 protected:
  std::filesystem::path File() const {
    return std::filesystem::path(testing::TempDir()) /
           fmt::format("round_trip_{}_{}.onnx", GetParam().name, getpid());
  }
  void TearDown() override { std::filesystem::remove(File()); }
};

// Operators, without what a file for inference leaves out or adds at its end.
std::vector<Op> Layers(const Graph& graph) {
  std::vector<Op> ops;
  for (const Node& node : graph.nodes()) {
    if (node.op != Op::kDropout && node.op != Op::kFlatten) ops.push_back(node.op);
  }
  return ops;
}

TEST_P(OnnxRoundTripTest, GivesTheSameParametersUnderTheSameNames) {
  auto graph = BuildZoo(GetParam().name, SmallInput(GetParam()), 5);
  ASSERT_TRUE(graph.ok()) << graph.status().ToString();
  const Model model = Filled(std::move(graph).value());
  const auto written = WriteOnnx(File(), model);
  ASSERT_TRUE(written.ok()) << written.ToString();
  const auto read = ReadOnnx(File());
  ASSERT_TRUE(read.ok()) << read.status().ToString();
  EXPECT_EQ(read->graph.name(), model.graph.name());
  EXPECT_EQ(read->graph.input_shape(), model.graph.input_shape());
  EXPECT_EQ(Layers(read->graph), Layers(model.graph));
  ASSERT_EQ(read->graph.parameters().size(), model.graph.parameters().size());
  for (std::size_t i = 0; i < model.graph.parameters().size(); ++i) {
    EXPECT_EQ(read->graph.parameters()[i].name, model.graph.parameters()[i].name);
    EXPECT_EQ(read->graph.parameters()[i].shape, model.graph.parameters()[i].shape);
  }
  EXPECT_TRUE(read->weights == model.weights);
  EXPECT_TRUE(read->buffers == model.buffers);
  for (const Node& node : read->graph.nodes()) {
    if (node.op != Op::kBatchNorm) continue;
    for (const Node& original : model.graph.nodes()) {
      if (original.name != node.name) continue;
      EXPECT_EQ(node.batch_norm().epsilon, original.batch_norm().epsilon);
      EXPECT_EQ(node.batch_norm().momentum, original.batch_norm().momentum);
    }
  }
}

TEST_P(OnnxRoundTripTest, ASecondTripChangesNothing) {
  auto graph = BuildZoo(GetParam().name, SmallInput(GetParam()), 5);
  ASSERT_TRUE(WriteOnnx(File(), Filled(std::move(graph).value())).ok());
  const auto first = ReadOnnx(File());
  ASSERT_TRUE(first.ok()) << first.status().ToString();
  ASSERT_TRUE(WriteOnnx(File(), *first).ok());
  const auto second = ReadOnnx(File());
  ASSERT_TRUE(second.ok()) << second.status().ToString();
  ASSERT_EQ(second->graph.size(), first->graph.size());
  for (NodeId id = 0; id < first->graph.size(); ++id) {
    EXPECT_EQ(second->graph.node(id).name, first->graph.node(id).name);
    EXPECT_EQ(second->graph.node(id).op, first->graph.node(id).op);
    EXPECT_EQ(second->graph.node(id).inputs, first->graph.node(id).inputs);
    EXPECT_EQ(second->graph.node(id).shape, first->graph.node(id).shape);
  }
}

INSTANTIATE_TEST_SUITE_P(Zoo, OnnxRoundTripTest, testing::ValuesIn(Zoo()),
                         [](const auto& test_case) { return std::string(test_case.param.name); });

TEST(OnnxWriteTest, AFolderThatIsNotThereIsNamed) {
  GraphBuilder net("tiny", {3});
  const NodeId fc = net.FullyConnected("fc", net.input(), {.out_features = 2});
  const Model model = InitialModel(std::move(net).Build(fc).value(), 1);
  const auto status = WriteOnnx("/nowhere/net.onnx", model);
  ASSERT_FALSE(status.ok());
  EXPECT_NE(status.message().find("/nowhere"), std::string::npos) << status.ToString();
}

TEST(OnnxWriteTest, ALayerCalledLogitsDoesNotClashWithTheOutput) {
  GraphBuilder net("tiny", {3});
  NodeId x = net.FullyConnected("logits", net.input(), {.out_features = 4});
  x = net.Relu("logits.relu", x);
  x = net.FullyConnected("fc", x, {.out_features = 2});
  x = net.Dropout("last", x, {});
  const Model model = InitialModel(std::move(net).Build(x).value(), 1);
  const auto file =
      std::filesystem::path(testing::TempDir()) / fmt::format("clash_{}.onnx", getpid());
  ASSERT_TRUE(WriteOnnx(file, model).ok());
  const auto read = ReadOnnx(file);
  std::filesystem::remove(file);
  ASSERT_TRUE(read.ok()) << read.status().ToString();
  EXPECT_EQ(read->weights, model.weights);
  EXPECT_EQ(read->graph.parameters()[0].name, "logits.weight");
}

}  // namespace
}  // namespace motley::graph
