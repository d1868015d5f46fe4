#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "motley/graph/onnx.h"
#include "tests/graph/onnx_file.h"

namespace motley::graph {
namespace {

// The model, or a failed test with the message.
Model Parse(const OnnxFile& file) {
  auto model = ParseOnnx(file.Bytes(), "test.onnx");
  if (!model.ok()) ADD_FAILURE() << model.status().ToString();
  return std::move(model).value();
}

std::vector<Op> Ops(const Model& model) {
  std::vector<Op> ops;
  for (const Node& node : model.graph.nodes()) ops.push_back(node.op);
  return ops;
}

constexpr Op kEnd = Op::kSoftmaxCrossEntropy;

TEST(OnnxReadTest, AConvolutionKeepsItsAttributesAndNames) {
  OnnxFile file({4, 9, 9});
  file.Floats("stem.conv.weight", {6, 2, 3, 2});
  file.Floats("stem.conv.bias", {6});
  auto& conv = file.Node("Conv", {"x", "stem.conv.weight", "stem.conv.bias"}, {"c"});
  OnnxFile::SetInts(conv, "kernel_shape", {3, 2});
  OnnxFile::SetInts(conv, "strides", {2, 1});
  OnnxFile::SetInts(conv, "dilations", {1, 2});
  OnnxFile::SetInts(conv, "pads", {1, 0, 2, 3});
  OnnxFile::SetInt(conv, "group", 2);
  file.Node("GlobalAveragePool", {"c"}, {"g"});
  file.Node("Flatten", {"g"}, {"f"});
  file.Classify("f", 6);
  const Model model = Parse(file);
  ASSERT_EQ(Ops(model), (std::vector{Op::kInput, Op::kConv, Op::kGlobalAvgPool, Op::kFlatten,
                                     Op::kFullyConnected, kEnd}));
  const ConvAttrs& a = model.graph.node(1).conv();
  EXPECT_EQ(a.stride_h, 2);
  EXPECT_EQ(a.dilation_w, 2);
  EXPECT_EQ(a.pad, (Padding{1, 0, 2, 3}));
  EXPECT_EQ(a.groups, 2);
  EXPECT_EQ(model.graph.parameters()[0].name, "stem.conv.weight");
  EXPECT_EQ(model.graph.parameters()[1].name, "stem.conv.bias");
  EXPECT_EQ(model.graph.parameters()[2].name, "fc.weight");
  EXPECT_FLOAT_EQ(model.weights[1], 0.02F);
}

TEST(OnnxReadTest, AutomaticPaddingKeepsTheSizeOverTheStride) {
  for (const bool upper : {true, false}) {
    OnnxFile file({1, 5, 6});
    auto& pool = file.Node("MaxPool", {"x"}, {"p"});
    OnnxFile::SetInts(pool, "kernel_shape", {2, 3});
    OnnxFile::SetInts(pool, "strides", {1, 2});
    OnnxFile::SetText(pool, "auto_pad", upper ? "SAME_UPPER" : "SAME_LOWER");
    file.Node("Flatten", {"p"}, {"f"});
    file.Classify("f", 15);
    const Model model = Parse(file);
    EXPECT_EQ(model.graph.node(1).shape, (Shape{1, 5, 3}));
    EXPECT_EQ(model.graph.node(1).pool().pad,
              upper ? (Padding{0, 0, 1, 1}) : (Padding{1, 1, 0, 0}));
  }
}

TEST(OnnxReadTest, BatchNormIsReadFromInferenceAndTrainingForms) {
  for (const int outputs : {1, 3, 5}) {
    OnnxFile file({3, 4, 4}, outputs == 5 ? 13 : 14);
    for (const char* name : {"bn.weight", "bn.bias", "mean", "var"}) file.Floats(name, {3});
    std::vector<std::string> names = {"b", "m", "v", "sm", "sv"};
    names.resize(static_cast<std::size_t>(outputs));
    auto& bn = file.Node("BatchNormalization", {"x", "bn.weight", "bn.bias", "mean", "var"}, names);
    OnnxFile::SetFloat(bn, "momentum", 0.9F);
    OnnxFile::SetFloat(bn, "epsilon", 1e-3F);
    if (outputs == 3) OnnxFile::SetInt(bn, "training_mode", 1);
    file.Node("GlobalAveragePool", {"b"}, {"g"});
    file.Node("Flatten", {"g"}, {"f"});
    file.Classify("f", 3);
    const Model model = Parse(file);
    EXPECT_EQ(model.graph.node(1).batch_norm().momentum, 0.1F);
    EXPECT_EQ(model.graph.node(1).batch_norm().epsilon, 1e-3F);
    ASSERT_EQ(model.buffers.size(), 6U);
    EXPECT_EQ(model.graph.buffers()[1].name, "bn.running_var");
    EXPECT_FLOAT_EQ(model.buffers[3], 0.01F);
  }
}

TEST(OnnxReadTest, ClipIsReluOrRelu6InOldAndNewForm) {
  OnnxFile file({4});
  file.Scalar("zero", 0.0F);
  file.Scalar("six", 6.0F);
  file.Node("Clip", {"x", "zero", "six"}, {"a"});
  file.Node("Clip", {"a", "zero"}, {"b"});
  file.Classify("b", 4);
  EXPECT_EQ(Ops(Parse(file)),
            (std::vector{Op::kInput, Op::kRelu6, Op::kRelu, Op::kFullyConnected, kEnd}));

  OnnxFile old({4}, 10);
  auto& clip = old.Node("Clip", {"x"}, {"a"});
  OnnxFile::SetFloat(clip, "min", 0.0F);
  OnnxFile::SetFloat(clip, "max", 6.0F);
  old.Classify("a", 4);
  EXPECT_EQ(Ops(Parse(old))[1], Op::kRelu6);

  OnnxFile other({4});
  other.Scalar("one", 1.0F);
  other.Node("Clip", {"x", "one"}, {"a"});
  other.Classify("a", 4);
  EXPECT_TRUE(Mentions(Refusal(other), "node 'node_a' (Clip)"));
}

TEST(OnnxReadTest, DropoutIsReadInAllForms) {
  OnnxFile old({4}, 7);
  OnnxFile::SetFloat(old.Node("Dropout", {"x"}, {"d", "mask"}), "ratio", 0.25F);
  old.Classify("d", 4);
  EXPECT_EQ(Parse(old).graph.node(1).dropout().probability, 0.25F);

  OnnxFile trained({4});
  trained.Scalar("ratio", 0.125F);
  trained.Ints("training", {1}).set_data_type(onnx::TensorProto::BOOL);
  auto& flag = *trained.graph().mutable_initializer(1);
  flag.clear_int64_data();
  flag.add_int32_data(1);
  flag.clear_dims();
  trained.Node("Dropout", {"x", "ratio", "training"}, {"d"});
  trained.Classify("d", 4);
  EXPECT_EQ(Parse(trained).graph.node(1).dropout().probability, 0.125F);

  OnnxFile silent({4});
  silent.Node("Dropout", {"x"}, {"d"});
  silent.Classify("d", 4);
  EXPECT_EQ(Parse(silent).graph.node(1).dropout().probability, 0.5F);
}

TEST(OnnxReadTest, AMatrixProductTakesTheBiasThatIsAdded) {
  OnnxFile file({3});
  file.Floats("w", {3, 2});
  file.Floats("b", {2});
  file.Node("MatMul", {"x", "w"}, {"p"});
  file.Node("Add", {"b", "p"}, {"y"});
  const Model model = Parse(file);
  ASSERT_EQ(Ops(model), (std::vector{Op::kInput, Op::kFullyConnected, kEnd}));
  // [in][out] in the file, [out][in] in the net.
  const std::vector<float> expected = {0.01F, 0.03F, 0.05F, 0.02F, 0.04F, 0.06F, 0.01F, 0.02F};
  ASSERT_EQ(model.weights.size(), expected.size());
  for (std::size_t i = 0; i < expected.size(); ++i) {
    EXPECT_FLOAT_EQ(model.weights[i], expected[i]) << i;
  }
}

TEST(OnnxReadTest, AMatrixProductWithoutBiasIsALayerOfItsOwn) {
  OnnxFile file({3});
  file.Floats("w", {3, 4});
  file.Node("MatMul", {"x", "w"}, {"p"});
  file.Node("Relu", {"p"}, {"r"});
  file.Classify("r", 4);
  const Model model = Parse(file);
  EXPECT_FALSE(model.graph.node(1).fully_connected().bias);

  OnnxFile last({3});
  last.Floats("w", {3, 4});
  last.Node("MatMul", {"x", "w"}, {"y"});
  EXPECT_EQ(Parse(last).graph.num_classes(), 4);
}

TEST(OnnxReadTest, GemmIsReadInBothOrientations) {
  OnnxFile file({3});
  file.Floats("w", {3, 2});
  file.Node("Gemm", {"x", "w"}, {"y"});
  const Model model = Parse(file);
  EXPECT_FLOAT_EQ(model.weights[1], 0.03F);
  EXPECT_FALSE(model.graph.node(1).fully_connected().bias);
}

TEST(OnnxReadTest, TheMeanOverThePixelsIsAGlobalPool) {
  OnnxFile file({3, 4, 4});
  auto& mean = file.Node("ReduceMean", {"x"}, {"m"});
  OnnxFile::SetInts(mean, "axes", {-1, -2});
  OnnxFile::SetInt(mean, "keepdims", 0);
  file.Classify("m", 3);
  EXPECT_EQ(Ops(Parse(file)),
            (std::vector{Op::kInput, Op::kGlobalAvgPool, Op::kFlatten, Op::kFullyConnected, kEnd}));
}

TEST(OnnxReadTest, NamesThatTheReaderDerivesGiveWayToThoseOfTheFile) {
  OnnxFile file({3, 5, 5});
  file.Node("Relu", {"x"}, {"a"}).set_name("node_s.crop");
  file.Node("Relu", {"a"}, {"b"}).set_name("node_m.flatten");
  file.Ints("starts", {1});
  file.Ints("ends", {4});
  file.Ints("axes", {2});
  file.Node("Slice", {"b", "starts", "ends", "axes"}, {"s"});
  auto& mean = file.Node("ReduceMean", {"s"}, {"m"});
  OnnxFile::SetInts(mean, "axes", {2, 3});
  OnnxFile::SetInt(mean, "keepdims", 0);
  file.Classify("m", 3);
  const auto model = ParseOnnx(file.Bytes(), "test.onnx");
  ASSERT_TRUE(model.ok()) << model.status().ToString();
  EXPECT_EQ(model->graph.node(3).name, "node_s.crop_2");
  EXPECT_EQ(model->graph.node(5).name, "node_m.flatten_2");
}

TEST(OnnxReadTest, ReshapeThroughFoldedShapesFlattens) {
  OnnxFile file({3, 2, 2});
  file.Int("0", 0);
  file.Ints("axis0", {0});
  file.Ints("-1", {-1});
  file.Node("Shape", {"x"}, {"shape"});
  file.Node("Gather", {"shape", "0"}, {"n"});
  file.Node("Unsqueeze", {"n", "axis0"}, {"n1"});
  OnnxFile::SetInt(file.Node("Concat", {"n1", "-1"}, {"target"}), "axis", 0);
  file.Node("Reshape", {"x", "target"}, {"f"});
  file.Classify("f", 12);
  EXPECT_EQ(Ops(Parse(file)), (std::vector{Op::kInput, Op::kFlatten, Op::kFullyConnected, kEnd}));
}

TEST(OnnxReadTest, ReshapeTransposeReshapeIsAChannelShuffle) {
  OnnxFile file({6, 2, 2});
  file.Ints("split", {0, 3, 2, 2, 2});
  file.Ints("merge", {0, -1, 2, 2});
  file.Node("Reshape", {"x", "split"}, {"a"});
  OnnxFile::SetInts(file.Node("Transpose", {"a"}, {"b"}), "perm", {0, 2, 1, 3, 4});
  file.Node("Reshape", {"b", "merge"}, {"c"});
  file.Node("Flatten", {"c"}, {"f"});
  file.Classify("f", 24);
  const Model model = Parse(file);
  ASSERT_EQ(model.graph.node(1).op, Op::kChannelShuffle);
  EXPECT_EQ(model.graph.node(1).shuffle().groups, 3);
}

TEST(OnnxReadTest, SlicesSplitsAndCropsAreRead) {
  OnnxFile file({6, 4, 4});
  file.Ints("starts", {1, 1});
  file.Ints("ends", {std::numeric_limits<std::int64_t>::max(), -1});
  file.Ints("axes", {1, -1});
  file.Node("Slice", {"x", "starts", "ends", "axes"}, {"s"});  // 5x4x2
  file.Ints("sizes", {2, 3});
  OnnxFile::SetInt(file.Node("Split", {"s", "sizes"}, {"a", "b"}), "axis", 1);
  OnnxFile::SetInt(file.Node("Concat", {"b", "a"}, {"c"}), "axis", 1);
  file.Ints("pads", {0, 0, -1, 1, 0, 0, 0, 2});
  file.Node("Pad", {"c", "pads"}, {"p"});  // 5x3x5
  file.Node("Flatten", {"p"}, {"f"});
  file.Classify("f", 75);
  const Model model = Parse(file);
  EXPECT_EQ(Ops(model),
            (std::vector{Op::kInput, Op::kSlice, Op::kPad, Op::kSlice, Op::kSlice, Op::kConcat,
                         Op::kPad, Op::kFlatten, Op::kFullyConnected, kEnd}));
  EXPECT_EQ(model.graph.node(2).shape, (Shape{5, 4, 2}));
  EXPECT_EQ(model.graph.node(6).pad().pad, (Padding{-1, 1, 0, 2}));
}

TEST(OnnxReadTest, AFinalSoftmaxIsDropped) {
  for (const char* op : {"Softmax", "LogSoftmax"}) {
    OnnxFile file({3});
    file.Floats("w", {3, 2});
    file.Node("Gemm", {"x", "w"}, {"logits"});
    OnnxFile::SetInt(file.Node(op, {"logits"}, {"y"}), "axis", 1);
    EXPECT_EQ(Ops(Parse(file)), (std::vector{Op::kInput, Op::kFullyConnected, kEnd}));
  }
  OnnxFile middle({3});
  middle.Node("Softmax", {"x"}, {"s"});
  middle.Classify("s", 3);
  EXPECT_TRUE(Mentions(Refusal(middle), "(Softmax)"));
}

TEST(OnnxReadTest, NodesThatLeadNowhereAreIgnored) {
  OnnxFile file({3});
  file.Node("Einsum", {"x"}, {"nobody reads this"});
  file.Classify("x", 3);
  EXPECT_EQ(Parse(file).graph.size(), 3);
}

}  // namespace
}  // namespace motley::graph
