#include <fmt/ranges.h>
#include <onnx/onnx_pb.h>

#include <algorithm>
#include <array>
#include <limits>
#include <set>
#include <unordered_set>
#include <utility>

#include "motley/base/file.h"
#include "motley/graph/onnx.h"
#include "motley/graph/onnx_fold.h"
#include "motley/graph/onnx_importer.h"

namespace motley::graph {
namespace {

using base::InvalidInput;
using base::Result;
using base::Status;

// Before it, operators broadcast by attributes that nobody writes any more.
constexpr std::int64_t kOldestOpset = 7;

// The largest networks that people export have a few thousand; a file of tiny nodes would cost a
// thousand times its size.
constexpr int kMaxNodes = 20'000;

// Handled by the reader itself; the others are layers or folded.
constexpr std::array<std::string_view, 5> kOwnOps = {"Constant", "Identity", "LogSoftmax", "Shape",
                                                     "Softmax"};

std::string SupportedOps() {
  std::set<std::string_view> ops(kOwnOps.begin(), kOwnOps.end());
  ops.insert(FoldableOps().begin(), FoldableOps().end());
  for (const OnnxLayerRule& rule : OnnxLayerRules()) ops.insert(rule.op);
  for (const OnnxLayerRule& rule : OnnxReshapeRules()) ops.insert(rule.op);
  return fmt::format("{}", fmt::join(ops, ", "));
}

const OnnxLayerRule* FindRule(std::string_view op) {
  for (const auto rules : {OnnxLayerRules(), OnnxReshapeRules()}) {
    for (const OnnxLayerRule& rule : rules) {
      if (rule.op == op) return &rule;
    }
  }
  return nullptr;
}

// Reads one file: the image's shape, then the live nodes in order.
class FileReader {
 public:
  // `bytes` bounds what folding and copying may allocate.
  FileReader(const onnx::ModelProto& model, std::size_t bytes)
      : graph_(model.graph()),
        room_(static_cast<std::int64_t>(bytes) + (1 << 20)),
        max_values_(room_) {
    for (const auto& opset : model.opset_import()) {
      if (opset.domain().empty() || opset.domain() == "ai.onnx") opset_ = opset.version();
    }
  }

  Result<Model> Read(const std::string& name);

 private:
  Result<const onnx::ValueInfoProto*> OnlyInput() const;
  Status ReadInput(const std::string& name);
  Status FindLive();
  Status DefineInitializers();
  Status Import(const OnnxNode& node, const std::string& domain);
  Status ImportLayer(const OnnxNode& node);
  Result<bool> Fold(const OnnxNode& node);
  Status ImportShape(const OnnxNode& node);
  Status ImportIdentity(const OnnxNode& node);
  Status ImportSoftmax(const OnnxNode& node);

  const onnx::GraphProto& graph_;
  std::int64_t opset_ = 0;
  std::int64_t room_;  // elements that folding may still read
  const std::int64_t max_values_;
  std::optional<OnnxImporter> net_;
  std::unordered_set<std::string> needed_;  // values that lead to the output
  std::vector<bool> live_;                  // by node: whether it makes one of them
};

// Initializers may be listed among the inputs; the rest must be one image.
Result<const onnx::ValueInfoProto*> FileReader::OnlyInput() const {
  std::unordered_set<std::string_view> initializers;
  for (const auto& tensor : graph_.initializer()) initializers.insert(tensor.name());
  const onnx::ValueInfoProto* found = nullptr;
  for (const auto& input : graph_.input()) {
    if (initializers.contains(input.name())) continue;
    if (found != nullptr) {
      return InvalidInput("the net has several inputs: '{}' and '{}'", found->name(), input.name());
    }
    found = &input;
  }
  if (found == nullptr) return InvalidInput("the net has no input");
  return found;
}

Status FileReader::ReadInput(const std::string& name) {
  MOTLEY_ASSIGN_OR_RETURN(const onnx::ValueInfoProto* const input, OnlyInput());
  const auto& type = input->type().tensor_type();
  if (!input->type().has_tensor_type() || type.elem_type() != onnx::TensorProto::FLOAT) {
    return InvalidInput("the input '{}' is not a tensor of floats", input->name());
  }
  const auto& dims = type.shape().dim();
  if (dims.size() != 4 && dims.size() != 2) {
    return InvalidInput("the input '{}' has {} dimensions; an image has 4, features have 2",
                        input->name(), dims.size());
  }
  Shape shape;
  for (int i = 1; i < dims.size(); ++i) {
    if (!dims[i].has_dim_value() || dims[i].dim_value() < 1) {
      return Status(InvalidInput("dimension {} of the input '{}' has no size", i, input->name()))
          .WithFix("export the net with a fixed image size; only the batch may stay free");
    }
    shape.push_back(dims[i].dim_value());
  }
  std::optional<std::int64_t> batch;
  if (dims[0].has_dim_value() && dims[0].dim_value() > 0) batch = dims[0].dim_value();
  net_.emplace(name, shape, batch);
  return net_->Define(input->name(), OnnxFeature{.node = 0, .view = shape});
}

// Marks what leads to the output, from the last node to the first; the rest is not even looked at.
Status FileReader::FindLive() {
  if (graph_.output_size() != 1) {
    return Status(InvalidInput("the net has {} outputs", graph_.output_size()))
        .WithFix("export it with the logits as its only output");
  }
  live_.resize(static_cast<std::size_t>(graph_.node_size()));
  needed_.insert(graph_.output(0).name());
  net_->CountUse(graph_.output(0).name());
  for (int i = graph_.node_size() - 1; i >= 0; --i) {
    const auto& outputs = graph_.node(i).output();
    const bool live = std::any_of(outputs.begin(), outputs.end(), [&](const std::string& output) {
      return !output.empty() && needed_.contains(output);
    });
    live_[static_cast<std::size_t>(i)] = live;
    if (!live) continue;
    for (const std::string& input : graph_.node(i).input()) {
      if (input.empty()) continue;
      needed_.insert(input);
      net_->CountUse(input);
    }
  }
  return {};
}

Status FileReader::DefineInitializers() {
  for (const auto& tensor : graph_.initializer()) {
    if (!needed_.contains(tensor.name())) continue;
    auto constant = DecodeTensor(tensor);
    if (!constant.ok()) {
      return std::move(constant).status().In(fmt::format("initializer '{}'", tensor.name()));
    }
    MOTLEY_RETURN_IF_ERROR(net_->Define(tensor.name(), *constant));
  }
  return {};
}

// Shape of something that the net computes: the batch and the file's shape.
Status FileReader::ImportShape(const OnnxNode& node) {
  std::vector<OnnxInt> extents;
  if (net_->OptionalConstant(node, 0).ok()) {
    MOTLEY_ASSIGN_OR_RETURN(const OnnxConstantPtr constant, net_->Constant(node, 0));
    for (const std::int64_t extent : constant->dims) extents.push_back({.value = extent});
  } else {
    MOTLEY_ASSIGN_OR_RETURN(const OnnxFeature x, net_->Feature(node, 0));
    extents.push_back({.value = 1, .batch = true});
    for (const std::int64_t extent : x.view) extents.push_back({.value = extent});
  }
  const auto rank = static_cast<std::int64_t>(extents.size());
  MOTLEY_ASSIGN_OR_RETURN(const std::int64_t start, node.Int("start", 0));
  MOTLEY_ASSIGN_OR_RETURN(const std::int64_t end, node.Int("end", rank));
  const OnnxRange range = ResolveRange(start, end, rank);
  std::vector<OnnxInt> part(extents.begin() + range.begin, extents.begin() + range.end);
  return net_->Define(node.output(0), MakeInts({range.end - range.begin}, std::move(part)));
}

Status FileReader::ImportIdentity(const OnnxNode& node) {
  if (const OnnxValue* const value = net_->Find(node.input(0));
      value != nullptr && std::holds_alternative<OnnxConstantPtr>(*value)) {
    return net_->Define(node.output(0), *value);
  }
  MOTLEY_ASSIGN_OR_RETURN(const OnnxFeature x, net_->Feature(node, 0));
  return net_->Define(node.output(0), x);
}

// The loss contains it; anywhere but at the end it would be a layer that does not exist here.
Status FileReader::ImportSoftmax(const OnnxNode& node) {
  MOTLEY_ASSIGN_OR_RETURN(const OnnxFeature x, net_->Plain(node, 0));
  MOTLEY_ASSIGN_OR_RETURN(const std::int64_t axis, node.Int("axis", opset_ < 13 ? 1 : -1));
  const auto rank = static_cast<std::int64_t>(x.view.size()) + 1;
  if (node.output(0) != graph_.output(0).name() || net_->uses(node.output(0)) != 1 ||
      (axis != 1 && axis != 1 - rank)) {
    return InvalidInput("is supported only over the classes, as the last node");
  }
  return net_->Define(node.output(0), x);
}

// Computes the node ahead when all its inputs are known. True when it did.
Result<bool> FileReader::Fold(const OnnxNode& node) {
  if (!IsFoldable(node.op())) return false;
  std::vector<OnnxConstantPtr> inputs;
  for (int i = 0; i < node.input_count(); ++i) {
    const OnnxValue* const value = net_->Find(node.input(i));
    if (value != nullptr && !std::holds_alternative<OnnxConstantPtr>(*value)) return false;
    MOTLEY_ASSIGN_OR_RETURN(OnnxConstantPtr constant, net_->OptionalConstant(node, i));
    room_ -= constant == nullptr ? 0 : constant->size();
    if (room_ < 0) return InvalidInput("the arithmetic on constants is larger than is plausible");
    inputs.push_back(std::move(constant));
  }
  MOTLEY_ASSIGN_OR_RETURN(OnnxConstantPtr folded, FoldNode(node, inputs));
  room_ -= folded->size();
  if (room_ < 0) return InvalidInput("the arithmetic on constants is larger than is plausible");
  MOTLEY_RETURN_IF_ERROR(net_->Define(node.output(0), std::move(folded)));
  return true;
}

Status FileReader::ImportLayer(const OnnxNode& node) {
  if (node.op() == "Constant") {
    MOTLEY_ASSIGN_OR_RETURN(OnnxConstantPtr constant, DecodeConstantNode(node));
    return net_->Define(node.output(0), std::move(constant));
  }
  if (node.op() == "Shape") return ImportShape(node);
  if (node.op() == "Identity") return ImportIdentity(node);
  if (node.op() == "Softmax" || node.op() == "LogSoftmax") return ImportSoftmax(node);
  MOTLEY_ASSIGN_OR_RETURN(const bool folded, Fold(node));
  if (folded) return {};
  if (const OnnxLayerRule* const rule = FindRule(node.op())) return rule->import(*net_, node);
  return InvalidInput("is supported only on shapes and other constants");
}

Status FileReader::Import(const OnnxNode& node, const std::string& domain) {
  const bool standard = domain.empty() || domain == "ai.onnx";
  const bool known = FindRule(node.op()) != nullptr || IsFoldable(node.op()) ||
                     std::find(kOwnOps.begin(), kOwnOps.end(), node.op()) != kOwnOps.end();
  if (!standard || !known) {
    return Status(InvalidInput("{}: the operator {}{}{} is not supported", node.Label(), domain,
                               domain.empty() ? "" : ".", node.op()))
        .WithFix("supported are " + SupportedOps());
  }
  if (node.output(0).empty()) return InvalidInput("{}: has no output", node.Label());
  return ImportLayer(node).In(node.Label());
}

Result<Model> FileReader::Read(const std::string& name) {
  if (opset_ < kOldestOpset) {
    return Status(InvalidInput("operators of version {} are too old", opset_))
        .WithFix(fmt::format("convert the file to opset {} or newer", kOldestOpset));
  }
  if (graph_.node_size() > kMaxNodes) {
    return Status(InvalidInput("the net has {} nodes; at most {} are read", graph_.node_size(),
                               kMaxNodes))
        .WithFix("simplify the net before exporting, for example by constant folding");
  }
  MOTLEY_RETURN_IF_ERROR(ReadInput(name));
  MOTLEY_RETURN_IF_ERROR(FindLive());
  MOTLEY_RETURN_IF_ERROR(DefineInitializers());
  for (int i = 0; i < graph_.node_size(); ++i) {
    if (!live_[static_cast<std::size_t>(i)]) continue;
    const onnx::NodeProto& proto = graph_.node(i);
    const Status imported = Import(OnnxNode(proto, opset_), proto.domain());
    // The builder keeps its first mistake and says more about it.
    MOTLEY_RETURN_IF_ERROR(net_->BuilderStatus());
    MOTLEY_RETURN_IF_ERROR(imported);
  }
  return std::move(*net_).Finish(graph_.output(0).name(), max_values_);
}

}  // namespace

Result<Model> ParseOnnx(std::string_view bytes, const std::string& origin) {
  if (bytes.size() > static_cast<std::size_t>(std::numeric_limits<int>::max())) {
    return InvalidInput("{}: files of more than 2 GB are not supported", origin);
  }
  onnx::ModelProto model;
  // Partial: no field is required, and a message about one would go to standard error.
  if (!model.ParsePartialFromArray(bytes.data(), static_cast<int>(bytes.size()))) {
    return InvalidInput("{}: not an ONNX file, or cut off", origin);
  }
  if (!model.has_graph()) return InvalidInput("{}: the file holds no network", origin);
  const std::string name = model.graph().name().empty() ? "onnx" : model.graph().name();
  auto result = FileReader(model, bytes.size()).Read(name);
  if (!result.ok()) return std::move(result).status().In(origin);
  return result;
}

Result<Model> ReadOnnx(const std::filesystem::path& file) {
  MOTLEY_ASSIGN_OR_RETURN(const std::string bytes, base::ReadFile(file));
  return ParseOnnx(bytes, file.string());
}

}  // namespace motley::graph
