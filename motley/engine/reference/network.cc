#include "motley/engine/reference/network.h"

#include <utility>

#include "motley/base/check.h"

namespace motley::engine::reference {
namespace {

using graph::NodeId;
using graph::Op;

std::size_t Index(std::int64_t value) { return static_cast<std::size_t>(value); }

}  // namespace

Network::Network(const graph::Graph& graph, Values weights, const data::Batch& batch)
    : graph_(graph),
      batch_(batch),
      weights_(std::move(weights)),
      values_(graph.nodes().size()),
      gradients_(graph.nodes().size()),
      moments_(graph.nodes().size()),
      gradient_(weights_.size()),
      buffer_sums_(Index(graph.buffer_count())) {}

bool Network::ForwardTraining(const Training& training, const Stop& stop) {
  training_ = training;
  is_training_ = true;
  for (NodeId id = 0; id < graph_.size(); ++id) {
    if (stop()) return false;
    values_[Index(id)] = Evaluate(id);
  }
  return true;
}

void Network::ForwardTrained(Values buffers) {
  buffers_ = std::move(buffers);
  for (NodeId id = 0; id < graph_.size(); ++id) values_[Index(id)] = Evaluate(id);
}

bool Network::Backward(const Stop& stop) {
  MOTLEY_CHECK(is_training_, "a backward pass needs a forward pass of training");
  Accumulate(graph_.logits(), loss_.dlogits);
  for (NodeId id = graph_.loss() - 1; id >= 0; --id) {
    if (stop()) return false;
    // Empty: nothing between this node and the loss.
    if (!gradients_[Index(id)].empty()) Propagate(id);
  }
  return true;
}

View Network::parameter(NodeId id, std::size_t which) const {
  const std::vector<int> indices = graph_.parameters_of(id);
  if (which >= indices.size()) return {};
  const graph::Tensor& tensor = graph_.parameters()[Index(indices[which])];
  return View(weights_).subspan(Index(tensor.offset), Index(tensor.size));
}

Values Network::Evaluate(NodeId id) {
  const graph::Node& node = graph_.node(id);
  const Dims out = dims(id);
  if (node.op == Op::kInput) return {batch_.images.begin(), batch_.images.end()};
  const Values& x = input(node);
  const Dims in = dims(node.inputs[0]);
  switch (node.op) {
    case Op::kInput:
      break;
    case Op::kConv:
      return Conv(node.conv(), in, out, x, parameter(id, 0), parameter(id, 1));
    case Op::kFullyConnected:
      return FullyConnected(in, out, x, parameter(id, 0), parameter(id, 1));
    case Op::kBatchNorm:
      return EvaluateBatchNorm(id);
    case Op::kRelu:
      return Relu(x);
    case Op::kRelu6:
      return Relu6(x);
    case Op::kMaxPool:
      return MaxPool(node.pool(), in, out, x);
    case Op::kAvgPool:
      return AvgPool(node.pool(), in, out, x);
    case Op::kGlobalAvgPool:
      return GlobalAvgPool(in, x);
    case Op::kAdd:
      return Sum(x, input(node, 1));
    case Op::kConcat:
      return EvaluateConcat(id);
    case Op::kSlice:
      return TakeChannels(in, out, node.slice().begin, x);
    case Op::kChannelShuffle:
      return ShuffleChannels(in, node.shuffle().groups, x);
    case Op::kPad:
      return Pad(node.pad().pad, in, out, x);
    case Op::kFlatten:
      return x;
    case Op::kDropout: {
      if (!is_training_) return x;
      const float p = node.dropout().probability;
      return Product(x, DropoutFactors(p, in, batch_, training_.seed, graph_.key(id)));
    }
    case Op::kLrn:
      return Lrn(node.lrn(), in, x);
    case Op::kSoftmaxCrossEntropy:
      loss_ = SoftmaxCrossEntropy(in, x, batch_.labels);
      return {loss_.sum};
    case Op::kBoundary:
      break;
  }
  MOTLEY_CHECK(false, "node '{}' has no forward function", node.name);
  return {};
}

Values Network::EvaluateBatchNorm(NodeId id) {
  const graph::Node& node = graph_.node(id);
  const Dims in = dims(node.inputs[0]);
  std::vector<Moments>& moments = moments_[Index(id)];
  if (is_training_) {
    moments = MomentsOfGroups(in, input(node), training_.bn_batch);
    AddStatistics(id, moments);
  } else {
    const std::vector<int> indices = graph_.buffers_of(id);
    const auto buffer = [&](std::size_t which) {
      const graph::Tensor& tensor = graph_.buffers()[Index(indices[which])];
      const View values = View(buffers_).subspan(Index(tensor.offset), Index(tensor.size));
      return Values(values.begin(), values.end());
    };
    moments = {{.begin = 0, .end = in.n, .mean = buffer(0), .variance = buffer(1)}};
  }
  return BatchNorm(node.batch_norm().epsilon, in, input(node), parameter(id, 0), parameter(id, 1),
                   moments);
}

void Network::AddStatistics(NodeId id, const std::vector<Moments>& moments) {
  const std::vector<int> indices = graph_.buffers_of(id);
  const std::size_t mean_at = Index(graph_.buffers()[Index(indices[0])].offset);
  const std::size_t variance_at = Index(graph_.buffers()[Index(indices[1])].offset);
  for (const Moments& group : moments) {
    const auto samples = static_cast<double>(group.end - group.begin);
    const double count = samples * static_cast<double>(dims(id).image());
    // Of one element there is no unbiased estimate; its biased variance, 0, stands in.
    const double unbiased = count > 1.0 ? count / (count - 1.0) : 1.0;
    for (std::size_t c = 0; c < group.mean.size(); ++c) {
      buffer_sums_[mean_at + c] += samples * group.mean[c];
      buffer_sums_[variance_at + c] += samples * group.variance[c] * unbiased;
    }
  }
}

Values Network::EvaluateConcat(NodeId id) const {
  const graph::Node& node = graph_.node(id);
  const Dims out = dims(id);
  Values y = out.Zeros();
  std::int64_t begin = 0;
  for (std::size_t i = 0; i < node.inputs.size(); ++i) {
    const Dims part = dims(node.inputs[i]);
    PutChannels(out, part, begin, input(node, i), y);
    begin += part.c;
  }
  return y;
}

void Network::Propagate(NodeId id) {
  const graph::Node& node = graph_.node(id);
  if (node.op == Op::kInput) return;
  const Values& dy = gradients_[Index(id)];
  const NodeId from = node.inputs[0];
  const Values& x = input(node);
  const Dims in = dims(from), out = dims(id);
  switch (node.op) {
    case Op::kInput:
    case Op::kSoftmaxCrossEntropy:
    case Op::kBoundary:
      return;
    case Op::kConv:
      return PropagateLayer(id, ConvBackward(node.conv(), in, out, x, parameter(id, 0), dy));
    case Op::kFullyConnected:
      return PropagateLayer(id, FullyConnectedBackward(in, out, x, parameter(id, 0), dy));
    case Op::kBatchNorm:
      return PropagateLayer(id, BatchNormBackward(node.batch_norm().epsilon, in, x,
                                                  parameter(id, 0), moments_[Index(id)], dy));
    case Op::kRelu:
      return Accumulate(from, ReluBackward(x, dy));
    case Op::kRelu6:
      return Accumulate(from, Relu6Backward(x, dy));
    case Op::kMaxPool:
      return Accumulate(from, MaxPoolBackward(node.pool(), in, out, x, dy));
    case Op::kAvgPool:
      return Accumulate(from, AvgPoolBackward(node.pool(), in, out, dy));
    case Op::kGlobalAvgPool:
      return Accumulate(from, GlobalAvgPoolBackward(in, dy));
    case Op::kAdd:
      Accumulate(from, dy);
      return Accumulate(node.inputs[1], dy);
    case Op::kConcat:
      return PropagateConcat(id);
    case Op::kSlice: {
      Values dx = in.Zeros();
      PutChannels(in, out, node.slice().begin, dy, dx);
      return Accumulate(from, dx);
    }
    case Op::kChannelShuffle:
      return Accumulate(from, ShuffleChannels(in, in.c / node.shuffle().groups, dy));
    case Op::kPad:
      return Accumulate(from, Pad(Negated(node.pad().pad), out, in, dy));
    case Op::kFlatten:
      return Accumulate(from, dy);
    case Op::kDropout: {
      const float p = node.dropout().probability;
      return Accumulate(from, Product(dy, DropoutFactors(p, in, batch_, training_.seed, id)));
    }
    case Op::kLrn:
      return Accumulate(from, LrnBackward(node.lrn(), in, x, dy));
  }
}

void Network::PropagateLayer(NodeId id, const LayerGradients& gradients) {
  Accumulate(graph_.node(id).inputs[0], gradients.input);
  const Values* const parts[] = {&gradients.weight, &gradients.bias};
  const std::vector<int> indices = graph_.parameters_of(id);
  for (std::size_t which = 0; which < indices.size(); ++which) {
    const graph::Tensor& tensor = graph_.parameters()[Index(indices[which])];
    std::copy(parts[which]->begin(), parts[which]->end(), gradient_.begin() + tensor.offset);
  }
}

void Network::PropagateConcat(NodeId id) {
  const Dims out = dims(id);
  std::int64_t begin = 0;
  for (const NodeId to : graph_.node(id).inputs) {
    const Dims part = dims(to);
    Accumulate(to, TakeChannels(out, part, begin, gradients_[Index(id)]));
    begin += part.c;
  }
}

void Network::Accumulate(NodeId to, View gradient) {
  Values& sum = gradients_[Index(to)];
  if (sum.empty()) sum.resize(gradient.size());
  for (std::size_t i = 0; i < gradient.size(); ++i) sum[i] += gradient[i];
}

}  // namespace motley::engine::reference
