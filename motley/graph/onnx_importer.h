#ifndef MOTLEY_GRAPH_ONNX_IMPORTER_H_
#define MOTLEY_GRAPH_ONNX_IMPORTER_H_

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <variant>
#include <vector>

#include "motley/base/status.h"
#include "motley/graph/graph.h"
#include "motley/graph/onnx_constant.h"
#include "motley/graph/onnx_node.h"

// Inside of the ONNX reader. Use onnx.h.
namespace motley::graph {

// What a value of the file is computed as. `view` is its shape in the file, without the batch. It
// differs from the node's own shape only within a channel shuffle, which files spell as three
// nodes: split the channels into groups, swap, merge.
struct OnnxFeature {
  enum class Form { kPlain, kGrouped, kSwapped };
  NodeId node = 0;
  Shape view;
  Form form = Form::kPlain;
  int groups = 1;
};

// A matrix product that waits for the Add of its bias.
struct OnnxProduct {
  NodeId input = 0;
  std::string name;
  OnnxConstantPtr weight;  // [in][out]
};

using OnnxValue = std::variant<OnnxConstantPtr, OnnxFeature, OnnxProduct>;

// What reading a file has found so far: the values by name, the net being built, and where its
// parameters come from. The operators (onnx_layers.cc, onnx_reshape.cc) work on it.
class OnnxImporter {
 public:
  // Where the values of one parameter or buffer lie.
  struct Source {
    OnnxConstantPtr constant;
    bool transposed = false;  // the file has [in][out], the net [out][in]
  };

  OnnxImporter(std::string name, Shape input, std::optional<std::int64_t> batch)
      : builder_(std::move(name), std::move(input)), batch_(batch) {}

  GraphBuilder& builder() { return builder_; }
  // The builder's first mistake, if it found one; nothing can be built any more then.
  base::Status BuilderStatus();
  // The batch size that the file was exported with, where it is fixed.
  std::optional<std::int64_t> batch() const { return batch_; }

  // Fails when the name is taken: each value of a file is made once.
  base::Status Define(const std::string& name, OnnxValue value);
  const OnnxValue* Find(const std::string& name) const;
  // How many live nodes read each value.
  void CountUse(const std::string& name) { ++uses_[name]; }
  int uses(const std::string& name) const;

  // The value of input `index` of `node` as a constant; null when it is left out. Fails when it
  // depends on the image.
  base::Result<OnnxConstantPtr> OptionalConstant(const OnnxNode& node, int index) const;
  base::Result<OnnxConstantPtr> Constant(const OnnxNode& node, int index) const;
  // The value of input `index` as something that the net computes, not within a shuffle.
  base::Result<OnnxFeature> Plain(const OnnxNode& node, int index);
  // The same, in any form.
  base::Result<OnnxFeature> Feature(const OnnxNode& node, int index);

  // Output `output` of `node` is what `id` computes.
  base::Status DefineFeature(const OnnxNode& node, NodeId id, int output = 0);

  // A name for the net's node: that of its weights ("conv1" of "conv1.weight") where they have
  // one, otherwise the file's; made unique.
  std::string LayerName(const OnnxNode& node, std::span<const std::string> parameters);
  std::string LayerName(const OnnxNode& node) { return LayerName(node, {}); }
  // `name`, or with a number behind it if a node of the net has it already.
  std::string UniqueName(const std::string& name);

  // Parameter or buffer `suffix` of layer `layer` comes from `source`.
  void SetSource(const std::string& layer, const char* suffix, Source source) {
    sources_[layer + "." + suffix] = std::move(source);
  }

  // Ends the net at `output`. At most `max_values` numbers are copied into the model.
  base::Result<Model> Finish(const std::string& output, std::int64_t max_values) &&;

 private:
  base::Result<OnnxFeature> FeatureNamed(const std::string& name);
  base::Status Fill(const std::vector<Tensor>& tensors, std::vector<float>& values,
                    std::int64_t& room) const;

  GraphBuilder builder_;
  std::optional<std::int64_t> batch_;
  std::unordered_map<std::string, OnnxValue> values_;
  std::unordered_map<std::string, int> uses_;
  std::unordered_map<std::string, int> repeats_;  // of a layer's name
  std::unordered_set<std::string> taken_;
  std::map<std::string, Source> sources_;
};

// An operator that becomes a node of the net.
struct OnnxLayerRule {
  std::string_view op;
  base::Status (*import)(OnnxImporter&, const OnnxNode&);
};

std::span<const OnnxLayerRule> OnnxLayerRules();    // onnx_layers.cc
std::span<const OnnxLayerRule> OnnxReshapeRules();  // onnx_reshape.cc

}  // namespace motley::graph

#endif  // MOTLEY_GRAPH_ONNX_IMPORTER_H_
