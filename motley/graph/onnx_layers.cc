// The operators that become layers: convolution, batch norm, pooling, fully connected and the like.
#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <utility>

#include "motley/graph/onnx_fold.h"
#include "motley/graph/onnx_importer.h"

namespace motley::graph {
namespace {

using base::InvalidInput;
using base::Result;
using base::Status;
using Ints = std::vector<std::int64_t>;

// Numbers of windows; what is larger is no image.
constexpr std::int64_t kMaxWindow = 1 << 20;

// The window of a convolution or a pooling layer.
struct Window {
  std::array<int, 2> kernel{}, stride{}, dilation{};
  Padding pad;
};

Result<std::array<int, 2>> PairOf(const OnnxNode& node, const char* attribute, Ints fallback) {
  MOTLEY_ASSIGN_OR_RETURN(const Ints values, node.Ints(attribute, std::move(fallback)));
  if (values.size() != 2) return InvalidInput("attribute '{}' needs two values", attribute);
  for (const std::int64_t value : values) {
    if (value < 1 || value > kMaxWindow) {
      return InvalidInput("attribute '{}' holds {}", attribute, value);
    }
  }
  return std::array<int, 2>{static_cast<int>(values[0]), static_cast<int>(values[1])};
}

// The padding that keeps the size (divided by the stride), the odd pixel after or before.
std::pair<int, int> SamePad(std::int64_t extent, const Window& window, std::size_t axis,
                            bool upper) {
  const std::int64_t stride = window.stride[axis];
  const std::int64_t reach = std::int64_t{window.dilation[axis]} * (window.kernel[axis] - 1) + 1;
  const std::int64_t out = (extent + stride - 1) / stride;
  const std::int64_t total =
      std::clamp<std::int64_t>((out - 1) * stride + reach - extent, 0, kMaxWindow);
  const int less = static_cast<int>(total / 2);
  const int more = static_cast<int>(total - total / 2);
  return upper ? std::pair(less, more) : std::pair(more, less);
}

Result<Padding> PadOf(const OnnxNode& node, const Shape& image, const Window& window) {
  MOTLEY_ASSIGN_OR_RETURN(const std::string mode, node.Text("auto_pad", "NOTSET"));
  if (mode == "SAME_UPPER" || mode == "SAME_LOWER") {
    const auto [top, bottom] = SamePad(image[1], window, 0, mode == "SAME_UPPER");
    const auto [left, right] = SamePad(image[2], window, 1, mode == "SAME_UPPER");
    return Padding{top, left, bottom, right};
  }
  if (mode == "VALID") return Padding{};
  if (mode != "NOTSET" && !mode.empty()) return InvalidInput("auto_pad '{}' is unknown", mode);
  MOTLEY_ASSIGN_OR_RETURN(const Ints pads, node.Ints("pads", {0, 0, 0, 0}));
  if (pads.size() != 4) return InvalidInput("attribute 'pads' needs four values");
  for (const std::int64_t pad : pads) {
    if (pad < 0 || pad > kMaxWindow) return InvalidInput("attribute 'pads' holds {}", pad);
  }
  return Padding{static_cast<int>(pads[0]), static_cast<int>(pads[1]), static_cast<int>(pads[2]),
                 static_cast<int>(pads[3])};
}

Result<Window> WindowOf(const OnnxNode& node, const Shape& image, Ints kernel) {
  if (image.size() != 3) return InvalidInput("needs an image, got {}", ToString(image));
  Window window;
  MOTLEY_ASSIGN_OR_RETURN(window.kernel, PairOf(node, "kernel_shape", std::move(kernel)));
  MOTLEY_ASSIGN_OR_RETURN(window.stride, PairOf(node, "strides", {1, 1}));
  MOTLEY_ASSIGN_OR_RETURN(window.dilation, PairOf(node, "dilations", {1, 1}));
  MOTLEY_ASSIGN_OR_RETURN(window.pad, PadOf(node, image, window));
  return window;
}

// Two layers that share weights, biases or statistics would drift apart in training.
Status CheckNotShared(const OnnxImporter& net, const std::string& name) {
  if (net.uses(name) <= 1) return {};
  return Status(InvalidInput("'{}' is shared with another node, which is not supported", name))
      .WithFix("give each layer parameters of its own before exporting");
}

// A parameter of a layer; null when it is left out.
Result<OnnxConstantPtr> OptionalParameter(const OnnxImporter& net, const OnnxNode& node,
                                          int index) {
  MOTLEY_ASSIGN_OR_RETURN(OnnxConstantPtr parameter, net.OptionalConstant(node, index));
  if (parameter != nullptr) MOTLEY_RETURN_IF_ERROR(CheckNotShared(net, node.input(index)));
  return parameter;
}

Result<OnnxConstantPtr> Parameter(const OnnxImporter& net, const OnnxNode& node, int index) {
  MOTLEY_ASSIGN_OR_RETURN(OnnxConstantPtr parameter, net.Constant(node, index));
  MOTLEY_RETURN_IF_ERROR(CheckNotShared(net, node.input(index)));
  return parameter;
}

Status ImportConv(OnnxImporter& net, const OnnxNode& node) {
  MOTLEY_ASSIGN_OR_RETURN(const OnnxFeature x, net.Plain(node, 0));
  MOTLEY_ASSIGN_OR_RETURN(const OnnxConstantPtr weight, Parameter(net, node, 1));
  MOTLEY_ASSIGN_OR_RETURN(const OnnxConstantPtr bias, OptionalParameter(net, node, 2));
  MOTLEY_ASSIGN_OR_RETURN(const std::int64_t groups, node.Int("group", 1));
  const Shape& dims = weight->dims;
  if (!weight->is_float || dims.size() != 4 || weight->size() == 0 || groups < 1 ||
      groups > dims[0]) {
    return InvalidInput("weights of {} in {} groups are not possible", ToString(dims), groups);
  }
  MOTLEY_ASSIGN_OR_RETURN(const Window window, WindowOf(node, x.view, {dims[2], dims[3]}));
  const std::string name = net.LayerName(node, std::array{node.input(1), node.input(2)});
  const NodeId id = net.builder().Conv(name, x.node,
                                       {.out_channels = static_cast<int>(dims[0]),
                                        .kernel_h = window.kernel[0],
                                        .kernel_w = window.kernel[1],
                                        .stride_h = window.stride[0],
                                        .stride_w = window.stride[1],
                                        .pad = window.pad,
                                        .dilation_h = window.dilation[0],
                                        .dilation_w = window.dilation[1],
                                        .groups = static_cast<int>(groups),
                                        .bias = bias != nullptr});
  net.SetSource(name, "weight", {.constant = weight});
  if (bias != nullptr) net.SetSource(name, "bias", {.constant = bias});
  return net.DefineFeature(node, id);
}

Status ImportBatchNorm(OnnxImporter& net, const OnnxNode& node) {
  MOTLEY_ASSIGN_OR_RETURN(const OnnxFeature x, net.Plain(node, 0));
  MOTLEY_ASSIGN_OR_RETURN(const float epsilon, node.Float("epsilon", 1e-5F));
  MOTLEY_ASSIGN_OR_RETURN(const float kept, node.Float("momentum", 0.9F));
  MOTLEY_ASSIGN_OR_RETURN(const std::int64_t spatial, node.Int("spatial", 1));
  if (spatial != 1) return InvalidInput("statistics per pixel are not supported");
  const std::string name = net.LayerName(node, std::array{node.input(1), node.input(2)});
  constexpr std::array kSuffixes = {"weight", "bias", "running_mean", "running_var"};
  for (int i = 0; i < 4; ++i) {
    MOTLEY_ASSIGN_OR_RETURN(OnnxConstantPtr constant, Parameter(net, node, i + 1));
    net.SetSource(name, kSuffixes[static_cast<std::size_t>(i)], {.constant = std::move(constant)});
  }
  // The file keeps the complement in single precision; six digits give the number that was meant.
  const float momentum = static_cast<float>(std::round((1.0 - double{kept}) * 1e6) * 1e-6);
  const NodeId id =
      net.builder().BatchNorm(name, x.node, {.epsilon = epsilon, .momentum = momentum});
  return net.DefineFeature(node, id);
}

Status ImportRelu(OnnxImporter& net, const OnnxNode& node) {
  MOTLEY_ASSIGN_OR_RETURN(const OnnxFeature x, net.Plain(node, 0));
  return net.DefineFeature(node, net.builder().Relu(net.LayerName(node), x.node));
}

// A bound of Clip: an attribute in older files, an input in newer ones.
Result<float> BoundOf(const OnnxImporter& net, const OnnxNode& node, int index,
                      const char* attribute, float fallback) {
  MOTLEY_ASSIGN_OR_RETURN(const OnnxConstantPtr constant, net.OptionalConstant(node, index));
  return constant == nullptr ? node.Float(attribute, fallback) : PlainFloat(*constant);
}

Status ImportClip(OnnxImporter& net, const OnnxNode& node) {
  constexpr float kHuge = std::numeric_limits<float>::max();
  MOTLEY_ASSIGN_OR_RETURN(const OnnxFeature x, net.Plain(node, 0));
  MOTLEY_ASSIGN_OR_RETURN(const float low, BoundOf(net, node, 1, "min", -kHuge));
  MOTLEY_ASSIGN_OR_RETURN(const float high, BoundOf(net, node, 2, "max", kHuge));
  if (low == 0.0F && high == 6.0F) {
    return net.DefineFeature(node, net.builder().Relu6(net.LayerName(node), x.node));
  }
  if (low == 0.0F && high >= kHuge) return ImportRelu(net, node);
  return InvalidInput("clipping to [{}, {}] is not supported, only [0, 6] and [0, infinity]", low,
                      high);
}

Result<PoolAttrs> PoolOf(const OnnxNode& node, const Shape& image) {
  MOTLEY_ASSIGN_OR_RETURN(const Window window, WindowOf(node, image, {}));
  MOTLEY_ASSIGN_OR_RETURN(const std::int64_t ceil_mode, node.Int("ceil_mode", 0));
  MOTLEY_ASSIGN_OR_RETURN(const std::int64_t include_pad, node.Int("count_include_pad", 0));
  MOTLEY_ASSIGN_OR_RETURN(const std::int64_t order, node.Int("storage_order", 0));
  if (window.dilation != std::array{1, 1} || order != 0) {
    return InvalidInput("dilations and storage_order are not supported");
  }
  return PoolAttrs{.kernel_h = window.kernel[0],
                   .kernel_w = window.kernel[1],
                   .stride_h = window.stride[0],
                   .stride_w = window.stride[1],
                   .pad = window.pad,
                   .ceil_mode = ceil_mode != 0,
                   .count_include_pad = include_pad != 0};
}

Status ImportPool(OnnxImporter& net, const OnnxNode& node) {
  MOTLEY_ASSIGN_OR_RETURN(const OnnxFeature x, net.Plain(node, 0));
  MOTLEY_ASSIGN_OR_RETURN(const PoolAttrs pool, PoolOf(node, x.view));
  const Op op = node.op() == "MaxPool" ? Op::kMaxPool : Op::kAvgPool;
  return net.DefineFeature(node, net.builder().Add(net.LayerName(node), op, {x.node}, pool));
}

Status ImportGlobalAveragePool(OnnxImporter& net, const OnnxNode& node) {
  MOTLEY_ASSIGN_OR_RETURN(const OnnxFeature x, net.Plain(node, 0));
  return net.DefineFeature(node, net.builder().GlobalAvgPool(net.LayerName(node), x.node));
}

// The mean over height and width.
Status ImportReduceMean(OnnxImporter& net, const OnnxNode& node) {
  MOTLEY_ASSIGN_OR_RETURN(const OnnxFeature x, net.Plain(node, 0));
  MOTLEY_ASSIGN_OR_RETURN(const OnnxConstantPtr list, net.OptionalConstant(node, 1));
  MOTLEY_ASSIGN_OR_RETURN(Ints axes, list == nullptr ? node.Ints("axes", {}) : PlainInts(*list));
  MOTLEY_ASSIGN_OR_RETURN(const std::int64_t keep, node.Int("keepdims", 1));
  for (std::int64_t& axis : axes) {
    MOTLEY_ASSIGN_OR_RETURN(axis, ResolveAxis(axis, 4));
  }
  if (x.view.size() != 3 || (axes != Ints{2, 3} && axes != Ints{3, 2})) {
    return InvalidInput("only the mean over height and width of an image is supported");
  }
  const std::string name = net.LayerName(node);
  NodeId id = net.builder().GlobalAvgPool(name, x.node);
  if (keep == 0) id = net.builder().Flatten(net.UniqueName(name + ".flatten"), id);
  return net.DefineFeature(node, id);
}

Status ImportGemm(OnnxImporter& net, const OnnxNode& node) {
  MOTLEY_ASSIGN_OR_RETURN(const OnnxFeature x, net.Plain(node, 0));
  MOTLEY_ASSIGN_OR_RETURN(const OnnxConstantPtr weight, Parameter(net, node, 1));
  MOTLEY_ASSIGN_OR_RETURN(const OnnxConstantPtr bias, OptionalParameter(net, node, 2));
  MOTLEY_ASSIGN_OR_RETURN(const float alpha, node.Float("alpha", 1.0F));
  MOTLEY_ASSIGN_OR_RETURN(const float beta, node.Float("beta", 1.0F));
  MOTLEY_ASSIGN_OR_RETURN(const std::int64_t trans_a, node.Int("transA", 0));
  MOTLEY_ASSIGN_OR_RETURN(const std::int64_t trans_b, node.Int("transB", 0));
  if (alpha != 1.0F || beta != 1.0F || trans_a != 0) {
    return InvalidInput("alpha and beta other than 1, and transA, are not supported");
  }
  if (weight->dims.size() != 2) {
    return InvalidInput("weights of {} are no matrix", ToString(weight->dims));
  }
  const std::string name = net.LayerName(node, std::array{node.input(1), node.input(2)});
  const NodeId id = net.builder().FullyConnected(
      name, x.node, {.out_features = weight->dims[trans_b != 0 ? 0 : 1], .bias = bias != nullptr});
  net.SetSource(name, "weight", {.constant = weight, .transposed = trans_b == 0});
  if (bias != nullptr) net.SetSource(name, "bias", {.constant = bias});
  return net.DefineFeature(node, id);
}

Status ImportMatMul(OnnxImporter& net, const OnnxNode& node) {
  MOTLEY_ASSIGN_OR_RETURN(const OnnxFeature x, net.Plain(node, 0));
  MOTLEY_ASSIGN_OR_RETURN(OnnxConstantPtr weight, Parameter(net, node, 1));
  if (weight->dims.size() != 2) {
    return InvalidInput("weights of {} are no matrix", ToString(weight->dims));
  }
  const std::string name = net.LayerName(node, std::array{node.input(1)});
  return net.Define(node.output(0),
                    OnnxProduct{.input = x.node, .name = name, .weight = std::move(weight)});
}

// The bias of a matrix product that nobody else reads.
Status ImportBias(OnnxImporter& net, const OnnxNode& node, const OnnxProduct& product,
                  const OnnxConstantPtr& bias) {
  const std::int64_t outputs = product.weight->dims[1];
  const bool fits = bias->dims == Shape{outputs} || bias->dims == Shape{1, outputs};
  if (!fits) return InvalidInput("a bias of {} for {} outputs", ToString(bias->dims), outputs);
  OnnxConstant flat = *bias;
  flat.dims = {outputs};
  net.SetSource(product.name, "weight", {.constant = product.weight, .transposed = true});
  net.SetSource(product.name, "bias",
                {.constant = std::make_shared<const OnnxConstant>(std::move(flat))});
  return net.DefineFeature(
      node, net.builder().FullyConnected(product.name, product.input, {.out_features = outputs}));
}

Status ImportAdd(OnnxImporter& net, const OnnxNode& node) {
  for (const int side : {0, 1}) {
    const OnnxValue* const value = net.Find(node.input(side));
    const OnnxValue* const other = net.Find(node.input(1 - side));
    if (value == nullptr || other == nullptr) continue;
    const auto* const product = std::get_if<OnnxProduct>(value);
    const auto* const bias = std::get_if<OnnxConstantPtr>(other);
    if (product != nullptr && bias != nullptr && net.uses(node.input(side)) == 1) {
      MOTLEY_RETURN_IF_ERROR(CheckNotShared(net, node.input(1 - side)));
      return ImportBias(net, node, *product, *bias);
    }
  }
  MOTLEY_ASSIGN_OR_RETURN(const OnnxFeature a, net.Plain(node, 0));
  MOTLEY_ASSIGN_OR_RETURN(const OnnxFeature b, net.Plain(node, 1));
  return net.DefineFeature(node, net.builder().Sum(net.LayerName(node), a.node, b.node));
}

Status ImportDropout(OnnxImporter& net, const OnnxNode& node) {
  MOTLEY_ASSIGN_OR_RETURN(const OnnxFeature x, net.Plain(node, 0));
  MOTLEY_ASSIGN_OR_RETURN(const float ratio, BoundOf(net, node, 1, "ratio", 0.5F));
  const NodeId id = net.builder().Dropout(net.LayerName(node), x.node, {.probability = ratio});
  return net.DefineFeature(node, id);
}

Status ImportLrn(OnnxImporter& net, const OnnxNode& node) {
  MOTLEY_ASSIGN_OR_RETURN(const OnnxFeature x, net.Plain(node, 0));
  LrnAttrs lrn;
  MOTLEY_ASSIGN_OR_RETURN(const std::int64_t size, node.Int("size", 0));
  if (size < 1 || size > kMaxWindow) return InvalidInput("a neighbourhood of {} channels", size);
  lrn.size = static_cast<int>(size);
  MOTLEY_ASSIGN_OR_RETURN(lrn.alpha, node.Float("alpha", 1e-4F));
  MOTLEY_ASSIGN_OR_RETURN(lrn.beta, node.Float("beta", 0.75F));
  MOTLEY_ASSIGN_OR_RETURN(lrn.k, node.Float("bias", 1.0F));
  return net.DefineFeature(node, net.builder().Lrn(net.LayerName(node), x.node, lrn));
}

constexpr std::array<OnnxLayerRule, 13> kLayerRules = {
    {{"Add", ImportAdd},
     {"AveragePool", ImportPool},
     {"BatchNormalization", ImportBatchNorm},
     {"Clip", ImportClip},
     {"Conv", ImportConv},
     {"Dropout", ImportDropout},
     {"Gemm", ImportGemm},
     {"GlobalAveragePool", ImportGlobalAveragePool},
     {"LRN", ImportLrn},
     {"MatMul", ImportMatMul},
     {"MaxPool", ImportPool},
     {"ReduceMean", ImportReduceMean},
     {"Relu", ImportRelu}}};

}  // namespace

std::span<const OnnxLayerRule> OnnxLayerRules() { return kLayerRules; }

}  // namespace motley::graph
