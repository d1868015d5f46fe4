// The operators that move values without computing: flatten, reshape and transpose as a channel
// shuffle, concat, slice, split, pad.
#include <algorithm>
#include <array>
#include <optional>
#include <utility>

#include "motley/graph/onnx_fold.h"
#include "motley/graph/onnx_importer.h"

namespace motley::graph {
namespace {

using base::InvalidInput;
using base::Result;
using base::Status;
using Form = OnnxFeature::Form;
using Ints = std::vector<std::int64_t>;

// A hostile file could name one value millions of times.
constexpr int kMaxOperands = 4096;

std::int64_t RankOf(const OnnxFeature& x) { return static_cast<std::int64_t>(x.view.size()) + 1; }

// A list that is an attribute in older files and input `index` in newer ones.
Result<Ints> ListOf(const OnnxImporter& net, const OnnxNode& node, int index, const char* attribute,
                    Ints fallback) {
  MOTLEY_ASSIGN_OR_RETURN(const OnnxConstantPtr list, net.OptionalConstant(node, index));
  return list == nullptr ? node.Ints(attribute, std::move(fallback)) : PlainInts(*list);
}

Status DefineFlat(OnnxImporter& net, const OnnxNode& node, const OnnxFeature& x) {
  if (x.form != Form::kPlain) return InvalidInput("channels in groups cannot be flattened");
  if (x.view.size() == 1) return net.Define(node.output(0), x);
  return net.DefineFeature(node, net.builder().Flatten(net.LayerName(node), x.node));
}

Status ImportFlatten(OnnxImporter& net, const OnnxNode& node) {
  MOTLEY_ASSIGN_OR_RETURN(const OnnxFeature x, net.Plain(node, 0));
  MOTLEY_ASSIGN_OR_RETURN(const std::int64_t axis, node.Int("axis", 1));
  if (axis != 1 && axis != 1 - RankOf(x)) return InvalidInput("axis {} is not supported", axis);
  return DefineFlat(net, node, x);
}

// Whether the first extent of a Reshape keeps the batch.
bool KeepsBatch(const OnnxImporter& net, const OnnxInt& extent, bool allow_zero) {
  if (extent.batch) return extent.value == 1;
  return extent.value == -1 || (extent.value == 0 && !allow_zero) || extent.value == net.batch();
}

// The shape that a Reshape asks for, without the batch; zeros and -1 resolved.
Result<Shape> TargetOf(const OnnxImporter& net, const OnnxNode& node, const OnnxFeature& x) {
  MOTLEY_ASSIGN_OR_RETURN(const OnnxConstantPtr list, net.Constant(node, 1));
  MOTLEY_ASSIGN_OR_RETURN(const std::int64_t allow_zero, node.Int("allowzero", 0));
  if (list->is_float || list->ints.size() < 2 || list->ints.size() > 8) {
    return InvalidInput("the target is not a shape");
  }
  if (!KeepsBatch(net, list->ints[0], allow_zero != 0)) {
    return InvalidInput("the target does not keep the batch as its first extent");
  }
  Shape target;
  std::int64_t known = 1;
  std::optional<std::size_t> free;
  target.resize(list->ints.size() - 1);
  for (std::size_t i = 0; i < target.size(); ++i) {
    const OnnxInt& extent = list->ints[i + 1];
    if (extent.batch) return InvalidInput("only the first extent may depend on the batch");
    target[i] = extent.value;
    if (extent.value == 0 && allow_zero == 0 && i < x.view.size()) target[i] = x.view[i];
    if (target[i] == -1 && !free) {
      free = i;
    } else if (target[i] < 1 || __builtin_mul_overflow(known, target[i], &known)) {
      return InvalidInput("the target is not a possible shape");
    }
  }
  const std::int64_t count = Count(x.view);
  const bool batch_free = !list->ints[0].batch && list->ints[0].value == -1;
  if ((free && batch_free) || count % known != 0 || (!free && count != known)) {
    return InvalidInput("{} does not fit the target", ToString(x.view));
  }
  if (free) target[*free] = count / known;
  return target;
}

Status ImportReshape(OnnxImporter& net, const OnnxNode& node) {
  MOTLEY_ASSIGN_OR_RETURN(OnnxFeature x, net.Feature(node, 0));
  MOTLEY_ASSIGN_OR_RETURN(const Shape target, TargetOf(net, node, x));
  if (target == x.view) return net.Define(node.output(0), x);
  if (target.size() == 1) return DefineFlat(net, node, x);
  const Shape own = net.builder().shape(x.node);
  if (own.size() == 3 && target == own) {
    if (x.form == Form::kGrouped) return net.DefineFeature(node, x.node);
    const NodeId id =
        net.builder().ChannelShuffle(net.LayerName(node), x.node, {.groups = x.groups});
    return net.DefineFeature(node, id);
  }
  const bool splits = x.form == Form::kPlain && own.size() == 3 && target.size() >= 3 &&
                      target[0] <= own[0] && target[0] * target[1] == own[0];
  if (!splits) {
    return InvalidInput("reshaping {} to {} is not supported", ToString(x.view), ToString(target));
  }
  x.form = Form::kGrouped;
  x.groups = static_cast<int>(target[0]);
  x.view = target;
  return net.Define(node.output(0), x);
}

Status ImportTranspose(OnnxImporter& net, const OnnxNode& node) {
  MOTLEY_ASSIGN_OR_RETURN(OnnxFeature x, net.Feature(node, 0));
  MOTLEY_ASSIGN_OR_RETURN(Ints perm, node.Ints("perm", {}));
  const auto rank = static_cast<std::size_t>(RankOf(x));
  Ints straight(rank);
  for (std::size_t i = 0; i < rank; ++i) straight[i] = static_cast<std::int64_t>(i);
  if (perm == straight) return net.Define(node.output(0), x);
  Ints swapped = straight;
  if (rank >= 3) std::swap(swapped[1], swapped[2]);
  if (x.form != Form::kGrouped || perm != swapped) {
    return InvalidInput("only the swap of a channel shuffle is supported");
  }
  std::swap(x.view[0], x.view[1]);
  x.form = Form::kSwapped;
  return net.Define(node.output(0), x);
}

// Height and width of an image that is one pixel.
Status ImportSqueeze(OnnxImporter& net, const OnnxNode& node) {
  MOTLEY_ASSIGN_OR_RETURN(const OnnxFeature x, net.Plain(node, 0));
  MOTLEY_ASSIGN_OR_RETURN(Ints axes, ListOf(net, node, 1, "axes", {}));
  for (std::int64_t& axis : axes) {
    MOTLEY_ASSIGN_OR_RETURN(axis, ResolveAxis(axis, RankOf(x)));
  }
  std::sort(axes.begin(), axes.end());
  if (x.view.size() != 3 || x.view[1] != 1 || x.view[2] != 1 || axes != Ints{2, 3}) {
    return InvalidInput("only height and width of one pixel can be squeezed");
  }
  return DefineFlat(net, node, x);
}

Status ImportConcat(OnnxImporter& net, const OnnxNode& node) {
  if (node.input_count() > kMaxOperands) return InvalidInput("more than {} inputs", kMaxOperands);
  std::vector<NodeId> parts;
  std::int64_t rank = 0;
  for (int i = 0; i < node.input_count(); ++i) {
    MOTLEY_ASSIGN_OR_RETURN(const OnnxFeature x, net.Plain(node, i));
    parts.push_back(x.node);
    rank = RankOf(x);
  }
  MOTLEY_ASSIGN_OR_RETURN(const std::int64_t axis, node.Int("axis", 0));
  if (axis != 1 && axis != 1 - rank) return InvalidInput("axis {} is not the channels", axis);
  return net.DefineFeature(node, net.builder().Concat(net.LayerName(node), std::move(parts)));
}

// The ranges of a Slice, one per axis of the file's shape.
Result<std::vector<OnnxRange>> RangesOf(const OnnxImporter& net, const OnnxNode& node,
                                        const OnnxFeature& x) {
  MOTLEY_ASSIGN_OR_RETURN(const Ints starts, ListOf(net, node, 1, "starts", {}));
  MOTLEY_ASSIGN_OR_RETURN(const Ints ends, ListOf(net, node, 2, "ends", {}));
  const std::size_t count = starts.size();
  Ints every;
  for (std::size_t i = 0; i < count; ++i) every.push_back(static_cast<std::int64_t>(i));
  MOTLEY_ASSIGN_OR_RETURN(const Ints axes, ListOf(net, node, 3, "axes", every));
  MOTLEY_ASSIGN_OR_RETURN(const Ints steps, ListOf(net, node, 4, "steps", {}));
  const bool by_ones =
      std::all_of(steps.begin(), steps.end(), [](std::int64_t step) { return step == 1; });
  if (count == 0 || ends.size() != count || axes.size() != count || !by_ones) {
    return InvalidInput("starts, ends and axes must be of one length, and steps 1");
  }
  std::vector<OnnxRange> ranges;
  for (const std::int64_t extent : x.view) ranges.push_back({.begin = 0, .end = extent});
  for (std::size_t i = 0; i < starts.size(); ++i) {
    MOTLEY_ASSIGN_OR_RETURN(const std::int64_t axis, ResolveAxis(axes[i], RankOf(x)));
    if (axis == 0) return InvalidInput("the batch cannot be sliced");
    const auto at = static_cast<std::size_t>(axis - 1);
    ranges[at] = ResolveRange(starts[i], ends[i], x.view[at]);
    if (ranges[at].begin == ranges[at].end) return InvalidInput("nothing is left of axis {}", axis);
  }
  return ranges;
}

// Channels become a slice; height and width are cropped by negative padding.
Status ImportSlice(OnnxImporter& net, const OnnxNode& node) {
  MOTLEY_ASSIGN_OR_RETURN(const OnnxFeature x, net.Plain(node, 0));
  MOTLEY_ASSIGN_OR_RETURN(const auto ranges, RangesOf(net, node, x));
  const std::string name = net.LayerName(node);
  NodeId id = x.node;
  if (ranges[0].begin != 0 || ranges[0].end != x.view[0]) {
    id = net.builder().Slice(name, id, {.begin = ranges[0].begin, .end = ranges[0].end});
  }
  if (ranges.size() == 3) {
    const Padding crop{-static_cast<int>(ranges[1].begin), -static_cast<int>(ranges[2].begin),
                       static_cast<int>(ranges[1].end - x.view[1]),
                       static_cast<int>(ranges[2].end - x.view[2])};
    if (crop != Padding{}) {
      id = net.builder().Pad(net.UniqueName(name + ".crop"), id, {.pad = crop});
    }
  }
  return net.DefineFeature(node, id);
}

Status ImportSplit(OnnxImporter& net, const OnnxNode& node) {
  MOTLEY_ASSIGN_OR_RETURN(const OnnxFeature x, net.Plain(node, 0));
  MOTLEY_ASSIGN_OR_RETURN(const std::int64_t axis, node.Int("axis", 0));
  if (axis != 1 && axis != 1 - RankOf(x)) return InvalidInput("axis {} is not the channels", axis);
  const int parts = node.output_count();
  if (parts < 1 || parts > kMaxOperands) return InvalidInput("{} outputs", parts);
  const std::int64_t even = (x.view[0] + parts - 1) / parts;
  Ints sizes(static_cast<std::size_t>(parts), even);
  sizes.back() = x.view[0] - even * (parts - 1);
  MOTLEY_ASSIGN_OR_RETURN(sizes, ListOf(net, node, 1, "split", sizes));
  if (sizes.size() != static_cast<std::size_t>(parts)) {
    return InvalidInput("{} sizes for {} outputs", sizes.size(), parts);
  }
  std::int64_t begin = 0;
  for (int i = 0; i < parts; ++i) {
    const std::int64_t size = sizes[static_cast<std::size_t>(i)];
    if (size < 1 || size > x.view[0] - begin) return InvalidInput("part {} has size {}", i, size);
    const NodeId id =
        net.builder().Slice(net.LayerName(node), x.node, {.begin = begin, .end = begin + size});
    if (!node.output(i).empty()) MOTLEY_RETURN_IF_ERROR(net.DefineFeature(node, id, i));
    begin += size;
  }
  if (begin != x.view[0]) return InvalidInput("the parts leave out channels");
  return {};
}

// Paddings by axis of the file's shape, first all begins, then all ends.
Result<Ints> PadsOf(const OnnxImporter& net, const OnnxNode& node, std::int64_t rank) {
  MOTLEY_ASSIGN_OR_RETURN(const Ints pads, ListOf(net, node, 1, "pads", {}));
  MOTLEY_ASSIGN_OR_RETURN(const OnnxConstantPtr list, net.OptionalConstant(node, 3));
  Ints axes;
  for (std::int64_t i = 0; list == nullptr && i < rank; ++i) axes.push_back(i);
  if (list != nullptr) {
    MOTLEY_ASSIGN_OR_RETURN(axes, PlainInts(*list));
  }
  if (pads.size() != 2 * axes.size()) return InvalidInput("{} paddings", pads.size());
  Ints all(static_cast<std::size_t>(2 * rank), 0);
  for (std::size_t i = 0; i < axes.size(); ++i) {
    MOTLEY_ASSIGN_OR_RETURN(const std::int64_t axis, ResolveAxis(axes[i], rank));
    all[static_cast<std::size_t>(axis)] = pads[i];
    all[static_cast<std::size_t>(axis + rank)] = pads[axes.size() + i];
  }
  return all;
}

Status ImportPad(OnnxImporter& net, const OnnxNode& node) {
  MOTLEY_ASSIGN_OR_RETURN(const OnnxFeature x, net.Plain(node, 0));
  MOTLEY_ASSIGN_OR_RETURN(const std::string mode, node.Text("mode", "constant"));
  MOTLEY_ASSIGN_OR_RETURN(const OnnxConstantPtr fill, net.OptionalConstant(node, 2));
  MOTLEY_ASSIGN_OR_RETURN(const float value,
                          fill == nullptr ? node.Float("value", 0.0F) : PlainFloat(*fill));
  if (mode != "constant" || value != 0.0F || x.view.size() != 3) {
    return InvalidInput("only zeros around an image are supported");
  }
  MOTLEY_ASSIGN_OR_RETURN(const Ints pads, PadsOf(net, node, 4));
  constexpr std::int64_t kMax = 1 << 20;
  const bool sane = std::all_of(pads.begin(), pads.end(),
                                [](std::int64_t pad) { return pad >= -kMax && pad <= kMax; });
  if (!sane || pads[0] != 0 || pads[1] != 0 || pads[4] != 0 || pads[5] != 0) {
    return InvalidInput("only height and width can be padded");
  }
  const Padding pad{static_cast<int>(pads[2]), static_cast<int>(pads[3]), static_cast<int>(pads[6]),
                    static_cast<int>(pads[7])};
  return net.DefineFeature(node, net.builder().Pad(net.LayerName(node), x.node, {.pad = pad}));
}

constexpr std::array<OnnxLayerRule, 8> kReshapeRules = {{{"Concat", ImportConcat},
                                                         {"Flatten", ImportFlatten},
                                                         {"Pad", ImportPad},
                                                         {"Reshape", ImportReshape},
                                                         {"Slice", ImportSlice},
                                                         {"Split", ImportSplit},
                                                         {"Squeeze", ImportSqueeze},
                                                         {"Transpose", ImportTranspose}}};

}  // namespace

std::span<const OnnxLayerRule> OnnxReshapeRules() { return kReshapeRules; }

}  // namespace motley::graph
