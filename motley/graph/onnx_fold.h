#ifndef MOTLEY_GRAPH_ONNX_FOLD_H_
#define MOTLEY_GRAPH_ONNX_FOLD_H_

#include <span>
#include <string_view>
#include <vector>

#include "motley/base/status.h"
#include "motley/graph/onnx_constant.h"
#include "motley/graph/onnx_node.h"

// Inside of the ONNX reader. Use onnx.h.
namespace motley::graph {

// The operators that FoldNode computes, sorted.
std::span<const std::string_view> FoldableOps();
bool IsFoldable(std::string_view op);

// Computes a node whose inputs are all known: the shape arithmetic that exporters leave behind,
// with the size of the batch as an unknown, and the few things that they do to weights. An input
// that is left out is null.
base::Result<OnnxConstantPtr> FoldNode(const OnnxNode& node,
                                       const std::vector<OnnxConstantPtr>& inputs);

// Resolves one range of a Slice for an axis of `extent` elements, as ONNX does: negative counts
// from the end, too large is cut. Only a step of 1.
struct OnnxRange {
  std::int64_t begin = 0, end = 0;
};
OnnxRange ResolveRange(std::int64_t start, std::int64_t end, std::int64_t extent);

// An axis that may count from the end, checked against the rank.
base::Result<std::int64_t> ResolveAxis(std::int64_t axis, std::int64_t rank);

}  // namespace motley::graph

#endif  // MOTLEY_GRAPH_ONNX_FOLD_H_
