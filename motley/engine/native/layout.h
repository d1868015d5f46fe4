#ifndef MOTLEY_ENGINE_NATIVE_LAYOUT_H_
#define MOTLEY_ENGINE_NATIVE_LAYOUT_H_

#include <cstdint>
#include <oneapi/dnnl/dnnl.hpp>

#include "motley/graph/graph.h"

namespace motley::engine::native {

// The activations of n samples in memory: [n][outer][h * w][inner] with channel = outer index *
// inner + inner index. One number tells all layouts apart:
//   inner = 1: plain (NCHW); inner = 8, 16: blocked for oneDNN's kernels; inner = c: NHWC.
// In a blocked layout whose last block is not full, the missing channels are zeros, always.
struct Layout {
  std::int64_t n = 0, c = 0, h = 1, w = 1;
  std::int64_t inner = 1;

  std::int64_t outer() const { return (c + inner - 1) / inner; }
  std::int64_t pixels() const { return h * w; }
  std::int64_t sample_size() const { return outer() * pixels() * inner; }  // with padding
  std::int64_t size() const { return n * sample_size(); }
  bool has_padding() const { return c % inner != 0; }

  // Where channel c of pixel 0 of a sample lies; pixels follow each other at distance `inner`.
  std::int64_t ChannelOffset(std::int64_t channel) const {
    return (channel / inner) * pixels() * inner + channel % inner;
  }

  Layout WithInner(std::int64_t other) const { return {n, c, h, w, other}; }
  // Whether the bytes of both are the same.
  bool SameOrder(const Layout& other) const {
    return inner == other.inner || (pixels() == 1 && !has_padding() && !other.has_padding());
  }
  bool operator==(const Layout&) const = default;
};

// `n` samples of `shape`, plain.
Layout PlainLayout(const graph::Shape& shape, std::int64_t n);

dnnl::memory::desc ToDnnl(const Layout& layout);

// The `inner` of a oneDNN activation layout; 0 when it is none of ours.
std::int64_t InnerOf(const dnnl::memory::desc& desc, const Layout& plain);

}  // namespace motley::engine::native

#endif  // MOTLEY_ENGINE_NATIVE_LAYOUT_H_
