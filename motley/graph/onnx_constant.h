#ifndef MOTLEY_GRAPH_ONNX_CONSTANT_H_
#define MOTLEY_GRAPH_ONNX_CONSTANT_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "motley/base/status.h"
#include "motley/graph/graph.h"
#include "motley/graph/onnx_node.h"

namespace onnx {
class TensorProto;
}  // namespace onnx

// Inside of the ONNX reader. Use onnx.h.
namespace motley::graph {

// An integer of shape arithmetic. The size of the batch is not known while a file is read; with
// `batch`, this is `value` times that size.
struct OnnxInt {
  std::int64_t value = 0;
  bool batch = false;
  bool operator==(const OnnxInt&) const = default;
};

// A value that is known while the file is read: a weight, or a piece of shape arithmetic.
struct OnnxConstant {
  Shape dims;  // all extents are at least 0, and their product is the number of elements
  bool is_float = false;
  std::vector<float> floats;
  std::vector<OnnxInt> ints;  // integers and booleans

  std::int64_t size() const {
    return static_cast<std::int64_t>(is_float ? floats.size() : ints.size());
  }
};

using OnnxConstantPtr = std::shared_ptr<const OnnxConstant>;

// Integers of more elements than this are no shape arithmetic.
inline constexpr std::int64_t kMaxOnnxInts = 4096;

// A tensor of the file as a constant. Refuses what the bytes do not back, types other than float
// and integer, and data kept in other files.
base::Result<OnnxConstantPtr> DecodeTensor(const onnx::TensorProto& tensor);

// The value of a Constant node.
base::Result<OnnxConstantPtr> DecodeConstantNode(const OnnxNode& node);

OnnxConstantPtr MakeInts(Shape dims, std::vector<OnnxInt> values);

// A list of plain integers, or a failure when the constant is something else.
base::Result<std::vector<std::int64_t>> PlainInts(const OnnxConstant& constant);
// The only element as a float.
base::Result<float> PlainFloat(const OnnxConstant& constant);

}  // namespace motley::graph

#endif  // MOTLEY_GRAPH_ONNX_CONSTANT_H_
