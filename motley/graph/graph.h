#ifndef MOTLEY_GRAPH_GRAPH_H_
#define MOTLEY_GRAPH_GRAPH_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "motley/base/status.h"

namespace motley::graph {

// The shape of ONE sample, without the batch: [channels, height, width], or [features].
using Shape = std::vector<std::int64_t>;

// "3x224x224".
std::string ToString(const Shape& shape);
// The number of elements.
std::int64_t Count(const Shape& shape);

// The index of a node in Graph::nodes(); nodes are in topological order.
using NodeId = int;

enum class Op {
  kInput,
  kConv,
  kBatchNorm,
  kRelu,
  kRelu6,
  kMaxPool,
  kAvgPool,
  kGlobalAvgPool,
  kFullyConnected,
  kAdd,
  kConcat,          // along the channels
  kSlice,           // of the channels
  kChannelShuffle,  // [g, c/g] channels transposed to [c/g, g]
  kPad,             // zeros around the image; negative values crop
  kFlatten,
  kDropout,
  kLrn,
  kSoftmaxCrossEntropy,  // the loss; always the last node,
  kBoundary,             // or, of a body: where its output leaves and the gradient comes back
};

std::string_view OpName(Op op);

struct Padding {
  int top = 0, left = 0, bottom = 0, right = 0;
  static Padding Same(int all) { return {all, all, all, all}; }
  bool operator==(const Padding&) const = default;
};

struct ConvAttrs {
  int out_channels = 0;
  int kernel_h = 1, kernel_w = 1;
  int stride_h = 1, stride_w = 1;
  Padding pad = {};
  int dilation_h = 1, dilation_w = 1;
  int groups = 1;
  bool bias = true;
};

struct BatchNormAttrs {
  float epsilon = 1e-5F;
  // PyTorch's convention: running = (1 - momentum) * running + momentum * batch.
  float momentum = 0.1F;
};

struct PoolAttrs {
  int kernel_h = 2, kernel_w = 2;
  int stride_h = 2, stride_w = 2;
  Padding pad = {};
  // Round the output size up, but no window may start in the padding after the image.
  bool ceil_mode = false;
  // Average pooling: whether zeros of the padding count in the divisor.
  bool count_include_pad = true;
};

struct FullyConnectedAttrs {
  std::int64_t out_features = 0;
  bool bias = true;
};

struct SliceAttrs {
  std::int64_t begin = 0, end = 0;
};

struct ShuffleAttrs {
  int groups = 1;
};

struct PadAttrs {
  Padding pad = {};
};

struct DropoutAttrs {
  float probability = 0.5F;  // of setting an element to 0; the others grow by 1 / (1 - p)
};

// y = x / (k + alpha / size * sum of squares over `size` neighbouring channels) ^ beta
struct LrnAttrs {
  int size = 5;
  float alpha = 1e-4F, beta = 0.75F, k = 1.0F;
};

using Attrs =
    std::variant<std::monostate, ConvAttrs, BatchNormAttrs, PoolAttrs, FullyConnectedAttrs,
                 SliceAttrs, ShuffleAttrs, PadAttrs, DropoutAttrs, LrnAttrs>;

struct Node {
  std::string name;
  Op op = Op::kInput;
  std::vector<NodeId> inputs;
  Attrs attrs;
  Shape shape;  // of the output

  const ConvAttrs& conv() const { return std::get<ConvAttrs>(attrs); }
  const BatchNormAttrs& batch_norm() const { return std::get<BatchNormAttrs>(attrs); }
  const PoolAttrs& pool() const { return std::get<PoolAttrs>(attrs); }
  const FullyConnectedAttrs& fully_connected() const {
    return std::get<FullyConnectedAttrs>(attrs);
  }
  const SliceAttrs& slice() const { return std::get<SliceAttrs>(attrs); }
  const ShuffleAttrs& shuffle() const { return std::get<ShuffleAttrs>(attrs); }
  const PadAttrs& pad() const { return std::get<PadAttrs>(attrs); }
  const DropoutAttrs& dropout() const { return std::get<DropoutAttrs>(attrs); }
  const LrnAttrs& lrn() const { return std::get<LrnAttrs>(attrs); }
};

// A trainable array (in the flat weights) or a running statistic (in the flat buffers).
struct Tensor {
  std::string name;  // node name + ".weight", ".bias", ".running_mean", ".running_var"
  NodeId node = 0;
  Shape shape;
  std::int64_t offset = 0;  // in floats, from the start of the flat array
  std::int64_t size = 0;
};

// Where the fully connected head begins. Exactly one value crosses from body to head.
struct Cut {
  NodeId boundary = 0;    // the last node of the body; its output is what crosses
  NodeId head_begin = 0;  // nodes [head_begin, end) are the head
};

// A network as data: nodes in topological order, shapes, and the canonical flat layout of its
// weights. Immutable once built; share it as const between threads.
//
// The canonical layout is the contract between every kind of device, the servers and the files:
// nodes in order; for each convolution and fully connected layer weight, then bias; for each batch
// norm weight (gamma), then bias (beta). Convolution weights are [out][in / groups][kh][kw], fully
// connected weights [out][in], row-major, as PyTorch has them. Buffers likewise: running_mean,
// then running_var of each batch norm.
class Graph {
 public:
  const std::string& name() const { return name_; }
  const std::vector<Node>& nodes() const { return nodes_; }
  const Node& node(NodeId id) const { return nodes_[static_cast<std::size_t>(id)]; }
  NodeId size() const { return static_cast<NodeId>(nodes_.size()); }

  const Shape& input_shape() const { return nodes_.front().shape; }
  NodeId loss() const { return size() - 1; }
  // The halves of a net (Split): one ends at a boundary, the other begins there, and its input has
  // a gradient.
  bool is_body() const { return nodes_.back().op == Op::kBoundary; }
  bool is_head() const { return first_ > 0; }
  // What random choices of a node are keyed by: its place in the whole net.
  NodeId key(NodeId id) const { return first_ + id; }
  // The node whose output the loss reads.
  NodeId logits() const { return nodes_.back().inputs.front(); }
  std::int64_t num_classes() const { return Count(node(logits()).shape); }

  const std::vector<Tensor>& parameters() const { return parameters_; }
  const std::vector<Tensor>& buffers() const { return buffers_; }
  std::int64_t parameter_count() const { return parameter_count_; }
  std::int64_t buffer_count() const { return buffer_count_; }
  bool has_batch_norm() const { return buffer_count_ > 0; }

  // The parameters of one node, in canonical order: indices into parameters().
  std::vector<int> parameters_of(NodeId id) const;
  std::vector<int> buffers_of(NodeId id) const;

  // Multiply-adds count as two; layers without weights count nothing. Backward is the weight
  // gradient plus the data gradient; the first layer needs no data gradient.
  std::int64_t ForwardFlops() const;
  std::int64_t ForwardFlops(NodeId id) const;  // of one node
  std::int64_t BackwardFlops() const;

  // The body/head cut at the first fully connected layer. Fails for a net without one, and where
  // more than one value would cross.
  base::Result<Cut> BodyHeadCut() const;

 private:
  friend class GraphBuilder;
  Graph() = default;

  std::string name_;
  std::vector<Node> nodes_;
  NodeId first_ = 0;  // of a head: the boundary's place in the whole net
  std::vector<Tensor> parameters_;
  std::vector<Tensor> buffers_;
  std::int64_t parameter_count_ = 0;
  std::int64_t buffer_count_ = 0;
};

// Builds a Graph node by node. Shapes are inferred as nodes are added; the first mistake is kept
// and returned by Build with the node's name, so that zoo code reads without error handling.
// Adding after a mistake is harmless and has no effect.
class GraphBuilder {
 public:
  // `input` is the shape of one sample.
  GraphBuilder(std::string name, Shape input);

  NodeId input() const { return 0; }

  // Adds any node with one output. Names must be unique and not empty.
  NodeId Add(std::string name, Op op, std::vector<NodeId> inputs, Attrs attrs = {});

  NodeId Conv(std::string name, NodeId input, ConvAttrs attrs);
  NodeId BatchNorm(std::string name, NodeId input, BatchNormAttrs attrs = {});
  NodeId Relu(std::string name, NodeId input);
  NodeId Relu6(std::string name, NodeId input);
  NodeId MaxPool(std::string name, NodeId input, PoolAttrs attrs);
  NodeId AvgPool(std::string name, NodeId input, PoolAttrs attrs);
  NodeId GlobalAvgPool(std::string name, NodeId input);  // [c,h,w] -> [c,1,1]
  NodeId FullyConnected(std::string name, NodeId input, FullyConnectedAttrs attrs);
  NodeId Sum(std::string name, NodeId a, NodeId b);
  NodeId Concat(std::string name, std::vector<NodeId> inputs);
  NodeId Slice(std::string name, NodeId input, SliceAttrs attrs);
  NodeId ChannelShuffle(std::string name, NodeId input, ShuffleAttrs attrs);
  NodeId Pad(std::string name, NodeId input, PadAttrs attrs);
  NodeId Flatten(std::string name, NodeId input);
  NodeId Dropout(std::string name, NodeId input, DropoutAttrs attrs);
  NodeId Lrn(std::string name, NodeId input, LrnAttrs attrs);

  // The shape inferred for a node, for code that builds by shape. Empty after a mistake.
  const Shape& shape(NodeId id) const;

  // Ends the network with softmax cross-entropy over `logits`, which must have one number per
  // class: [k] or [k,1,1].
  base::Result<Graph> Build(NodeId logits) &&;

 private:
  friend base::Result<struct Halves> Split(const Graph& graph);
  // `first`: the place of the input in the whole net.
  base::Result<Graph> End(std::string name, Op op, NodeId last, NodeId first) &&;

  Graph graph_;
  base::Status status_;
};

// The same net with every dropout at probability 0. What another program computes can then be
// compared number by number: no two programs draw the same random numbers.
Graph WithoutDropout(const Graph& graph);

// The body and the head as nets of their own. Weights and running statistics of the body are the
// first ones of the whole net, those of the head the last.
struct Halves {
  Graph body, head;
};

// Fails for a net without a head, and for one whose body has nothing to train.
base::Result<Halves> Split(const Graph& graph);

// A graph with values for its weights and buffers.
struct Model {
  Graph graph;
  std::vector<float> weights;
  std::vector<float> buffers;
};

// Fresh weights: normal with variance 2 / fan_in where a ReLU follows (He), 1 / fan_in elsewhere,
// for convolutions and fully connected layers; biases 0, gamma 1, beta 0, running mean 0,
// variance 1. Keyed by (seed, parameter), so independent of everything else.
Model InitialModel(Graph graph, std::uint64_t seed);

}  // namespace motley::graph

#endif  // MOTLEY_GRAPH_GRAPH_H_
