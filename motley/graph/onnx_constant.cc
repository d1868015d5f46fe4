#include "motley/graph/onnx_constant.h"

#include <onnx/onnx_pb.h>

#include <cstring>
#include <optional>
#include <string>
#include <utility>

namespace motley::graph {
namespace {

using base::InvalidInput;
using base::Result;
using base::Status;

// The elements of a tensor with these extents; nothing when one is negative or the product
// overflows.
std::optional<std::int64_t> ElementsOf(const Shape& dims) {
  std::int64_t count = 1;
  for (const std::int64_t extent : dims) {
    if (extent < 0 || __builtin_mul_overflow(count, extent, &count)) return std::nullopt;
  }
  return count;
}

Status WrongSize(std::int64_t wanted, std::size_t bytes) {
  return InvalidInput("{} elements are announced, but {} bytes of data follow", wanted, bytes);
}

// Little-endian elements of type T, converted by `convert`.
template <typename T, typename Out, typename Convert>
Status DecodeRaw(const std::string& raw, std::int64_t count, std::vector<Out>& out,
                 Convert convert) {
  if (raw.size() % sizeof(T) != 0 || raw.size() / sizeof(T) != static_cast<std::size_t>(count)) {
    return WrongSize(count, raw.size());
  }
  out.reserve(static_cast<std::size_t>(count));
  for (std::size_t at = 0; at < raw.size(); at += sizeof(T)) {
    T element;
    std::memcpy(&element, raw.data() + at, sizeof(T));
    out.push_back(convert(element));
  }
  return {};
}

// Elements kept in one of protobuf's own lists.
template <typename List, typename Out, typename Convert>
Status DecodeList(const List& list, std::int64_t count, std::vector<Out>& out, Convert convert) {
  if (list.size() != count) {
    return InvalidInput("{} elements are announced, but {} are listed", count, list.size());
  }
  out.reserve(static_cast<std::size_t>(count));
  for (const auto& element : list) out.push_back(convert(element));
  return {};
}

Status DecodeFloats(const onnx::TensorProto& tensor, std::int64_t count, std::vector<float>& out) {
  const auto convert = [](auto element) { return static_cast<float>(element); };
  if (tensor.data_type() == onnx::TensorProto::DOUBLE) {
    return tensor.has_raw_data() ? DecodeRaw<double>(tensor.raw_data(), count, out, convert)
                                 : DecodeList(tensor.double_data(), count, out, convert);
  }
  return tensor.has_raw_data() ? DecodeRaw<float>(tensor.raw_data(), count, out, convert)
                               : DecodeList(tensor.float_data(), count, out, convert);
}

Status DecodeInts(const onnx::TensorProto& tensor, std::int64_t count, std::vector<OnnxInt>& out) {
  if (count > kMaxOnnxInts) return InvalidInput("{} integers are too many", count);
  const auto convert = [](auto element) {
    return OnnxInt{.value = static_cast<std::int64_t>(element)};
  };
  if (tensor.data_type() == onnx::TensorProto::INT64) {
    return tensor.has_raw_data() ? DecodeRaw<std::int64_t>(tensor.raw_data(), count, out, convert)
                                 : DecodeList(tensor.int64_data(), count, out, convert);
  }
  if (!tensor.has_raw_data()) return DecodeList(tensor.int32_data(), count, out, convert);
  if (tensor.data_type() == onnx::TensorProto::BOOL) {
    return DecodeRaw<std::int8_t>(tensor.raw_data(), count, out, convert);
  }
  return DecodeRaw<std::int32_t>(tensor.raw_data(), count, out, convert);
}

OnnxConstantPtr MakeFloats(Shape dims, std::vector<float> values) {
  return std::make_shared<const OnnxConstant>(OnnxConstant{
      .dims = std::move(dims), .is_float = true, .floats = std::move(values), .ints = {}});
}

}  // namespace

OnnxConstantPtr MakeInts(Shape dims, std::vector<OnnxInt> values) {
  return std::make_shared<const OnnxConstant>(OnnxConstant{
      .dims = std::move(dims), .is_float = false, .floats = {}, .ints = std::move(values)});
}

Result<OnnxConstantPtr> DecodeTensor(const onnx::TensorProto& tensor) {
  if (tensor.data_location() == onnx::TensorProto::EXTERNAL || tensor.external_data_size() > 0) {
    return Status(InvalidInput("the data lies in another file"))
        .WithFix("save the model with its data inside");
  }
  OnnxConstant constant;
  constant.dims.assign(tensor.dims().begin(), tensor.dims().end());
  const auto count = ElementsOf(constant.dims);
  if (!count) return InvalidInput("the shape {} is not possible", ToString(constant.dims));
  switch (tensor.data_type()) {
    case onnx::TensorProto::FLOAT:
    case onnx::TensorProto::DOUBLE:
      constant.is_float = true;
      MOTLEY_RETURN_IF_ERROR(DecodeFloats(tensor, *count, constant.floats));
      break;
    case onnx::TensorProto::INT64:
    case onnx::TensorProto::INT32:
    case onnx::TensorProto::BOOL:
      MOTLEY_RETURN_IF_ERROR(DecodeInts(tensor, *count, constant.ints));
      break;
    default:
      return InvalidInput("elements of ONNX type {} are not supported", tensor.data_type());
  }
  return std::make_shared<const OnnxConstant>(std::move(constant));
}

Result<OnnxConstantPtr> DecodeConstantNode(const OnnxNode& node) {
  if (const auto* const value = node.Find("value"); value != nullptr) {
    if (value->type() != onnx::AttributeProto::TENSOR) {
      return InvalidInput("attribute 'value' is not a tensor");
    }
    return DecodeTensor(value->t());
  }
  if (node.Find("value_int") != nullptr) {
    MOTLEY_ASSIGN_OR_RETURN(const std::int64_t value, node.Int("value_int", 0));
    return MakeInts({}, {{.value = value}});
  }
  if (node.Find("value_ints") != nullptr) {
    MOTLEY_ASSIGN_OR_RETURN(const auto values, node.Ints("value_ints", {}));
    if (static_cast<std::int64_t>(values.size()) > kMaxOnnxInts) {
      return InvalidInput("{} integers are too many", values.size());
    }
    std::vector<OnnxInt> ints;
    for (const std::int64_t value : values) ints.push_back({.value = value});
    return MakeInts({static_cast<std::int64_t>(ints.size())}, std::move(ints));
  }
  if (node.Find("value_float") != nullptr) {
    MOTLEY_ASSIGN_OR_RETURN(const float value, node.Float("value_float", 0.0F));
    return MakeFloats({}, {value});
  }
  if (const auto* const value = node.Find("value_floats"); value != nullptr) {
    std::vector<float> floats(value->floats().begin(), value->floats().end());
    const auto size = static_cast<std::int64_t>(floats.size());
    return MakeFloats({size}, std::move(floats));
  }
  return InvalidInput("it has no value that is supported");
}

Result<std::vector<std::int64_t>> PlainInts(const OnnxConstant& constant) {
  if (constant.is_float || constant.dims.size() > 1) {
    return InvalidInput("a list of integers was expected");
  }
  std::vector<std::int64_t> values;
  for (const OnnxInt& element : constant.ints) {
    if (element.batch) return InvalidInput("a number that depends on the batch is not possible");
    values.push_back(element.value);
  }
  return values;
}

Result<float> PlainFloat(const OnnxConstant& constant) {
  if (!constant.is_float || constant.size() != 1) return InvalidInput("one number was expected");
  return constant.floats[0];
}

}  // namespace motley::graph
