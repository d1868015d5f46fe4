#ifndef MOTLEY_TESTS_GRAPH_ONNX_FILE_H_
#define MOTLEY_TESTS_GRAPH_ONNX_FILE_H_

#include <gtest/gtest.h>
#include <onnx/onnx_pb.h>

#include <cstdint>
#include <string>
#include <vector>

#include "motley/base/status.h"
#include "motley/graph/onnx.h"

namespace motley::graph {

// An ONNX file spelled out by a test, independently of the writer.
class OnnxFile {
 public:
  // The net reads "x" and gives "y"; `dims` are without the batch, which is free.
  explicit OnnxFile(const std::vector<std::int64_t>& dims, std::int64_t opset = 13) {
    model_.set_ir_version(7);
    model_.add_opset_import()->set_version(opset);
    auto* const input = graph().add_input();
    input->set_name("x");
    auto* const type = input->mutable_type()->mutable_tensor_type();
    type->set_elem_type(onnx::TensorProto::FLOAT);
    type->mutable_shape()->add_dim()->set_dim_param("n");
    for (const std::int64_t extent : dims) {
      type->mutable_shape()->add_dim()->set_dim_value(extent);
    }
    graph().add_output()->set_name("y");
  }

  onnx::ModelProto& model() { return model_; }
  onnx::GraphProto& graph() { return *model_.mutable_graph(); }
  std::string Bytes() const { return model_.SerializeAsString(); }

  // A node named after its first output.
  onnx::NodeProto& Node(const std::string& op, const std::vector<std::string>& inputs,
                        const std::vector<std::string>& outputs) {
    auto* const node = graph().add_node();
    node->set_op_type(op);
    node->set_name("node_" + (outputs.empty() ? "" : outputs[0]));
    for (const std::string& input : inputs) node->add_input(input);
    for (const std::string& output : outputs) node->add_output(output);
    return *node;
  }

  // Floats 0.01, 0.02, …
  onnx::TensorProto& Floats(const std::string& name, const std::vector<std::int64_t>& dims) {
    auto* const tensor = graph().add_initializer();
    tensor->set_name(name);
    tensor->set_data_type(onnx::TensorProto::FLOAT);
    std::int64_t count = 1;
    for (const std::int64_t extent : dims) {
      tensor->add_dims(extent);
      count *= extent;
    }
    for (std::int64_t i = 0; i < count; ++i) {
      tensor->add_float_data(0.01F * static_cast<float>(i + 1));
    }
    return *tensor;
  }

  void Scalar(const std::string& name, float value) {
    auto* const tensor = graph().add_initializer();
    tensor->set_name(name);
    tensor->set_data_type(onnx::TensorProto::FLOAT);
    tensor->add_float_data(value);
  }

  onnx::TensorProto& Ints(const std::string& name, const std::vector<std::int64_t>& values) {
    auto* const tensor = graph().add_initializer();
    tensor->set_name(name);
    tensor->set_data_type(onnx::TensorProto::INT64);
    tensor->add_dims(static_cast<std::int64_t>(values.size()));
    for (const std::int64_t value : values) tensor->add_int64_data(value);
    return *tensor;
  }

  // A single integer without dimensions.
  void Int(const std::string& name, std::int64_t value) { Ints(name, {value}).clear_dims(); }

  // Ends a net of `features` flat features with "fc" over two classes.
  void Classify(const std::string& input, std::int64_t features) {
    Floats("fc.weight", {2, features});
    Floats("fc.bias", {2});
    SetInt(Node("Gemm", {input, "fc.weight", "fc.bias"}, {"y"}), "transB", 1);
  }

  static void SetInt(onnx::NodeProto& node, const std::string& name, std::int64_t value) {
    auto* const attribute = node.add_attribute();
    attribute->set_name(name);
    attribute->set_type(onnx::AttributeProto::INT);
    attribute->set_i(value);
  }
  static void SetInts(onnx::NodeProto& node, const std::string& name,
                      const std::vector<std::int64_t>& values) {
    auto* const attribute = node.add_attribute();
    attribute->set_name(name);
    attribute->set_type(onnx::AttributeProto::INTS);
    for (const std::int64_t value : values) attribute->add_ints(value);
  }
  static void SetFloat(onnx::NodeProto& node, const std::string& name, float value) {
    auto* const attribute = node.add_attribute();
    attribute->set_name(name);
    attribute->set_type(onnx::AttributeProto::FLOAT);
    attribute->set_f(value);
  }
  static void SetText(onnx::NodeProto& node, const std::string& name, const std::string& value) {
    auto* const attribute = node.add_attribute();
    attribute->set_name(name);
    attribute->set_type(onnx::AttributeProto::STRING);
    attribute->set_s(value);
  }

 private:
  onnx::ModelProto model_;
};

// The message with which a file is refused.
inline std::string Refusal(const OnnxFile& file) {
  const auto model = ParseOnnx(file.Bytes(), "test.onnx");
  EXPECT_FALSE(model.ok());
  if (model.ok()) return {};
  EXPECT_EQ(model.status().code(), base::Code::kInvalidInput);
  EXPECT_EQ(model.status().message().rfind("test.onnx: ", 0), 0U) << model.status().ToString();
  return model.status().ToString();
}

inline bool Mentions(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

}  // namespace motley::graph

#endif  // MOTLEY_TESTS_GRAPH_ONNX_FILE_H_
