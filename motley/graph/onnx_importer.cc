#include "motley/graph/onnx_importer.h"

#include <algorithm>

namespace motley::graph {
namespace {

using base::InvalidInput;
using base::Result;
using base::Status;

// "conv1" of "conv1.weight" or "conv1.bias"; empty for other names.
std::string PrefixOf(const std::string& parameter) {
  for (const std::string_view suffix : {".weight", ".bias"}) {
    if (parameter.ends_with(suffix)) return parameter.substr(0, parameter.size() - suffix.size());
  }
  return {};
}

void Copy(const OnnxImporter::Source& source, std::span<float> out) {
  const std::vector<float>& in = source.constant->floats;
  if (!source.transposed) {
    std::copy(in.begin(), in.end(), out.begin());
    return;
  }
  const auto rows = static_cast<std::size_t>(source.constant->dims[0]);
  const auto columns = static_cast<std::size_t>(source.constant->dims[1]);
  for (std::size_t r = 0; r < rows; ++r) {
    for (std::size_t c = 0; c < columns; ++c) out[c * rows + r] = in[r * columns + c];
  }
}

}  // namespace

Status OnnxImporter::BuilderStatus() {
  if (!builder_.shape(builder_.input()).empty()) return {};
  return std::move(builder_).Build(builder_.input()).status();
}

Status OnnxImporter::Define(const std::string& name, OnnxValue value) {
  if (!values_.emplace(name, std::move(value)).second) {
    return InvalidInput("the value '{}' is made twice", name);
  }
  return {};
}

const OnnxValue* OnnxImporter::Find(const std::string& name) const {
  const auto found = values_.find(name);
  return found == values_.end() ? nullptr : &found->second;
}

int OnnxImporter::uses(const std::string& name) const {
  const auto found = uses_.find(name);
  return found == uses_.end() ? 0 : found->second;
}

Result<OnnxConstantPtr> OnnxImporter::OptionalConstant(const OnnxNode& node, int index) const {
  const std::string& name = node.input(index);
  if (name.empty()) return OnnxConstantPtr();
  const OnnxValue* const value = Find(name);
  if (value == nullptr) return InvalidInput("input '{}' is made by no node before it", name);
  const auto* const constant = std::get_if<OnnxConstantPtr>(value);
  if (constant == nullptr) return InvalidInput("input '{}' must be a constant", name);
  return *constant;
}

Result<OnnxConstantPtr> OnnxImporter::Constant(const OnnxNode& node, int index) const {
  MOTLEY_ASSIGN_OR_RETURN(OnnxConstantPtr constant, OptionalConstant(node, index));
  if (constant == nullptr) return InvalidInput("input {} is missing", index);
  return constant;
}

Result<OnnxFeature> OnnxImporter::FeatureNamed(const std::string& name) {
  const auto found = values_.find(name);
  if (found == values_.end()) return InvalidInput("'{}' is made by no node before it", name);
  if (const auto* const product = std::get_if<OnnxProduct>(&found->second)) {
    // Nobody adds a bias: a fully connected layer without one.
    SetSource(product->name, "weight", {.constant = product->weight, .transposed = true});
    const NodeId id = builder_.FullyConnected(
        product->name, product->input, {.out_features = product->weight->dims[1], .bias = false});
    found->second = OnnxFeature{.node = id, .view = builder_.shape(id)};
  }
  const auto* const feature = std::get_if<OnnxFeature>(&found->second);
  if (feature == nullptr) return InvalidInput("'{}' must not be a constant", name);
  return *feature;
}

Result<OnnxFeature> OnnxImporter::Feature(const OnnxNode& node, int index) {
  if (node.input(index).empty()) return InvalidInput("input {} is missing", index);
  return FeatureNamed(node.input(index));
}

Result<OnnxFeature> OnnxImporter::Plain(const OnnxNode& node, int index) {
  MOTLEY_ASSIGN_OR_RETURN(OnnxFeature feature, Feature(node, index));
  if (feature.form != OnnxFeature::Form::kPlain) {
    return InvalidInput("channels that were split into groups must be merged again first");
  }
  return feature;
}

Status OnnxImporter::DefineFeature(const OnnxNode& node, NodeId id, int output) {
  if (node.output(output).empty()) return InvalidInput("output {} is missing", output);
  return Define(node.output(output), OnnxFeature{.node = id, .view = builder_.shape(id)});
}

std::string OnnxImporter::LayerName(const OnnxNode& node, std::span<const std::string> parameters) {
  std::string name;
  for (const std::string& parameter : parameters) {
    if (name.empty()) name = PrefixOf(parameter);
  }
  if (name.empty()) name = node.name();
  if (name.empty()) name = node.output(0);
  // "input" and "loss" are the builder's own.
  if (name == "input" || name == "loss") name += "_";
  return UniqueName(name);
}

std::string OnnxImporter::UniqueName(const std::string& name) {
  std::string unique = name;
  for (int& repeats = repeats_[name]; !taken_.insert(unique).second;) {
    unique = fmt::format("{}_{}", name, ++repeats + 1);
  }
  return unique;
}

Status OnnxImporter::Fill(const std::vector<Tensor>& tensors, std::vector<float>& values,
                          std::int64_t& room) const {
  // Everything is checked before anything is allocated.
  for (const Tensor& tensor : tensors) {
    const Source& source = sources_.at(tensor.name);
    Shape dims = source.constant->dims;
    if (source.transposed) std::reverse(dims.begin(), dims.end());
    if (!source.constant->is_float || dims != tensor.shape) {
      return InvalidInput("'{}' has shape {}, but the net needs {}", tensor.name, ToString(dims),
                          ToString(tensor.shape));
    }
    room -= tensor.size;
    if (room < 0) return InvalidInput("the file uses its weights more often than is plausible");
  }
  values.resize(
      tensors.empty() ? 0 : static_cast<std::size_t>(tensors.back().offset + tensors.back().size));
  for (const Tensor& tensor : tensors) {
    Copy(sources_.at(tensor.name),
         std::span(values).subspan(static_cast<std::size_t>(tensor.offset),
                                   static_cast<std::size_t>(tensor.size)));
  }
  return {};
}

Result<Model> OnnxImporter::Finish(const std::string& output, std::int64_t max_values) && {
  const auto found = FeatureNamed(output);
  MOTLEY_RETURN_IF_ERROR(BuilderStatus());
  MOTLEY_ASSIGN_OR_RETURN(const OnnxFeature feature, found);
  if (feature.form != OnnxFeature::Form::kPlain) {
    return InvalidInput("the output '{}' is within a channel shuffle", output);
  }
  MOTLEY_ASSIGN_OR_RETURN(Graph graph, std::move(builder_).Build(feature.node));
  Model model{.graph = std::move(graph), .weights = {}, .buffers = {}};
  MOTLEY_RETURN_IF_ERROR(Fill(model.graph.parameters(), model.weights, max_values));
  MOTLEY_RETURN_IF_ERROR(Fill(model.graph.buffers(), model.buffers, max_values));
  return model;
}

}  // namespace motley::graph
