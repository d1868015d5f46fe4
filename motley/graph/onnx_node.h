#ifndef MOTLEY_GRAPH_ONNX_NODE_H_
#define MOTLEY_GRAPH_ONNX_NODE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "motley/base/status.h"

namespace onnx {
class AttributeProto;
class NodeProto;
}  // namespace onnx

// Inside of the ONNX reader. Use onnx.h.
namespace motley::graph {

// One node of an ONNX file, read with suspicion: an attribute of the wrong type is a failure, an
// absent one is its default.
class OnnxNode {
 public:
  // `proto` is borrowed. `opset` is the version of the operators that the file is written in.
  OnnxNode(const onnx::NodeProto& proto, std::int64_t opset) : proto_(&proto), opset_(opset) {}

  const std::string& op() const;
  const std::string& name() const;
  std::int64_t opset() const { return opset_; }
  // "node 'layer1.0.conv1' (Conv)", for messages.
  std::string Label() const;

  int input_count() const;
  int output_count() const;
  // Empty when the optional input or output is left out.
  const std::string& input(int index) const;
  const std::string& output(int index) const;

  const onnx::AttributeProto* Find(const std::string& name) const;
  base::Result<std::int64_t> Int(const std::string& name, std::int64_t fallback) const;
  base::Result<float> Float(const std::string& name, float fallback) const;
  base::Result<std::string> Text(const std::string& name, const std::string& fallback) const;
  base::Result<std::vector<std::int64_t>> Ints(const std::string& name,
                                               std::vector<std::int64_t> fallback) const;

 private:
  const onnx::NodeProto* proto_;
  std::int64_t opset_;
};

}  // namespace motley::graph

#endif  // MOTLEY_GRAPH_ONNX_NODE_H_
