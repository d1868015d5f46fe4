#include "motley/engine/native/layout.h"

#include "motley/base/check.h"

namespace motley::engine::native {

Layout PlainLayout(const graph::Shape& shape, std::int64_t n) {
  if (shape.size() == 1) return {.n = n, .c = shape[0]};
  return {.n = n, .c = shape[0], .h = shape[1], .w = shape[2]};
}

dnnl::memory::desc ToDnnl(const Layout& layout) {
  using Tag = dnnl::memory::format_tag;
  MOTLEY_CHECK(
      layout.inner == 1 || layout.inner == 8 || layout.inner == 16 || layout.inner == layout.c,
      "inner {} is no layout", layout.inner);
  // With exactly 8 or 16 channels, blocked and NHWC are the same bytes; oneDNN has its fast kernels
  // under the blocked name.
  const Tag tag = layout.inner == 1    ? Tag::nchw
                  : layout.inner == 8  ? Tag::nChw8c
                  : layout.inner == 16 ? Tag::nChw16c
                                       : Tag::nhwc;
  return {{layout.n, layout.c, layout.h, layout.w}, dnnl::memory::data_type::f32, tag};
}

std::int64_t InnerOf(const dnnl::memory::desc& desc, const Layout& plain) {
  for (const std::int64_t inner : {std::int64_t{16}, std::int64_t{8}, std::int64_t{1}, plain.c}) {
    if (ToDnnl(plain.WithInner(inner)) == desc) return inner;
  }
  return 0;
}

}  // namespace motley::engine::native
