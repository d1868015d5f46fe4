#ifndef MOTLEY_GRAPH_SHAPES_H_
#define MOTLEY_GRAPH_SHAPES_H_

#include <span>

#include "motley/base/status.h"
#include "motley/graph/graph.h"

namespace motley::graph {

// The output shape of a node from the shapes of its inputs. Fails with what is wrong, without the
// node's name: the caller knows it.
base::Result<Shape> InferShape(Op op, const Attrs& attrs, std::span<const Shape> inputs);

}  // namespace motley::graph

#endif  // MOTLEY_GRAPH_SHAPES_H_
