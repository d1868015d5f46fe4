#include "motley/graph/onnx_node.h"

#include <onnx/onnx_pb.h>

#include <utility>

namespace motley::graph {
namespace {

using base::InvalidInput;
using base::Result;

const std::string& Empty() {
  static const std::string empty;
  return empty;
}

base::Status WrongType(const std::string& name, const char* wanted) {
  return InvalidInput("attribute '{}' is not {}", name, wanted);
}

}  // namespace

const std::string& OnnxNode::op() const { return proto_->op_type(); }
const std::string& OnnxNode::name() const { return proto_->name(); }
int OnnxNode::input_count() const { return proto_->input_size(); }
int OnnxNode::output_count() const { return proto_->output_size(); }

std::string OnnxNode::Label() const {
  // Exporters may leave the name out; the output's name then identifies the node.
  return fmt::format("node '{}' ({})", name().empty() ? output(0) : name(), op());
}

const std::string& OnnxNode::input(int index) const {
  return index < proto_->input_size() ? proto_->input(index) : Empty();
}

const std::string& OnnxNode::output(int index) const {
  return index < proto_->output_size() ? proto_->output(index) : Empty();
}

const onnx::AttributeProto* OnnxNode::Find(const std::string& name) const {
  for (const auto& attribute : proto_->attribute()) {
    if (attribute.name() == name) return &attribute;
  }
  return nullptr;
}

Result<std::int64_t> OnnxNode::Int(const std::string& name, std::int64_t fallback) const {
  const auto* const found = Find(name);
  if (found == nullptr) return fallback;
  if (found->type() != onnx::AttributeProto::INT) return WrongType(name, "an integer");
  return std::int64_t{found->i()};
}

Result<float> OnnxNode::Float(const std::string& name, float fallback) const {
  const auto* const found = Find(name);
  if (found == nullptr) return fallback;
  if (found->type() != onnx::AttributeProto::FLOAT) return WrongType(name, "a number");
  return found->f();
}

Result<std::string> OnnxNode::Text(const std::string& name, const std::string& fallback) const {
  const auto* const found = Find(name);
  if (found == nullptr) return fallback;
  if (found->type() != onnx::AttributeProto::STRING) return WrongType(name, "a text");
  return found->s();
}

Result<std::vector<std::int64_t>> OnnxNode::Ints(const std::string& name,
                                                 std::vector<std::int64_t> fallback) const {
  const auto* const found = Find(name);
  if (found == nullptr) return fallback;
  if (found->type() != onnx::AttributeProto::INTS) return WrongType(name, "a list of integers");
  return std::vector<std::int64_t>(found->ints().begin(), found->ints().end());
}

}  // namespace motley::graph
