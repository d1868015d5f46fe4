#include "motley/engine/native/fusion.h"

#include <limits>

namespace motley::engine::native {
namespace {

using graph::NodeId;
using graph::Op;

// The node that alone reads each node; -1 where none or several do.
std::vector<NodeId> OnlyReaders(const graph::Graph& graph) {
  constexpr NodeId kNobody = -1, kSeveral = -2;
  std::vector<NodeId> readers(static_cast<std::size_t>(graph.size()), kNobody);
  for (NodeId id = 1; id < graph.size(); ++id) {
    for (const NodeId input : graph.node(id).inputs) {
      NodeId& reader = readers[static_cast<std::size_t>(input)];
      reader = reader == kNobody ? id : kSeveral;
    }
  }
  for (NodeId& reader : readers) reader = reader == kSeveral ? kNobody : reader;
  return readers;
}

}  // namespace

std::vector<Fusion> FuseNodes(const graph::Graph& graph) {
  const std::vector<NodeId> readers = OnlyReaders(graph);
  const auto reader = [&](NodeId id) { return readers[static_cast<std::size_t>(id)]; };
  const auto is = [&](NodeId id, Op op) { return id >= 0 && graph.node(id).op == op; };

  std::vector<Fusion> by_last(static_cast<std::size_t>(graph.size()));
  std::vector<bool> absorbed(static_cast<std::size_t>(graph.size()), false);
  for (NodeId id = 1; id < graph.size(); ++id) {
    // Two batch norms may lead to one addition: the first has it.
    if (by_last[static_cast<std::size_t>(id)].first != 0 ||
        absorbed[static_cast<std::size_t>(id)]) {
      continue;
    }
    Fusion fusion{.first = id, .last = id, .other = {}, .relu_ceiling = {}};
    const auto extend = [&](NodeId next) {
      absorbed[static_cast<std::size_t>(fusion.last)] = true;
      fusion.last = next;
    };
    const Op op = graph.node(id).op;
    if (op == Op::kBatchNorm) {
      const NodeId add = reader(id);
      const bool free = is(add, Op::kAdd) && by_last[static_cast<std::size_t>(add)].first == 0 &&
                        !absorbed[static_cast<std::size_t>(add)];
      if (free) {
        const std::vector<NodeId>& inputs = graph.node(add).inputs;
        const NodeId other = inputs[0] == id ? inputs[1] : inputs[0];
        // A kernel would have to write and add to one gradient at the same time.
        if (other != graph.node(id).inputs[0]) {
          fusion.other = other;
          extend(add);
        }
      }
    }
    if (op == Op::kBatchNorm || op == Op::kConv) {
      const NodeId relu = reader(fusion.last);
      if (is(relu, Op::kRelu) || is(relu, Op::kRelu6)) {
        fusion.relu_ceiling = is(relu, Op::kRelu6) ? 6.0F : std::numeric_limits<float>::infinity();
        extend(relu);
      }
    }
    by_last[static_cast<std::size_t>(fusion.last)] = fusion;
  }
  std::vector<Fusion> fusions;
  for (const Fusion& fusion : by_last) {
    if (fusion.first != 0) fusions.push_back(fusion);
  }
  return fusions;
}

}  // namespace motley::engine::native
