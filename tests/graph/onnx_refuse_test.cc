#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "motley/graph/onnx.h"
#include "tests/graph/onnx_file.h"

namespace motley::graph {
namespace {

TEST(OnnxRefuseTest, AnUnsupportedOperatorIsNamedWithItsNodeAndWhatIsSupported) {
  OnnxFile file({3});
  file.Node("Gelu", {"x"}, {"g"});
  file.Classify("g", 3);
  const std::string message = Refusal(file);
  EXPECT_TRUE(Mentions(message, "Gelu")) << message;
  EXPECT_TRUE(Mentions(message, "'node_g'")) << message;
  for (const char* op : {"AveragePool", "BatchNormalization", "Conv", "Gather", "Unsqueeze"}) {
    EXPECT_TRUE(Mentions(message, op)) << message;
  }

  OnnxFile foreign({3});
  foreign.Node("Relu", {"x"}, {"r"}).set_domain("com.example");
  foreign.Classify("r", 3);
  EXPECT_TRUE(Mentions(Refusal(foreign), "com.example.Relu"));
}

TEST(OnnxRefuseTest, ArithmeticOnThingsThatAreNotShapesIsRefused) {
  OnnxFile file({3});
  file.Scalar("two", 2.0F);
  file.Node("Mul", {"x", "two"}, {"m"});
  file.Classify("m", 3);
  EXPECT_TRUE(Mentions(Refusal(file), "node 'node_m' (Mul)"));

  OnnxFile batch({3});
  batch.Int("1", 1);
  batch.Int("0", 0);
  batch.Ints("axis0", {0});
  batch.Ints("3", {3});
  batch.Node("Shape", {"x"}, {"shape"});
  batch.Node("Gather", {"shape", "0"}, {"n"});
  batch.Node("Add", {"n", "1"}, {"more"});
  batch.Node("Unsqueeze", {"more", "axis0"}, {"more1"});
  OnnxFile::SetInt(batch.Node("Concat", {"more1", "3"}, {"target"}), "axis", 0);
  batch.Node("Reshape", {"x", "target"}, {"r"});
  batch.Classify("r", 3);
  EXPECT_TRUE(Mentions(Refusal(batch), "batch"));
}

TEST(OnnxRefuseTest, WhatTheBytesDoNotBackIsRefused) {
  OnnxFile few({3});
  few.Classify("x", 3);
  few.graph().mutable_initializer(0)->set_dims(0, 1000);
  EXPECT_TRUE(Mentions(Refusal(few), "initializer 'fc.weight'"));

  OnnxFile wraps({3});
  wraps.Classify("x", 3);
  wraps.graph().mutable_initializer(0)->set_dims(0, std::int64_t{1} << 62);
  wraps.graph().mutable_initializer(0)->set_dims(1, 4);
  Refusal(wraps);

  OnnxFile negative({3});
  negative.Classify("x", 3);
  negative.graph().mutable_initializer(0)->set_dims(0, -2);
  Refusal(negative);

  OnnxFile external({3});
  external.Classify("x", 3);
  external.graph().mutable_initializer(0)->set_data_location(onnx::TensorProto::EXTERNAL);
  EXPECT_TRUE(Mentions(Refusal(external), "another file"));

  OnnxFile narrow({4});
  narrow.Classify("x", 3);
  EXPECT_TRUE(Mentions(Refusal(narrow), "'fc.weight'"));
}

TEST(OnnxRefuseTest, AWrongStructureIsRefused) {
  OnnxFile order({3});
  order.Node("Relu", {"b"}, {"a"});
  order.Node("Relu", {"a"}, {"b"});
  order.Classify("b", 3);
  EXPECT_TRUE(Mentions(Refusal(order), "'b'"));

  OnnxFile twice({3});
  twice.Node("Relu", {"x"}, {"a"});
  twice.Node("Relu", {"x"}, {"a"});
  twice.Classify("a", 3);
  EXPECT_TRUE(Mentions(Refusal(twice), "made twice"));

  OnnxFile missing({3});
  missing.Node("Conv", {"x"}, {"y"});
  Refusal(missing);

  OnnxFile unknown({3});
  unknown.Node("Gemm", {"x", "nothing"}, {"y"});
  EXPECT_TRUE(Mentions(Refusal(unknown), "'nothing'"));

  OnnxFile shared({3});
  shared.Floats("w", {3, 3});
  shared.Node("Gemm", {"x", "w"}, {"a"});
  shared.Node("Gemm", {"a", "w"}, {"y"});
  EXPECT_TRUE(Mentions(Refusal(shared), "shared"));

  OnnxFile two({3});
  two.Classify("x", 3);
  two.graph().add_output()->set_name("x");
  EXPECT_TRUE(Mentions(Refusal(two), "2 outputs"));

  OnnxFile free({3, 4, 4});
  free.Node("Flatten", {"x"}, {"f"});
  free.Classify("f", 48);
  free.graph()
      .mutable_input(0)
      ->mutable_type()
      ->mutable_tensor_type()
      ->mutable_shape()
      ->mutable_dim(2)
      ->set_dim_param("height");
  EXPECT_TRUE(Mentions(Refusal(free), "fixed image size"));

  OnnxFile old({3}, 6);
  old.Classify("x", 3);
  EXPECT_TRUE(Mentions(Refusal(old), "opset"));

  OnnxFile typed({3, 4, 4});
  OnnxFile::SetText(typed.Node("Flatten", {"x"}, {"f"}), "axis", "one");
  typed.Classify("f", 48);
  EXPECT_TRUE(Mentions(Refusal(typed), "'axis'"));
}

TEST(OnnxRefuseTest, SharedParametersOfAnyKindAreRefused) {
  OnnxFile bias({3});
  for (const char* weight : {"w1", "w2"}) bias.Floats(weight, {3, 3});
  bias.Floats("b", {3});
  bias.Node("Gemm", {"x", "w1", "b"}, {"a"});
  bias.Node("Gemm", {"a", "w2", "b"}, {"y"});
  EXPECT_TRUE(Mentions(Refusal(bias), "'b' is shared with another node"));

  OnnxFile added({3});
  for (const char* weight : {"w1", "w2"}) added.Floats(weight, {3, 3});
  added.Floats("b", {3});
  added.Node("MatMul", {"x", "w1"}, {"p"});
  added.Node("Add", {"p", "b"}, {"a"});
  added.Node("MatMul", {"a", "w2"}, {"q"});
  added.Node("Add", {"b", "q"}, {"y"});
  EXPECT_TRUE(Mentions(Refusal(added), "'b' is shared with another node"));

  OnnxFile conv({2, 4, 4});
  for (const char* weight : {"w1", "w2"}) conv.Floats(weight, {2, 2, 1, 1});
  conv.Floats("b", {2});
  conv.Node("Conv", {"x", "w1", "b"}, {"a"});
  conv.Node("Conv", {"a", "w2", "b"}, {"c"});
  conv.Node("Flatten", {"c"}, {"f"});
  conv.Classify("f", 32);
  EXPECT_TRUE(Mentions(Refusal(conv), "'b' is shared with another node"));

  for (std::size_t shared = 0; shared < 4; ++shared) {
    OnnxFile norm({2, 4, 4});
    std::vector<std::string> first = {"x", "g1", "b1", "m1", "v1"};
    std::vector<std::string> second = {"a", "g2", "b2", "m2", "v2"};
    second[shared + 1] = first[shared + 1];
    for (std::size_t i = 1; i < 5; ++i) {
      norm.Floats(first[i], {2});
      if (second[i] != first[i]) norm.Floats(second[i], {2});
    }
    norm.Node("BatchNormalization", first, {"a"});
    norm.Node("BatchNormalization", second, {"n"});
    norm.Node("Flatten", {"n"}, {"f"});
    norm.Classify("f", 32);
    EXPECT_TRUE(Mentions(Refusal(norm), "is shared with another node")) << second[shared + 1];
  }
}

TEST(OnnxRefuseTest, MoreNodesThanAnyNetHasAreRefused) {
  OnnxFile file({3});
  file.Node("Relu", {"x"}, {"r0"});
  for (int i = 1; i <= 20'000; ++i) {
    file.Node("Relu", {"r" + std::to_string(i - 1)}, {"r" + std::to_string(i)});
  }
  file.Classify("r20000", 3);
  EXPECT_TRUE(Mentions(Refusal(file), "20002 nodes; at most 20000 are read"));
}

TEST(OnnxRefuseTest, EveryCutAndEveryFlippedByteEndsInAnAnswer) {
  OnnxFile file({2, 4, 4});
  file.Floats("c.weight", {2, 2, 3, 3});
  OnnxFile::SetInts(file.Node("Conv", {"x", "c.weight"}, {"c"}), "pads", {1, 1, 1, 1});
  file.Node("Shape", {"c"}, {"shape"});
  file.Ints("-1", {-1});
  file.Int("0", 0);
  file.Ints("axis0", {0});
  file.Node("Gather", {"shape", "0"}, {"n"});
  file.Node("Unsqueeze", {"n", "axis0"}, {"n1"});
  OnnxFile::SetInt(file.Node("Concat", {"n1", "-1"}, {"t"}), "axis", 0);
  file.Node("Reshape", {"c", "t"}, {"f"});
  file.Classify("f", 32);
  const std::string bytes = file.Bytes();
  ASSERT_TRUE(ParseOnnx(bytes, "whole").ok());
  int refused = 0;
  for (std::size_t cut = 0; cut < bytes.size(); ++cut) {
    if (!ParseOnnx(bytes.substr(0, cut), "cut").ok()) ++refused;
  }
  EXPECT_GT(refused, static_cast<int>(bytes.size()) / 2);
  for (std::size_t at = 0; at < bytes.size(); ++at) {
    std::string flipped = bytes;
    flipped[at] = static_cast<char>(flipped[at] ^ 0x41);
    const auto model = ParseOnnx(flipped, "flipped");
    EXPECT_TRUE(model.ok() || !model.status().message().empty());
  }
}

TEST(OnnxRefuseTest, AFileThatIsNotThereIsNamed) {
  const auto model = ReadOnnx("/nowhere/net.onnx");
  ASSERT_FALSE(model.ok());
  EXPECT_TRUE(Mentions(model.status().message(), "/nowhere/net.onnx"));
}

}  // namespace
}  // namespace motley::graph
