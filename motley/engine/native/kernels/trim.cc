#include "motley/engine/native/kernels/trim.h"

#include <algorithm>

namespace motley::engine::native {
namespace {

// One direction of a convolution.
struct Axis {
  std::int64_t in, out, stride, dilation;
  int kernel, before, after;
};

// Drops what only meets the padding at both ends; returns how much before the rest. Leaves an axis
// alone whose smaller form would need another image size.
int Trim(Axis& axis) {
  int first = axis.kernel, last = -1;
  for (int k = 0; k < axis.kernel; ++k) {
    for (std::int64_t o = 0; o < axis.out; ++o) {
      const std::int64_t at = o * axis.stride - axis.before + k * axis.dilation;
      if (at < 0 || at >= axis.in) continue;
      first = std::min(first, k);
      last = k;
    }
  }
  if (last < first) return 0;
  Axis smaller = axis;
  smaller.kernel = last - first + 1;
  const std::int64_t before = axis.before - first * axis.dilation;
  const std::int64_t reach = (smaller.kernel - 1) * axis.dilation + 1;
  const std::int64_t after =
      std::max<std::int64_t>(0, (axis.out - 1) * axis.stride + reach - axis.in - before);
  if (before < 0 || (axis.in + before + after - reach) / axis.stride + 1 != axis.out) return 0;
  smaller.before = static_cast<int>(before);
  smaller.after = static_cast<int>(after);
  axis = smaller;
  return first;
}

}  // namespace

TrimmedConv::TrimmedConv(const graph::ConvAttrs& whole, const Layout& in, const Layout& out)
    : attrs(whole) {
  Axis rows{in.h,           out.h,         whole.stride_h,  whole.dilation_h,
            whole.kernel_h, whole.pad.top, whole.pad.bottom};
  Axis columns{in.w,           out.w,          whole.stride_w, whole.dilation_w,
               whole.kernel_w, whole.pad.left, whole.pad.right};
  row = Trim(rows);
  column = Trim(columns);
  attrs.kernel_h = rows.kernel;
  attrs.kernel_w = columns.kernel;
  smaller = attrs.kernel_h < whole.kernel_h || attrs.kernel_w < whole.kernel_w;
  if (!smaller) return;
  attrs.pad.top = rows.before;
  attrs.pad.bottom = rows.after;
  attrs.pad.left = columns.before;
  attrs.pad.right = columns.after;
}

dnnl::memory::desc TrimmedConv::Part(const dnnl::memory::desc& whole) const {
  if (!smaller) return whole;
  dnnl::memory::dims dims = whole.dims(), offsets(dims.size(), 0);
  dims[dims.size() - 2] = attrs.kernel_h;
  dims[dims.size() - 1] = attrs.kernel_w;
  offsets[dims.size() - 2] = row;
  offsets[dims.size() - 1] = column;
  return whole.submemory_desc(dims, offsets);
}

}  // namespace motley::engine::native
