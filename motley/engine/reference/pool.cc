#include <algorithm>
#include <limits>

#include "motley/base/check.h"
#include "motley/engine/reference/kernels.h"

namespace motley::engine::reference {
namespace {

// One window of a pooling layer, cut to the image, and how many elements it has together with the
// padding. What ceil_mode adds beyond the padding counts nowhere (as in PyTorch).
struct Window {
  std::int64_t top = 0, bottom = 0, left = 0, right = 0;
  std::int64_t padded_count = 0;

  std::int64_t image_count() const { return (bottom - top) * (right - left); }
};

Window WindowAt(const graph::PoolAttrs& a, Dims in, std::int64_t oy, std::int64_t ox) {
  Window window;
  window.top = oy * a.stride_h - a.pad.top;
  window.left = ox * a.stride_w - a.pad.left;
  window.bottom = std::min(window.top + a.kernel_h, in.h + a.pad.bottom);
  window.right = std::min(window.left + a.kernel_w, in.w + a.pad.right);
  window.padded_count = window.image_count();
  window.top = std::max<std::int64_t>(window.top, 0);
  window.left = std::max<std::int64_t>(window.left, 0);
  window.bottom = std::min(window.bottom, in.h);
  window.right = std::min(window.right, in.w);
  return window;
}

// Calls visit(index in y, sample, channel, window) for every output element.
template <typename Visit>
void ForEachWindow(const graph::PoolAttrs& attrs, Dims in, Dims out, Visit visit) {
  for (std::int64_t n = 0; n < out.n; ++n) {
    for (std::int64_t c = 0; c < out.c; ++c) {
      for (std::int64_t oy = 0; oy < out.h; ++oy) {
        for (std::int64_t ox = 0; ox < out.w; ++ox) {
          visit(out.at(n, c, oy, ox), n, c, WindowAt(attrs, in, oy, ox));
        }
      }
    }
  }
}

template <typename Visit>
void ForEachElement(Dims in, std::int64_t n, std::int64_t c, const Window& window, Visit visit) {
  for (std::int64_t y = window.top; y < window.bottom; ++y) {
    for (std::int64_t x = window.left; x < window.right; ++x) visit(in.at(n, c, y, x));
  }
}

std::size_t FirstMaximum(Dims in, std::int64_t n, std::int64_t c, const Window& window, View x) {
  MOTLEY_CHECK(window.top < window.bottom && window.left < window.right,
               "a max pooling window lies in the padding entirely");
  std::size_t best = in.at(n, c, window.top, window.left);
  ForEachElement(in, n, c, window, [&](std::size_t i) {
    if (x[i] > x[best]) best = i;
  });
  return best;
}

double Divisor(const graph::PoolAttrs& attrs, const Window& window) {
  return static_cast<double>(attrs.count_include_pad ? window.padded_count : window.image_count());
}

}  // namespace

Values MaxPool(const graph::PoolAttrs& attrs, Dims in, Dims out, View x) {
  Values y = out.Zeros();
  ForEachWindow(attrs, in, out,
                [&](std::size_t o, std::int64_t n, std::int64_t c, const Window& window) {
                  y[o] = x[FirstMaximum(in, n, c, window, x)];
                });
  return y;
}

Values MaxPoolBackward(const graph::PoolAttrs& attrs, Dims in, Dims out, View x, View dy) {
  Values dx = in.Zeros();
  ForEachWindow(attrs, in, out,
                [&](std::size_t o, std::int64_t n, std::int64_t c, const Window& window) {
                  dx[FirstMaximum(in, n, c, window, x)] += dy[o];
                });
  return dx;
}

Values AvgPool(const graph::PoolAttrs& attrs, Dims in, Dims out, View x) {
  Values y = out.Zeros();
  ForEachWindow(attrs, in, out,
                [&](std::size_t o, std::int64_t n, std::int64_t c, const Window& window) {
                  ForEachElement(in, n, c, window, [&](std::size_t i) { y[o] += x[i]; });
                  y[o] /= Divisor(attrs, window);
                });
  return y;
}

Values AvgPoolBackward(const graph::PoolAttrs& attrs, Dims in, Dims out, View dy) {
  Values dx = in.Zeros();
  ForEachWindow(attrs, in, out,
                [&](std::size_t o, std::int64_t n, std::int64_t c, const Window& window) {
                  const double part = dy[o] / Divisor(attrs, window);
                  ForEachElement(in, n, c, window, [&](std::size_t i) { dx[i] += part; });
                });
  return dx;
}

Values GlobalAvgPool(Dims in, View x) {
  const auto image = static_cast<std::size_t>(in.image());
  Values y(x.size() / image);
  for (std::size_t i = 0; i < x.size(); ++i) y[i / image] += x[i] / static_cast<double>(image);
  return y;
}

Values GlobalAvgPoolBackward(Dims in, View dy) {
  const auto image = static_cast<std::size_t>(in.image());
  Values dx = in.Zeros();
  for (std::size_t i = 0; i < dx.size(); ++i) dx[i] = dy[i / image] / static_cast<double>(image);
  return dx;
}

}  // namespace motley::engine::reference
