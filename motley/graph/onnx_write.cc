#include <onnx/onnx_pb.h>

#include <cmath>
#include <limits>
#include <set>
#include <utility>

#include "motley/base/file.h"
#include "motley/graph/onnx.h"

namespace motley::graph {
namespace {

using base::Status;

constexpr std::int64_t kOpset = 13;
constexpr std::int64_t kIrVersion = 7;  // the one that came with opset 13
constexpr const char* kOutput = "logits";

using Ints = std::vector<std::int64_t>;

void SetInt(onnx::NodeProto& node, const char* name, std::int64_t value) {
  auto* const attribute = node.add_attribute();
  attribute->set_name(name);
  attribute->set_type(onnx::AttributeProto::INT);
  attribute->set_i(value);
}

void SetInts(onnx::NodeProto& node, const char* name, const Ints& values) {
  auto* const attribute = node.add_attribute();
  attribute->set_name(name);
  attribute->set_type(onnx::AttributeProto::INTS);
  for (const std::int64_t value : values) attribute->add_ints(value);
}

void SetFloat(onnx::NodeProto& node, const char* name, float value) {
  auto* const attribute = node.add_attribute();
  attribute->set_name(name);
  attribute->set_type(onnx::AttributeProto::FLOAT);
  attribute->set_f(value);
}

void SetShape(onnx::ValueInfoProto& info, const char* name, const Shape& sample) {
  info.set_name(name);
  auto* const type = info.mutable_type()->mutable_tensor_type();
  type->set_elem_type(onnx::TensorProto::FLOAT);
  type->mutable_shape()->add_dim()->set_dim_param("batch");
  for (const std::int64_t extent : sample) type->mutable_shape()->add_dim()->set_dim_value(extent);
}

// How far the last window reaches beyond the padded image when the size is rounded up.
int Overhang(std::int64_t in, std::int64_t out, int kernel, int stride, int pads) {
  return static_cast<int>(std::max<std::int64_t>(0, (out - 1) * stride + kernel - in - pads));
}

// Writes one graph, node by node.
class GraphWriter {
 public:
  GraphWriter(const Model& model, onnx::GraphProto& out) : model_(model), out_(out) {}

  void Write();

 private:
  void WriteNode(NodeId id);
  void WriteConv(NodeId id);
  void WriteBatchNorm(NodeId id);
  void WritePool(NodeId id);
  void WriteFullyConnected(NodeId id);
  void WriteSlice(NodeId id);
  void WriteShuffle(NodeId id);
  void WritePad(NodeId id);
  void WriteLrn(NodeId id);
  void WriteRelu6(NodeId id);
  void WriteLogits();

  const Graph& graph() const { return model_.graph; }
  const Node& node(NodeId id) const { return graph().node(id); }
  const Shape& in_shape(NodeId id) const { return node(node(id).inputs[0]).shape; }

  // A name that nothing in the file has yet.
  std::string Unique(std::string name) {
    while (!names_.insert(name).second) name += "_";
    return name;
  }
  // An ONNX node that computes `id` from the values of its inputs.
  onnx::NodeProto& Begin(NodeId id, const char* op);
  void AddParameters(NodeId id, onnx::NodeProto& out);
  void AddTensor(const Tensor& tensor, const std::vector<float>& values);
  std::string AddInts(const std::string& name, const Ints& values);
  std::string AddScalar(const std::string& name, float value);

  const Model& model_;
  onnx::GraphProto& out_;
  std::vector<std::string> values_;  // by node: the name of its output
  std::set<std::string> names_;
};

onnx::NodeProto& GraphWriter::Begin(NodeId id, const char* op) {
  auto* const out = out_.add_node();
  out->set_name(node(id).name);
  out->set_op_type(op);
  for (const NodeId input : node(id).inputs) {
    out->add_input(values_[static_cast<std::size_t>(input)]);
  }
  out->add_output(values_[static_cast<std::size_t>(id)]);
  return *out;
}

void GraphWriter::AddTensor(const Tensor& tensor, const std::vector<float>& values) {
  auto* const out = out_.add_initializer();
  out->set_name(tensor.name);
  out->set_data_type(onnx::TensorProto::FLOAT);
  for (const std::int64_t extent : tensor.shape) out->add_dims(extent);
  out->set_raw_data(values.data() + tensor.offset,
                    static_cast<std::size_t>(tensor.size) * sizeof(float));
}

void GraphWriter::AddParameters(NodeId id, onnx::NodeProto& out) {
  for (const int index : graph().parameters_of(id)) {
    out.add_input(graph().parameters()[static_cast<std::size_t>(index)].name);
  }
  for (const int index : graph().buffers_of(id)) {
    out.add_input(graph().buffers()[static_cast<std::size_t>(index)].name);
  }
}

std::string GraphWriter::AddInts(const std::string& name, const Ints& values) {
  auto* const out = out_.add_initializer();
  out->set_name(Unique(name));
  out->set_data_type(onnx::TensorProto::INT64);
  out->add_dims(static_cast<std::int64_t>(values.size()));
  for (const std::int64_t value : values) out->add_int64_data(value);
  return out->name();
}

std::string GraphWriter::AddScalar(const std::string& name, float value) {
  auto* const out = out_.add_initializer();
  out->set_name(Unique(name));
  out->set_data_type(onnx::TensorProto::FLOAT);
  out->add_float_data(value);
  return out->name();
}

void GraphWriter::WriteConv(NodeId id) {
  const ConvAttrs& a = node(id).conv();
  onnx::NodeProto& out = Begin(id, "Conv");
  AddParameters(id, out);
  SetInts(out, "dilations", {a.dilation_h, a.dilation_w});
  SetInt(out, "group", a.groups);
  SetInts(out, "kernel_shape", {a.kernel_h, a.kernel_w});
  SetInts(out, "pads", {a.pad.top, a.pad.left, a.pad.bottom, a.pad.right});
  SetInts(out, "strides", {a.stride_h, a.stride_w});
}

void GraphWriter::WriteBatchNorm(NodeId id) {
  onnx::NodeProto& out = Begin(id, "BatchNormalization");
  AddParameters(id, out);
  SetFloat(out, "epsilon", node(id).batch_norm().epsilon);
  SetFloat(out, "momentum", static_cast<float>(1.0 - double{node(id).batch_norm().momentum}));
}

// Readers disagree about windows that rounding up lets reach beyond the image. Where padding says
// the same, it is written instead: maxima ignore it, and means may leave it out of the divisor.
void GraphWriter::WritePool(NodeId id) {
  const PoolAttrs& a = node(id).pool();
  const bool average = node(id).op == Op::kAvgPool;
  const Shape& in = in_shape(id);
  const Shape& shape = node(id).shape;
  const int down = Overhang(in[1], shape[1], a.kernel_h, a.stride_h, a.pad.top + a.pad.bottom);
  const int right = Overhang(in[2], shape[2], a.kernel_w, a.stride_w, a.pad.left + a.pad.right);
  const bool hangs_over = a.ceil_mode && (down > 0 || right > 0);
  const bool as_padding = hangs_over && (!average || !a.count_include_pad || a.pad == Padding{});
  Padding pad = a.pad;
  if (as_padding) {
    pad.bottom += down;
    pad.right += right;
  }
  onnx::NodeProto& out = Begin(id, average ? "AveragePool" : "MaxPool");
  SetInt(out, "ceil_mode", hangs_over && !as_padding ? 1 : 0);
  if (average) SetInt(out, "count_include_pad", a.count_include_pad && !as_padding ? 1 : 0);
  SetInts(out, "kernel_shape", {a.kernel_h, a.kernel_w});
  SetInts(out, "pads", {pad.top, pad.left, pad.bottom, pad.right});
  SetInts(out, "strides", {a.stride_h, a.stride_w});
}

void GraphWriter::WriteFullyConnected(NodeId id) {
  onnx::NodeProto& out = Begin(id, "Gemm");
  AddParameters(id, out);
  SetInt(out, "transB", 1);
}

void GraphWriter::WriteSlice(NodeId id) {
  const SliceAttrs& a = node(id).slice();
  onnx::NodeProto& out = Begin(id, "Slice");
  out.add_input(AddInts(node(id).name + ".starts", {a.begin}));
  out.add_input(AddInts(node(id).name + ".ends", {a.end}));
  out.add_input(AddInts(node(id).name + ".axes", {1}));
}

// [g, c/g] channels, swapped to [c/g, g]. A 0 in a shape keeps the batch.
void GraphWriter::WriteShuffle(NodeId id) {
  const Node& shuffle = node(id);
  const std::int64_t groups = shuffle.shuffle().groups;
  const Shape& s = shuffle.shape;
  const std::string split = Unique(shuffle.name + ".split");
  const std::string swapped = Unique(shuffle.name + ".swapped");
  onnx::NodeProto& first = Begin(id, "Reshape");
  first.set_name(split);
  first.add_input(AddInts(shuffle.name + ".split.shape", {0, groups, s[0] / groups, s[1], s[2]}));
  first.set_output(0, split);
  onnx::NodeProto& second = Begin(id, "Transpose");
  second.set_name(swapped);
  second.set_input(0, split);
  second.set_output(0, swapped);
  SetInts(second, "perm", {0, 2, 1, 3, 4});
  onnx::NodeProto& third = Begin(id, "Reshape");
  third.set_input(0, swapped);
  third.add_input(AddInts(shuffle.name + ".shape", {0, s[0], s[1], s[2]}));
}

void GraphWriter::WritePad(NodeId id) {
  const Padding& pad = node(id).pad().pad;
  onnx::NodeProto& out = Begin(id, "Pad");
  out.add_input(
      AddInts(node(id).name + ".pads", {0, 0, pad.top, pad.left, 0, 0, pad.bottom, pad.right}));
}

void GraphWriter::WriteLrn(NodeId id) {
  const LrnAttrs& a = node(id).lrn();
  onnx::NodeProto& out = Begin(id, "LRN");
  SetFloat(out, "alpha", a.alpha);
  SetFloat(out, "beta", a.beta);
  SetFloat(out, "bias", a.k);
  SetInt(out, "size", a.size);
}

void GraphWriter::WriteRelu6(NodeId id) {
  onnx::NodeProto& out = Begin(id, "Clip");
  out.add_input(AddScalar(node(id).name + ".min", 0.0F));
  out.add_input(AddScalar(node(id).name + ".max", 6.0F));
}

void GraphWriter::WriteNode(NodeId id) {
  switch (node(id).op) {
    case Op::kInput:
    case Op::kSoftmaxCrossEntropy:
    case Op::kBoundary:
      return;
    case Op::kDropout:  // the identity at inference
      values_[static_cast<std::size_t>(id)] = values_[static_cast<std::size_t>(node(id).inputs[0])];
      return;
    case Op::kConv:
      return WriteConv(id);
    case Op::kBatchNorm:
      return WriteBatchNorm(id);
    case Op::kRelu:
      Begin(id, "Relu");
      return;
    case Op::kRelu6:
      return WriteRelu6(id);
    case Op::kMaxPool:
    case Op::kAvgPool:
      return WritePool(id);
    case Op::kGlobalAvgPool:
      Begin(id, "GlobalAveragePool");
      return;
    case Op::kFullyConnected:
      return WriteFullyConnected(id);
    case Op::kAdd:
      Begin(id, "Add");
      return;
    case Op::kConcat:
      return SetInt(Begin(id, "Concat"), "axis", 1);
    case Op::kSlice:
      return WriteSlice(id);
    case Op::kChannelShuffle:
      return WriteShuffle(id);
    case Op::kPad:
      return WritePad(id);
    case Op::kFlatten:
      return SetInt(Begin(id, "Flatten"), "axis", 1);
    case Op::kLrn:
      return WriteLrn(id);
  }
}

// The output gets its name, and the shape [batch, classes], from a node of its own where the last
// layer does not give them.
void GraphWriter::WriteLogits() {
  const std::string& last = values_[static_cast<std::size_t>(graph().logits())];
  if (last == kOutput) return;
  auto* const out = out_.add_node();
  out->set_name(Unique(std::string(kOutput) + ".flatten"));
  out->set_op_type("Flatten");
  out->add_input(last);
  out->add_output(kOutput);
  SetInt(*out, "axis", 1);
}

void GraphWriter::Write() {
  out_.set_name(graph().name());
  SetShape(*out_.add_input(), "input", graph().input_shape());
  SetShape(*out_.add_output(), kOutput, {graph().num_classes()});
  for (const Tensor& tensor : graph().parameters()) AddTensor(tensor, model_.weights);
  for (const Tensor& tensor : graph().buffers()) AddTensor(tensor, model_.buffers);
  names_ = {"input", kOutput};
  for (const Tensor& tensor : graph().parameters()) names_.insert(tensor.name);
  for (const Tensor& tensor : graph().buffers()) names_.insert(tensor.name);
  for (NodeId id = 0; id < graph().size(); ++id) {
    const bool gives_logits =
        id == graph().logits() && node(id).shape.size() == 1 && node(id).op != Op::kDropout;
    values_.push_back(id == 0 ? "input" : gives_logits ? kOutput : Unique(node(id).name));
    WriteNode(id);
  }
  WriteLogits();
}

}  // namespace

Status WriteOnnx(const std::filesystem::path& file, const Model& model) {
  onnx::ModelProto proto;
  proto.set_ir_version(kIrVersion);
  proto.set_producer_name("motley");
  proto.add_opset_import()->set_version(kOpset);
  GraphWriter(model, *proto.mutable_graph()).Write();
  if (proto.ByteSizeLong() > static_cast<std::size_t>(std::numeric_limits<int>::max())) {
    return base::InvalidInput("{}: more than 2 GB do not fit into an ONNX file", file.string())
        .WithFix("write the weights as safetensors");
  }
  std::string bytes;
  if (!proto.SerializeToString(&bytes)) {
    return base::Internal("{}: the network could not be serialised", file.string());
  }
  return base::ReplaceFile(file, bytes);
}

}  // namespace motley::graph
