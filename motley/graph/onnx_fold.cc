#include "motley/graph/onnx_fold.h"

#include <onnx/onnx_pb.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <utility>

namespace motley::graph {
namespace {

using base::InvalidInput;
using base::Result;
using base::Status;

using Inputs = std::vector<OnnxConstantPtr>;
using Ints = std::vector<std::int64_t>;

Status NeedInputs(const Inputs& inputs, std::size_t count) {
  if (inputs.size() < count) return InvalidInput("an input is missing");
  for (std::size_t i = 0; i < count; ++i) {
    if (inputs[i] == nullptr) return InvalidInput("input {} is missing", i);
  }
  return {};
}

OnnxConstantPtr WithDims(const OnnxConstant& constant, Shape dims) {
  OnnxConstant copy = constant;
  copy.dims = std::move(dims);
  return std::make_shared<const OnnxConstant>(std::move(copy));
}

// The axes of an operator: an attribute in older files, an input in newer ones.
Result<Ints> AxesOf(const OnnxNode& node, const Inputs& inputs) {
  if (inputs.size() > 1 && inputs[1] != nullptr) return PlainInts(*inputs[1]);
  return node.Ints("axes", {});
}

Status Overflow() { return InvalidInput("the shape arithmetic overflows"); }
Status BatchArithmetic() {
  return InvalidInput("this arithmetic on the size of the batch cannot be folded");
}

Result<OnnxInt> AddInts(OnnxInt a, OnnxInt b) {
  if (a.batch != b.batch && a.value != 0 && b.value != 0) return BatchArithmetic();
  OnnxInt sum{.batch = a.value != 0 ? a.batch : b.batch};
  if (__builtin_add_overflow(a.value, b.value, &sum.value)) return Overflow();
  return sum;
}

Result<OnnxInt> MultiplyInts(OnnxInt a, OnnxInt b) {
  if (a.batch && b.batch) return BatchArithmetic();
  OnnxInt product{.batch = a.batch || b.batch};
  if (__builtin_mul_overflow(a.value, b.value, &product.value)) return Overflow();
  return product;
}

Result<OnnxInt> DivideInts(OnnxInt a, OnnxInt b) {
  if (b.value == 0) return InvalidInput("a division by zero");
  if (a.value == std::numeric_limits<std::int64_t>::min() && b.value == -1) return Overflow();
  const bool exact = a.value % b.value == 0;
  if ((a.batch && !exact) || (b.batch && !(a.batch && exact))) return BatchArithmetic();
  return OnnxInt{.value = a.value / b.value, .batch = a.batch && !b.batch};
}

Result<OnnxInt> CombineInts(std::string_view op, OnnxInt a, OnnxInt b) {
  if (op == "Add") return AddInts(a, b);
  if (op == "Mul") return MultiplyInts(a, b);
  if (op == "Div") return DivideInts(a, b);
  if (__builtin_sub_overflow(std::int64_t{0}, b.value, &b.value)) return Overflow();
  return AddInts(a, b);
}

float CombineFloats(std::string_view op, float a, float b) {
  if (op == "Add") return a + b;
  if (op == "Mul") return a * b;
  if (op == "Div") return a / b;
  return a - b;
}

// Add, Sub, Mul, Div of equal shapes, or with one side a single element.
Result<OnnxConstantPtr> FoldArithmetic(const OnnxNode& node, const Inputs& inputs) {
  MOTLEY_RETURN_IF_ERROR(NeedInputs(inputs, 2));
  const OnnxConstant& a = *inputs[0];
  const OnnxConstant& b = *inputs[1];
  if (a.is_float != b.is_float || (a.dims != b.dims && a.size() != 1 && b.size() != 1)) {
    return InvalidInput("the operands {} and {} do not fit", ToString(a.dims), ToString(b.dims));
  }
  const bool like_a = a.size() != 1 || (b.size() == 1 && a.dims.size() >= b.dims.size());
  OnnxConstant out{
      .dims = like_a ? a.dims : b.dims, .is_float = a.is_float, .floats = {}, .ints = {}};
  const std::int64_t count = like_a ? a.size() : b.size();
  for (std::int64_t i = 0; i < count; ++i) {
    const auto at_a = static_cast<std::size_t>(a.size() == 1 ? 0 : i);
    const auto at_b = static_cast<std::size_t>(b.size() == 1 ? 0 : i);
    if (a.is_float) {
      out.floats.push_back(CombineFloats(node.op(), a.floats[at_a], b.floats[at_b]));
      continue;
    }
    MOTLEY_ASSIGN_OR_RETURN(const OnnxInt element,
                            CombineInts(node.op(), a.ints[at_a], b.ints[at_b]));
    out.ints.push_back(element);
  }
  return std::make_shared<const OnnxConstant>(std::move(out));
}

Result<OnnxConstantPtr> FoldGather(const OnnxNode& node, const Inputs& inputs) {
  MOTLEY_RETURN_IF_ERROR(NeedInputs(inputs, 2));
  const OnnxConstant& data = *inputs[0];
  MOTLEY_ASSIGN_OR_RETURN(const std::int64_t axis, node.Int("axis", 0));
  if (data.is_float || data.dims.size() != 1 || (axis != 0 && axis != -1)) {
    return InvalidInput("only elements of a list of integers can be gathered");
  }
  MOTLEY_ASSIGN_OR_RETURN(const Ints indices, PlainInts(*inputs[1]));
  std::vector<OnnxInt> picked;
  for (const std::int64_t index : indices) {
    MOTLEY_ASSIGN_OR_RETURN(const std::int64_t at, ResolveAxis(index, data.size()));
    picked.push_back(data.ints[static_cast<std::size_t>(at)]);
  }
  return MakeInts(inputs[1]->dims, std::move(picked));
}

Result<OnnxConstantPtr> FoldUnsqueeze(const OnnxNode& node, const Inputs& inputs) {
  MOTLEY_RETURN_IF_ERROR(NeedInputs(inputs, 1));
  MOTLEY_ASSIGN_OR_RETURN(Ints axes, AxesOf(node, inputs));
  const auto rank = static_cast<std::int64_t>(inputs[0]->dims.size() + axes.size());
  if (rank > 8) return InvalidInput("a rank of {} is not supported", rank);
  for (std::int64_t& axis : axes) {
    MOTLEY_ASSIGN_OR_RETURN(axis, ResolveAxis(axis, rank));
  }
  std::sort(axes.begin(), axes.end());
  if (std::adjacent_find(axes.begin(), axes.end()) != axes.end()) {
    return InvalidInput("an axis is named twice");
  }
  Shape dims = inputs[0]->dims;
  for (const std::int64_t axis : axes) dims.insert(dims.begin() + axis, 1);
  return WithDims(*inputs[0], std::move(dims));
}

Result<OnnxConstantPtr> FoldSqueeze(const OnnxNode& node, const Inputs& inputs) {
  MOTLEY_RETURN_IF_ERROR(NeedInputs(inputs, 1));
  MOTLEY_ASSIGN_OR_RETURN(Ints axes, AxesOf(node, inputs));
  const Shape& in = inputs[0]->dims;
  for (std::int64_t& axis : axes) {
    MOTLEY_ASSIGN_OR_RETURN(axis, ResolveAxis(axis, static_cast<std::int64_t>(in.size())));
  }
  Shape out;
  for (std::size_t i = 0; i < in.size(); ++i) {
    const bool named = axes.empty() || std::find(axes.begin(), axes.end(),
                                                 static_cast<std::int64_t>(i)) != axes.end();
    if (named && in[i] == 1) continue;
    if (named && !axes.empty())
      return InvalidInput("an axis of extent {} cannot be squeezed", in[i]);
    out.push_back(in[i]);
  }
  return WithDims(*inputs[0], std::move(out));
}

Result<OnnxConstantPtr> FoldConcat(const OnnxNode& node, const Inputs& inputs) {
  MOTLEY_RETURN_IF_ERROR(NeedInputs(inputs, std::max<std::size_t>(inputs.size(), 1)));
  MOTLEY_ASSIGN_OR_RETURN(const std::int64_t axis, node.Int("axis", 0));
  std::vector<OnnxInt> all;
  for (const OnnxConstantPtr& input : inputs) {
    if (input->is_float || input->dims.size() != 1 || (axis != 0 && axis != -1)) {
      return InvalidInput("only lists of integers can be concatenated");
    }
    all.insert(all.end(), input->ints.begin(), input->ints.end());
    if (static_cast<std::int64_t>(all.size()) > kMaxOnnxInts) {
      return InvalidInput("more than {} integers", kMaxOnnxInts);
    }
  }
  const auto size = static_cast<std::int64_t>(all.size());
  return MakeInts({size}, std::move(all));
}

Result<OnnxConstantPtr> FoldCast(const OnnxNode& node, const Inputs& inputs) {
  MOTLEY_RETURN_IF_ERROR(NeedInputs(inputs, 1));
  MOTLEY_ASSIGN_OR_RETURN(const std::int64_t to, node.Int("to", 0));
  const OnnxConstant& in = *inputs[0];
  const bool to_float = to == onnx::TensorProto::FLOAT || to == onnx::TensorProto::DOUBLE;
  const bool to_int = to == onnx::TensorProto::INT64 || to == onnx::TensorProto::INT32;
  if (!to_float && !to_int) return InvalidInput("a cast to ONNX type {} is not supported", to);
  if (in.is_float == to_float) return inputs[0];
  OnnxConstant out{.dims = in.dims, .is_float = to_float, .floats = {}, .ints = {}};
  for (const OnnxInt& element : in.ints) {
    if (element.batch) return BatchArithmetic();
    out.floats.push_back(static_cast<float>(element.value));
  }
  if (in.is_float && in.size() > kMaxOnnxInts) return InvalidInput("too many integers");
  for (const float element : in.floats) {
    if (!(std::fabs(element) < 1e15F)) return Overflow();
    out.ints.push_back({.value = static_cast<std::int64_t>(element)});
  }
  return std::make_shared<const OnnxConstant>(std::move(out));
}

Result<OnnxConstantPtr> FoldFloor(const OnnxNode&, const Inputs& inputs) {
  MOTLEY_RETURN_IF_ERROR(NeedInputs(inputs, 1));
  OnnxConstant out = *inputs[0];
  for (float& element : out.floats) element = std::floor(element);
  return std::make_shared<const OnnxConstant>(std::move(out));
}

// A list of plain integers from an input or an attribute; the fallback when there is neither.
Result<Ints> ListOf(const OnnxNode& node, const Inputs& inputs, std::size_t index,
                    const char* attribute, Ints fallback) {
  if (index < inputs.size() && inputs[index] != nullptr) return PlainInts(*inputs[index]);
  return node.Ints(attribute, std::move(fallback));
}

Result<OnnxConstantPtr> FoldSlice(const OnnxNode& node, const Inputs& inputs) {
  MOTLEY_RETURN_IF_ERROR(NeedInputs(inputs, 1));
  const OnnxConstant& data = *inputs[0];
  MOTLEY_ASSIGN_OR_RETURN(const Ints starts, ListOf(node, inputs, 1, "starts", {}));
  MOTLEY_ASSIGN_OR_RETURN(const Ints ends, ListOf(node, inputs, 2, "ends", {}));
  MOTLEY_ASSIGN_OR_RETURN(const Ints axes, ListOf(node, inputs, 3, "axes", {0}));
  MOTLEY_ASSIGN_OR_RETURN(const Ints steps, ListOf(node, inputs, 4, "steps", {1}));
  const bool list = !data.is_float && data.dims.size() == 1;
  if (!list || starts.size() != 1 || ends.size() != 1 || axes.size() != 1 ||
      (axes[0] != 0 && axes[0] != -1) || steps != Ints{1}) {
    return InvalidInput("only a list of integers can be sliced, with step 1");
  }
  const OnnxRange range = ResolveRange(starts[0], ends[0], data.size());
  std::vector<OnnxInt> part(data.ints.begin() + range.begin, data.ints.begin() + range.end);
  return MakeInts({range.end - range.begin}, std::move(part));
}

Result<OnnxConstantPtr> FoldConstantOfShape(const OnnxNode& node, const Inputs& inputs) {
  MOTLEY_RETURN_IF_ERROR(NeedInputs(inputs, 1));
  MOTLEY_ASSIGN_OR_RETURN(const Ints dims, PlainInts(*inputs[0]));
  std::int64_t count = 1;
  for (const std::int64_t extent : dims) {
    if (extent < 0 || extent > kMaxOnnxInts) return InvalidInput("an extent of {}", extent);
    count *= extent;
    if (count > kMaxOnnxInts) return InvalidInput("more than {} elements", kMaxOnnxInts);
  }
  OnnxConstant out{.dims = dims, .is_float = true, .floats = {}, .ints = {}};
  const auto elements = static_cast<std::size_t>(count);
  if (node.Find("value") == nullptr) {
    out.floats.assign(elements, 0.0F);
    return std::make_shared<const OnnxConstant>(std::move(out));
  }
  MOTLEY_ASSIGN_OR_RETURN(const OnnxConstantPtr value, DecodeConstantNode(node));
  if (value->size() != 1) return InvalidInput("attribute 'value' needs one element");
  out.is_float = value->is_float;
  if (out.is_float) {
    out.floats.assign(elements, value->floats[0]);
  } else {
    out.ints.assign(elements, value->ints[0]);
  }
  return std::make_shared<const OnnxConstant>(std::move(out));
}

Result<OnnxConstantPtr> FoldRange(const OnnxNode&, const Inputs& inputs) {
  MOTLEY_RETURN_IF_ERROR(NeedInputs(inputs, 3));
  std::array<std::int64_t, 3> values{};
  for (std::size_t i = 0; i < 3; ++i) {
    MOTLEY_ASSIGN_OR_RETURN(const Ints one, PlainInts(*inputs[i]));
    if (one.size() != 1) return InvalidInput("input {} is not one integer", i);
    values[i] = one[0];
  }
  const auto [start, limit, delta] = values;
  if (delta == 0) return InvalidInput("a step of zero");
  std::vector<OnnxInt> list;
  for (std::int64_t at = start; delta > 0 ? at < limit : at > limit;) {
    if (static_cast<std::int64_t>(list.size()) == kMaxOnnxInts) {
      return InvalidInput("more than {} integers", kMaxOnnxInts);
    }
    list.push_back({.value = at});
    if (__builtin_add_overflow(at, delta, &at)) break;
  }
  const auto size = static_cast<std::int64_t>(list.size());
  return MakeInts({size}, std::move(list));
}

Result<OnnxConstantPtr> FoldReshape(const OnnxNode&, const Inputs& inputs) {
  MOTLEY_RETURN_IF_ERROR(NeedInputs(inputs, 2));
  const OnnxConstant& data = *inputs[0];
  MOTLEY_ASSIGN_OR_RETURN(Ints dims, PlainInts(*inputs[1]));
  if (dims.size() > 8) return InvalidInput("a rank of {} is not supported", dims.size());
  std::int64_t known = 1;
  for (std::size_t i = 0; i < dims.size(); ++i) {
    if (dims[i] == 0 && i < data.dims.size()) dims[i] = data.dims[i];
    if (dims[i] == -1) continue;
    if (dims[i] < 1 || __builtin_mul_overflow(known, dims[i], &known)) {
      return InvalidInput("a shape that is not possible");
    }
  }
  const auto free = std::count(dims.begin(), dims.end(), -1);
  if (free > 1 || data.size() % known != 0 || (free == 0 && data.size() != known)) {
    return InvalidInput("{} elements do not fit the shape", data.size());
  }
  std::replace(dims.begin(), dims.end(), std::int64_t{-1}, data.size() / known);
  return WithDims(data, std::move(dims));
}

// Only what exporters do to the weight of a fully connected layer.
Result<OnnxConstantPtr> FoldTranspose(const OnnxNode& node, const Inputs& inputs) {
  MOTLEY_RETURN_IF_ERROR(NeedInputs(inputs, 1));
  const OnnxConstant& in = *inputs[0];
  MOTLEY_ASSIGN_OR_RETURN(const Ints perm, node.Ints("perm", {1, 0}));
  if (!in.is_float || in.dims.size() != 2 || perm != Ints{1, 0}) {
    return InvalidInput("only matrices can be transposed");
  }
  const auto rows = static_cast<std::size_t>(in.dims[0]);
  const auto columns = static_cast<std::size_t>(in.dims[1]);
  OnnxConstant out{.dims = {in.dims[1], in.dims[0]}, .is_float = true, .floats = {}, .ints = {}};
  out.floats.resize(in.floats.size());
  for (std::size_t r = 0; r < rows; ++r) {
    for (std::size_t c = 0; c < columns; ++c) out.floats[c * rows + r] = in.floats[r * columns + c];
  }
  return std::make_shared<const OnnxConstant>(std::move(out));
}

using Fold = Result<OnnxConstantPtr> (*)(const OnnxNode&, const Inputs&);

struct FoldRule {
  std::string_view op;
  Fold fold;
};

constexpr std::array<FoldRule, 15> kFoldRules = {{{"Add", FoldArithmetic},
                                                  {"Cast", FoldCast},
                                                  {"Concat", FoldConcat},
                                                  {"ConstantOfShape", FoldConstantOfShape},
                                                  {"Div", FoldArithmetic},
                                                  {"Floor", FoldFloor},
                                                  {"Gather", FoldGather},
                                                  {"Mul", FoldArithmetic},
                                                  {"Range", FoldRange},
                                                  {"Reshape", FoldReshape},
                                                  {"Slice", FoldSlice},
                                                  {"Squeeze", FoldSqueeze},
                                                  {"Sub", FoldArithmetic},
                                                  {"Transpose", FoldTranspose},
                                                  {"Unsqueeze", FoldUnsqueeze}}};

}  // namespace

std::span<const std::string_view> FoldableOps() {
  static const auto ops = [] {
    std::array<std::string_view, kFoldRules.size()> names;
    for (std::size_t i = 0; i < kFoldRules.size(); ++i) names[i] = kFoldRules[i].op;
    return names;
  }();
  return ops;
}

bool IsFoldable(std::string_view op) {
  const auto ops = FoldableOps();
  return std::find(ops.begin(), ops.end(), op) != ops.end();
}

Result<OnnxConstantPtr> FoldNode(const OnnxNode& node, const std::vector<OnnxConstantPtr>& inputs) {
  for (const FoldRule& rule : kFoldRules) {
    if (rule.op == node.op()) return rule.fold(node, inputs);
  }
  return InvalidInput("cannot be computed ahead");
}

OnnxRange ResolveRange(std::int64_t start, std::int64_t end, std::int64_t extent) {
  const auto resolve = [&](std::int64_t at) {
    if (at < 0) at += extent;  // cannot overflow: the signs differ
    return std::clamp<std::int64_t>(at, 0, extent);
  };
  const std::int64_t begin = resolve(start);
  return {.begin = begin, .end = std::max(begin, resolve(end))};
}

Result<std::int64_t> ResolveAxis(std::int64_t axis, std::int64_t rank) {
  if (axis < -rank || axis >= rank) return InvalidInput("{} is not within {}", axis, rank);
  return axis < 0 ? axis + rank : axis;
}

}  // namespace motley::graph
