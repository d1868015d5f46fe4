#include "motley/graph/graph.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <span>
#include <unordered_set>

#include "motley/base/rng.h"
#include "motley/graph/shapes.h"

namespace motley::graph {
namespace {

using base::InvalidInput;
using base::Result;

constexpr std::int64_t kMaxParameters = std::int64_t{1} << 36;

// [weight, bias] of a node as (suffix, shape), in canonical order.
std::vector<std::pair<const char*, Shape>> ParameterShapes(const Node& node, const Shape& input) {
  std::vector<std::pair<const char*, Shape>> result;
  if (node.op == Op::kConv) {
    const ConvAttrs& a = node.conv();
    result.push_back({"weight", {a.out_channels, input[0] / a.groups, a.kernel_h, a.kernel_w}});
    if (a.bias) result.push_back({"bias", {a.out_channels}});
  } else if (node.op == Op::kFullyConnected) {
    const FullyConnectedAttrs& a = node.fully_connected();
    result.push_back({"weight", {a.out_features, input[0]}});
    if (a.bias) result.push_back({"bias", {a.out_features}});
  } else if (node.op == Op::kBatchNorm) {
    result = {{"weight", {input[0]}}, {"bias", {input[0]}}};
  }
  return result;
}

// Multiply-adds of one sample's forward pass.
std::int64_t Macs(const Graph& graph, const Node& node) {
  if (node.op == Op::kConv) {
    const ConvAttrs& a = node.conv();
    const std::int64_t in = graph.node(node.inputs[0]).shape[0];
    return Count(node.shape) * (in / a.groups) * a.kernel_h * a.kernel_w;
  }
  if (node.op == Op::kFullyConnected) {
    return Count(node.shape) * graph.node(node.inputs[0]).shape[0];
  }
  return 0;
}

// Whether the parameters stay below the limit, without overflowing on the way.
bool FitsLimit(const Shape& shape) {
  std::int64_t room = kMaxParameters;
  for (const std::int64_t dim : shape) room /= dim;
  return room >= 1;
}

std::vector<int> IndicesOf(const std::vector<Tensor>& tensors, NodeId id) {
  std::vector<int> result;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    if (tensors[i].node == id) result.push_back(static_cast<int>(i));
  }
  return result;
}

// Which nodes have a parameter before or at them: only these pass a gradient on.
std::vector<bool> NeedsGradient(const Graph& graph) {
  std::vector<bool> needs(graph.nodes().size(), false);
  needs.front() = graph.is_head();
  for (const Tensor& tensor : graph.parameters())
    needs[static_cast<std::size_t>(tensor.node)] = true;
  for (std::size_t id = 0; id < needs.size(); ++id) {
    for (const NodeId input : graph.nodes()[id].inputs) {
      if (needs[static_cast<std::size_t>(input)]) needs[id] = true;
    }
  }
  return needs;
}

// Whether the output of a layer goes through a ReLU before the next layer with weights.
bool FeedsRelu(const Graph& graph, NodeId id) {
  for (NodeId next = id + 1; next < graph.size(); ++next) {
    const Node& node = graph.node(next);
    if (std::find(node.inputs.begin(), node.inputs.end(), id) == node.inputs.end()) continue;
    if (node.op == Op::kRelu || node.op == Op::kRelu6) return true;
    const bool has_weights = node.op == Op::kConv || node.op == Op::kFullyConnected;
    if (!has_weights && FeedsRelu(graph, next)) return true;
  }
  return false;
}

}  // namespace

std::string ToString(const Shape& shape) { return fmt::format("{}", fmt::join(shape, "x")); }

std::int64_t Count(const Shape& shape) {
  std::int64_t count = 1;
  for (const std::int64_t dim : shape) count *= dim;
  return count;
}

std::string_view OpName(Op op) {
  switch (op) {
    case Op::kInput:
      return "input";
    case Op::kConv:
      return "convolution";
    case Op::kBatchNorm:
      return "batch norm";
    case Op::kRelu:
      return "relu";
    case Op::kRelu6:
      return "relu6";
    case Op::kMaxPool:
      return "max pool";
    case Op::kAvgPool:
      return "average pool";
    case Op::kGlobalAvgPool:
      return "global average pool";
    case Op::kFullyConnected:
      return "fully connected";
    case Op::kAdd:
      return "add";
    case Op::kConcat:
      return "concat";
    case Op::kSlice:
      return "slice";
    case Op::kChannelShuffle:
      return "channel shuffle";
    case Op::kPad:
      return "pad";
    case Op::kFlatten:
      return "flatten";
    case Op::kDropout:
      return "dropout";
    case Op::kLrn:
      return "lrn";
    case Op::kSoftmaxCrossEntropy:
      return "softmax cross-entropy";
    case Op::kBoundary:
      return "boundary";
  }
  return "unknown";
}

std::vector<int> Graph::parameters_of(NodeId id) const { return IndicesOf(parameters_, id); }
std::vector<int> Graph::buffers_of(NodeId id) const { return IndicesOf(buffers_, id); }

std::int64_t Graph::ForwardFlops(NodeId id) const { return 2 * Macs(*this, node(id)); }

std::int64_t Graph::ForwardFlops() const {
  std::int64_t flops = 0;
  for (NodeId id = 0; id < size(); ++id) flops += ForwardFlops(id);
  return flops;
}

std::int64_t Graph::BackwardFlops() const {
  const std::vector<bool> needs = NeedsGradient(*this);
  std::int64_t flops = 0;
  for (const Node& node : nodes_) {
    const std::int64_t macs = Macs(*this, node);
    if (macs == 0) continue;
    flops += 2 * macs;
    if (needs[static_cast<std::size_t>(node.inputs[0])]) flops += 2 * macs;
  }
  return flops;
}

Result<Cut> Graph::BodyHeadCut() const {
  NodeId head = 0;
  while (head < size() && node(head).op != Op::kFullyConnected) ++head;
  if (head == size()) {
    return InvalidInput("{} has no fully connected layer, so it has no head", name_);
  }
  // Layers without weights that only lead to the head's first layer stay in the body: what crosses
  // is then as small as it gets.
  const NodeId boundary = node(head).inputs[0];
  for (NodeId id = head; id < size(); ++id) {
    for (const NodeId input : node(id).inputs) {
      if (input < head && input != boundary) {
        return InvalidInput("{}: '{}' and '{}' both cross from the body to the head", name_,
                            node(boundary).name, node(input).name);
      }
    }
  }
  return Cut{.boundary = boundary, .head_begin = head};
}

GraphBuilder::GraphBuilder(std::string name, Shape input) {
  graph_.name_ = std::move(name);
  const bool image = input.size() == 3 || input.size() == 1;
  bool sane = image;
  std::int64_t room = std::int64_t{1} << 31;  // no image comes near it
  for (const std::int64_t dim : input) {
    sane = sane && dim >= 1 && dim <= room;
    if (sane) room /= dim;
  }
  if (!sane) {
    status_ = InvalidInput("{}: an input of {} is not possible", graph_.name_, ToString(input));
  }
  graph_.nodes_.push_back(
      {.name = "input", .op = Op::kInput, .inputs = {}, .attrs = {}, .shape = std::move(input)});
}

NodeId GraphBuilder::Add(std::string name, Op op, std::vector<NodeId> inputs, Attrs attrs) {
  const NodeId id = graph_.size();
  if (!status_.ok()) return 0;
  std::vector<Shape> shapes;
  for (const NodeId input : inputs) {
    MOTLEY_CHECK(input >= 0 && input < id, "node {} does not exist yet", input);
    shapes.push_back(graph_.node(input).shape);
  }
  auto shape = InferShape(op, attrs, shapes);
  if (!shape.ok()) {
    status_ = std::move(shape).status().In(
        fmt::format("{}: node '{}' ({})", graph_.name_, name, OpName(op)));
    return 0;
  }
  Node node{std::move(name), op, std::move(inputs), std::move(attrs), std::move(shape).value()};
  graph_.nodes_.push_back(std::move(node));
  return id;
}

NodeId GraphBuilder::Conv(std::string name, NodeId input, ConvAttrs attrs) {
  return Add(std::move(name), Op::kConv, {input}, attrs);
}
NodeId GraphBuilder::BatchNorm(std::string name, NodeId input, BatchNormAttrs attrs) {
  return Add(std::move(name), Op::kBatchNorm, {input}, attrs);
}
NodeId GraphBuilder::Relu(std::string name, NodeId input) {
  return Add(std::move(name), Op::kRelu, {input});
}
NodeId GraphBuilder::Relu6(std::string name, NodeId input) {
  return Add(std::move(name), Op::kRelu6, {input});
}
NodeId GraphBuilder::MaxPool(std::string name, NodeId input, PoolAttrs attrs) {
  return Add(std::move(name), Op::kMaxPool, {input}, attrs);
}
NodeId GraphBuilder::AvgPool(std::string name, NodeId input, PoolAttrs attrs) {
  return Add(std::move(name), Op::kAvgPool, {input}, attrs);
}
NodeId GraphBuilder::GlobalAvgPool(std::string name, NodeId input) {
  return Add(std::move(name), Op::kGlobalAvgPool, {input});
}
NodeId GraphBuilder::FullyConnected(std::string name, NodeId input, FullyConnectedAttrs attrs) {
  return Add(std::move(name), Op::kFullyConnected, {input}, attrs);
}
NodeId GraphBuilder::Sum(std::string name, NodeId a, NodeId b) {
  return Add(std::move(name), Op::kAdd, {a, b});
}
NodeId GraphBuilder::Concat(std::string name, std::vector<NodeId> inputs) {
  return Add(std::move(name), Op::kConcat, std::move(inputs));
}
NodeId GraphBuilder::Slice(std::string name, NodeId input, SliceAttrs attrs) {
  return Add(std::move(name), Op::kSlice, {input}, attrs);
}
NodeId GraphBuilder::ChannelShuffle(std::string name, NodeId input, ShuffleAttrs attrs) {
  return Add(std::move(name), Op::kChannelShuffle, {input}, attrs);
}
NodeId GraphBuilder::Pad(std::string name, NodeId input, PadAttrs attrs) {
  return Add(std::move(name), Op::kPad, {input}, attrs);
}
NodeId GraphBuilder::Flatten(std::string name, NodeId input) {
  return Add(std::move(name), Op::kFlatten, {input});
}
NodeId GraphBuilder::Dropout(std::string name, NodeId input, DropoutAttrs attrs) {
  return Add(std::move(name), Op::kDropout, {input}, attrs);
}
NodeId GraphBuilder::Lrn(std::string name, NodeId input, LrnAttrs attrs) {
  return Add(std::move(name), Op::kLrn, {input}, attrs);
}

const Shape& GraphBuilder::shape(NodeId id) const {
  static const Shape empty;
  return status_.ok() ? graph_.node(id).shape : empty;
}

Result<Graph> GraphBuilder::Build(NodeId logits) && {
  return std::move(*this).End("loss", Op::kSoftmaxCrossEntropy, logits, 0);
}

Result<Graph> GraphBuilder::End(std::string name, Op op, NodeId last, NodeId first) && {
  graph_.first_ = first;
  Add(std::move(name), op, {last});
  if (!status_.ok()) return std::move(status_);

  std::unordered_set<std::string> names;
  const auto append = [](std::vector<Tensor>& list, std::int64_t& total, Tensor tensor) {
    tensor.offset = total;
    tensor.size = Count(tensor.shape);
    total += tensor.size;
    list.push_back(std::move(tensor));
  };
  for (NodeId id = 0; id < graph_.size(); ++id) {
    const Node& node = graph_.node(id);
    if (node.name.empty() || !names.insert(node.name).second) {
      return InvalidInput("{}: the node name '{}' is empty or used twice", graph_.name_, node.name);
    }
    if (node.inputs.empty()) continue;
    const Shape& input = graph_.node(node.inputs[0]).shape;
    for (auto& [suffix, shape] : ParameterShapes(node, input)) {
      if (!FitsLimit(shape) || graph_.parameter_count_ > kMaxParameters) {
        return InvalidInput("{}: node '{}': more than {} parameters are not possible", graph_.name_,
                            node.name, kMaxParameters);
      }
      append(graph_.parameters_, graph_.parameter_count_,
             {fmt::format("{}.{}", node.name, suffix), id, std::move(shape)});
    }
    if (node.op == Op::kBatchNorm) {
      for (const char* suffix : {"running_mean", "running_var"}) {
        append(graph_.buffers_, graph_.buffer_count_,
               {fmt::format("{}.{}", node.name, suffix), id, {input[0]}});
      }
    }
  }
  if (graph_.parameters_.empty()) return InvalidInput("{} has nothing to train", graph_.name_);
  return std::move(graph_);
}

Graph WithoutDropout(const Graph& graph) {
  GraphBuilder builder(graph.name(), graph.input_shape());
  for (NodeId id = 1; id < graph.loss(); ++id) {
    Node node = graph.node(id);
    if (node.op == Op::kDropout) node.attrs = DropoutAttrs{.probability = 0.0F};
    builder.Add(node.name, node.op, node.inputs, node.attrs);
  }
  return std::move(builder).Build(graph.logits()).value();
}

Result<Halves> Split(const Graph& graph) {
  MOTLEY_ASSIGN_OR_RETURN(const Cut cut, graph.BodyHeadCut());
  GraphBuilder body(graph.name() + " (body)", graph.input_shape());
  for (NodeId id = 1; id < cut.head_begin; ++id) {
    const Node& node = graph.node(id);
    body.Add(node.name, node.op, node.inputs, node.attrs);
  }
  GraphBuilder head(graph.name() + " (head)", graph.node(cut.boundary).shape);
  const NodeId first = cut.head_begin - 1;  // in whose place the head has its input
  for (NodeId id = cut.head_begin; id < graph.loss(); ++id) {
    Node node = graph.node(id);
    for (NodeId& input : node.inputs) input = input == cut.boundary ? 0 : input - first;
    head.Add(node.name, node.op, node.inputs, node.attrs);
  }
  const NodeId logits = graph.logits() == cut.boundary ? 0 : graph.logits() - first;
  MOTLEY_ASSIGN_OR_RETURN(Graph lower,
                          std::move(body).End("boundary", Op::kBoundary, cut.boundary, 0));
  MOTLEY_ASSIGN_OR_RETURN(Graph upper,
                          std::move(head).End("loss", Op::kSoftmaxCrossEntropy, logits, first));
  return Halves{std::move(lower), std::move(upper)};
}

Model InitialModel(Graph graph, std::uint64_t seed) {
  std::vector<float> weights(static_cast<std::size_t>(graph.parameter_count()), 0.0F);
  std::vector<float> buffers(static_cast<std::size_t>(graph.buffer_count()), 0.0F);
  for (std::size_t i = 0; i < graph.parameters().size(); ++i) {
    const Tensor& t = graph.parameters()[i];
    const std::span<float> values = std::span(weights).subspan(static_cast<std::size_t>(t.offset),
                                                               static_cast<std::size_t>(t.size));
    const bool bias = t.name.ends_with(".bias");
    if (t.shape.size() == 1) {
      std::fill(values.begin(), values.end(), bias ? 0.0F : 1.0F);
      continue;
    }
    const double fan_in = static_cast<double>(t.size / t.shape[0]);
    const double gain = FeedsRelu(graph, t.node) ? 2.0 : 1.0;
    const double deviation = std::sqrt(gain / fan_in);
    base::Rng rng(base::Key({seed, i}));
    for (float& value : values) value = static_cast<float>(deviation * rng.Normal());
  }
  for (const Tensor& t : graph.buffers()) {
    if (t.name.ends_with(".running_var")) {
      std::fill_n(buffers.begin() + t.offset, t.size, 1.0F);
    }
  }
  return {std::move(graph), std::move(weights), std::move(buffers)};
}

}  // namespace motley::graph
