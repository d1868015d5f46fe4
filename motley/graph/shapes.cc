#include "motley/graph/shapes.h"

#include <limits>

namespace motley::graph {
namespace {

using base::InvalidInput;
using base::Result;
using base::Status;

// No sample and no weight of a real network comes near this; sizes below it cannot overflow.
constexpr std::int64_t kMaxElements = std::int64_t{1} << 40;

// One direction of a window.
struct WindowAxis {
  int kernel, stride, dilation, pad_before, pad_after;
};

Status CheckWindow(const WindowAxis& w, const char* direction) {
  constexpr int kMax = 1 << 20;
  if (w.kernel < 1 || w.stride < 1 || w.dilation < 1 || w.pad_before < 0 || w.pad_after < 0) {
    return InvalidInput("{}: kernel {}, stride {}, dilation {}, padding {}/{} is not possible",
                        direction, w.kernel, w.stride, w.dilation, w.pad_before, w.pad_after);
  }
  if (w.kernel > kMax || w.stride > kMax || w.dilation > kMax || w.pad_before > kMax ||
      w.pad_after > kMax) {
    return InvalidInput("{}: a window attribute is larger than {}", direction, kMax);
  }
  return {};
}

Result<std::int64_t> SlidingSize(std::int64_t size, const WindowAxis& w, bool ceil_mode,
                                 const char* direction) {
  MOTLEY_RETURN_IF_ERROR(CheckWindow(w, direction));
  const std::int64_t reach = std::int64_t{w.dilation} * (w.kernel - 1) + 1;
  const std::int64_t room = size + w.pad_before + w.pad_after - reach;
  if (room < 0) {
    return InvalidInput("{}: a window of {} does not fit into {} + padding {}", direction, reach,
                        size, w.pad_before + w.pad_after);
  }
  std::int64_t out = room / w.stride + 1;
  if (ceil_mode && room % w.stride != 0 && out * w.stride < size + w.pad_before) ++out;
  return out;
}

Status NeedImage(const Shape& shape) {
  if (shape.size() == 3) return {};
  return InvalidInput("needs an image [channels, height, width], got {}", ToString(shape));
}

Result<Shape> InferConv(const ConvAttrs& a, const Shape& in) {
  MOTLEY_RETURN_IF_ERROR(NeedImage(in));
  if (a.groups < 1 || a.out_channels < 1 || in[0] % a.groups != 0 ||
      a.out_channels % a.groups != 0) {
    return InvalidInput("{} input and {} output channels cannot form {} groups", in[0],
                        a.out_channels, a.groups);
  }
  MOTLEY_ASSIGN_OR_RETURN(
      const std::int64_t h,
      SlidingSize(in[1], {a.kernel_h, a.stride_h, a.dilation_h, a.pad.top, a.pad.bottom}, false,
                  "height"));
  MOTLEY_ASSIGN_OR_RETURN(
      const std::int64_t w,
      SlidingSize(in[2], {a.kernel_w, a.stride_w, a.dilation_w, a.pad.left, a.pad.right}, false,
                  "width"));
  return Shape{a.out_channels, h, w};
}

Result<Shape> InferPool(const PoolAttrs& a, const Shape& in) {
  MOTLEY_RETURN_IF_ERROR(NeedImage(in));
  if (a.pad.top >= a.kernel_h || a.pad.bottom >= a.kernel_h || a.pad.left >= a.kernel_w ||
      a.pad.right >= a.kernel_w) {
    return InvalidInput("the padding must be smaller than the {}x{} window", a.kernel_h,
                        a.kernel_w);
  }
  MOTLEY_ASSIGN_OR_RETURN(const std::int64_t h,
                          SlidingSize(in[1], {a.kernel_h, a.stride_h, 1, a.pad.top, a.pad.bottom},
                                      a.ceil_mode, "height"));
  MOTLEY_ASSIGN_OR_RETURN(const std::int64_t w,
                          SlidingSize(in[2], {a.kernel_w, a.stride_w, 1, a.pad.left, a.pad.right},
                                      a.ceil_mode, "width"));
  return Shape{in[0], h, w};
}

Result<Shape> InferConcat(std::span<const Shape> inputs) {
  Shape out = inputs.front();
  for (const Shape& in : inputs.subspan(1)) {
    if (in.size() != out.size() || !std::equal(in.begin() + 1, in.end(), out.begin() + 1)) {
      return InvalidInput("cannot concatenate {} and {} along the channels", ToString(out),
                          ToString(in));
    }
    out[0] += in[0];
  }
  return out;
}

Result<Shape> InferPad(const Padding& pad, const Shape& in) {
  MOTLEY_RETURN_IF_ERROR(NeedImage(in));
  constexpr std::int64_t kMax = 1 << 20;
  for (const std::int64_t side : {pad.top, pad.left, pad.bottom, pad.right}) {
    if (side < -kMax || side > kMax) return InvalidInput("padding {} is not possible", side);
  }
  const Shape out{in[0], in[1] + pad.top + pad.bottom, in[2] + pad.left + pad.right};
  if (out[1] < 1 || out[2] < 1) return InvalidInput("nothing of {} is left", ToString(in));
  return out;
}

Status CheckInputCount(Op op, std::size_t count) {
  const bool fits = op == Op::kInput    ? count == 0
                    : op == Op::kAdd    ? count == 2
                    : op == Op::kConcat ? count >= 1
                                        : count == 1;
  if (fits) return {};
  return InvalidInput("{} cannot have {} inputs", OpName(op), count);
}

template <typename T>
Result<const T*> Get(const Attrs& attrs) {
  const T* const value = std::get_if<T>(&attrs);
  if (value == nullptr) return InvalidInput("the attributes are of another operator");
  return value;
}

Result<Shape> Infer(Op op, const Attrs& attrs, std::span<const Shape> inputs) {
  const Shape& in = inputs.front();
  switch (op) {
    case Op::kInput:
      break;
    case Op::kConv: {
      MOTLEY_ASSIGN_OR_RETURN(const ConvAttrs* a, Get<ConvAttrs>(attrs));
      return InferConv(*a, in);
    }
    case Op::kMaxPool:
    case Op::kAvgPool: {
      MOTLEY_ASSIGN_OR_RETURN(const PoolAttrs* a, Get<PoolAttrs>(attrs));
      return InferPool(*a, in);
    }
    case Op::kGlobalAvgPool:
      MOTLEY_RETURN_IF_ERROR(NeedImage(in));
      return Shape{in[0], 1, 1};
    case Op::kBatchNorm: {
      MOTLEY_ASSIGN_OR_RETURN(const BatchNormAttrs* a, Get<BatchNormAttrs>(attrs));
      if (!(a->epsilon > 0.0F) || !(a->momentum >= 0.0F && a->momentum <= 1.0F)) {
        return InvalidInput("epsilon {} and momentum {} are not possible", a->epsilon, a->momentum);
      }
      MOTLEY_RETURN_IF_ERROR(NeedImage(in));
      return in;
    }
    case Op::kLrn: {
      MOTLEY_ASSIGN_OR_RETURN(const LrnAttrs* a, Get<LrnAttrs>(attrs));
      if (a->size < 1 || a->size % 2 == 0 || a->size > 1001) {
        return InvalidInput("a neighbourhood of {} channels must be odd and at most 1001", a->size);
      }
      MOTLEY_RETURN_IF_ERROR(NeedImage(in));
      return in;
    }
    case Op::kDropout: {
      MOTLEY_ASSIGN_OR_RETURN(const DropoutAttrs* a, Get<DropoutAttrs>(attrs));
      if (!(a->probability >= 0.0F && a->probability < 1.0F)) {
        return InvalidInput("probability {} is not in [0, 1)", a->probability);
      }
      return in;
    }
    case Op::kRelu:
    case Op::kRelu6:
      return in;
    case Op::kFullyConnected: {
      MOTLEY_ASSIGN_OR_RETURN(const FullyConnectedAttrs* a, Get<FullyConnectedAttrs>(attrs));
      if (in.size() != 1) return InvalidInput("needs a flat input, got {}", ToString(in));
      if (a->out_features < 1) return InvalidInput("{} outputs are not possible", a->out_features);
      return Shape{a->out_features};
    }
    case Op::kAdd:
      if (inputs[0] != inputs[1]) {
        return InvalidInput("cannot add {} and {}", ToString(inputs[0]), ToString(inputs[1]));
      }
      return in;
    case Op::kConcat:
      return InferConcat(inputs);
    case Op::kSlice: {
      MOTLEY_ASSIGN_OR_RETURN(const SliceAttrs* a, Get<SliceAttrs>(attrs));
      if (a->begin < 0 || a->end <= a->begin || a->end > in[0]) {
        return InvalidInput("channels [{}, {}) are not in {}", a->begin, a->end, ToString(in));
      }
      Shape out = in;
      out[0] = a->end - a->begin;
      return out;
    }
    case Op::kChannelShuffle: {
      MOTLEY_ASSIGN_OR_RETURN(const ShuffleAttrs* a, Get<ShuffleAttrs>(attrs));
      MOTLEY_RETURN_IF_ERROR(NeedImage(in));
      if (a->groups < 1 || in[0] % a->groups != 0) {
        return InvalidInput("{} channels cannot form {} groups", in[0], a->groups);
      }
      return in;
    }
    case Op::kPad: {
      MOTLEY_ASSIGN_OR_RETURN(const PadAttrs* a, Get<PadAttrs>(attrs));
      return InferPad(a->pad, in);
    }
    case Op::kFlatten:
      return Shape{Count(in)};
    case Op::kSoftmaxCrossEntropy:
      if (Count(in) != in[0] || in[0] < 2) {
        return InvalidInput("needs one number for each of at least two classes, got {}",
                            ToString(in));
      }
      return Shape{1};
    case Op::kBoundary:
      return in;
  }
  return InvalidInput("{} cannot be added", OpName(op));
}

}  // namespace

Result<Shape> InferShape(Op op, const Attrs& attrs, std::span<const Shape> inputs) {
  MOTLEY_RETURN_IF_ERROR(CheckInputCount(op, inputs.size()));
  MOTLEY_ASSIGN_OR_RETURN(Shape out, Infer(op, attrs, inputs));
  std::int64_t count = 1;
  for (const std::int64_t dim : out) {
    if (dim < 1 || dim > kMaxElements / count) {
      return InvalidInput("the output {} is too large", ToString(out));
    }
    count *= dim;
  }
  return out;
}

}  // namespace motley::graph
