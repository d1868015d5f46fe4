#ifndef MOTLEY_ENGINE_NATIVE_FUSION_H_
#define MOTLEY_ENGINE_NATIVE_FUSION_H_

#include <optional>
#include <vector>

#include "motley/graph/graph.h"

namespace motley::engine::native {

// Nodes that one kernel computes together, so that what lies between them never goes to memory: a
// convolution and its ReLU; or a batch norm, an addition and a ReLU, where the last two may be
// missing. Most nodes stand alone: first == last.
struct Fusion {
  graph::NodeId first = 0;             // whose input it reads and whose parameters it has
  graph::NodeId last = 0;              // whose value it gives
  std::optional<graph::NodeId> other;  // what the addition adds
  std::optional<float> relu_ceiling;   // infinity for a plain ReLU
};

// All nodes but the input, each in one fusion, in an order in which they can be computed.
std::vector<Fusion> FuseNodes(const graph::Graph& graph);

}  // namespace motley::engine::native

#endif  // MOTLEY_ENGINE_NATIVE_FUSION_H_
