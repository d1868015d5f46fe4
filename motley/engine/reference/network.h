#ifndef MOTLEY_ENGINE_REFERENCE_NETWORK_H_
#define MOTLEY_ENGINE_REFERENCE_NETWORK_H_

#include <cstdint>
#include <functional>
#include <vector>

#include "motley/data/batch.h"
#include "motley/engine/reference/kernels.h"
#include "motley/graph/graph.h"

namespace motley::engine::reference {

// One walk through a graph with one batch: forward in node order, backward in reverse, every value
// kept until the end. Everything is in double precision, so that its rounding is far below that of
// the engines it judges, and so that finite differences mean something.
//
// Borrows the graph and the batch. One forward pass, then at most one backward pass.
class Network {
 public:
  struct Training {
    std::int64_t bn_batch = 0;  // 0: statistics over the whole batch
    std::uint64_t seed = 0;     // of dropout
  };
  // Asked before every node; true ends the walk.
  using Stop = std::function<bool()>;

  Network(const graph::Graph& graph, Values weights, const data::Batch& batch);

  // With the batch's own statistics and with dropout. False if it was stopped.
  bool ForwardTraining(const Training& training, const Stop& stop);
  // With running statistics, without dropout.
  void ForwardTrained(Values buffers);
  // After ForwardTraining. False if it was stopped.
  bool Backward(const Stop& stop);

  const Loss& loss() const { return loss_; }
  View logits() const { return values_[static_cast<std::size_t>(graph_.logits())]; }
  View gradient() const { return gradient_; }
  // The sum over the samples of mean and unbiased variance of the group that each belongs to.
  View buffer_sums() const { return buffer_sums_; }

 private:
  Dims dims(graph::NodeId id) const { return DimsOf(batch_.size(), graph_.node(id).shape); }
  const Values& input(const graph::Node& node, std::size_t index = 0) const {
    return values_[static_cast<std::size_t>(node.inputs[index])];
  }
  // The node's parameters: which = 0 is the weight, 1 the bias; empty if there is none.
  View parameter(graph::NodeId id, std::size_t which) const;

  Values Evaluate(graph::NodeId id);
  Values EvaluateBatchNorm(graph::NodeId id);
  Values EvaluateConcat(graph::NodeId id) const;

  void Propagate(graph::NodeId id);
  void PropagateLayer(graph::NodeId id, const LayerGradients& gradients);
  void PropagateConcat(graph::NodeId id);
  // Adds to the gradient of one of the node's inputs; a value that several nodes read gets a sum.
  void Accumulate(graph::NodeId to, View gradient);
  void AddStatistics(graph::NodeId id, const std::vector<Moments>& moments);

  const graph::Graph& graph_;
  const data::Batch& batch_;
  const Values weights_;
  Values buffers_;
  Training training_;
  bool is_training_ = false;

  std::vector<Values> values_;                 // by node
  std::vector<Values> gradients_;              // by node; empty until something flowed there
  std::vector<std::vector<Moments>> moments_;  // by node; empty where there is no batch norm
  Values gradient_, buffer_sums_;
  Loss loss_;
};

}  // namespace motley::engine::reference

#endif  // MOTLEY_ENGINE_REFERENCE_NETWORK_H_
