#include <algorithm>

#include "motley/engine/reference/kernels.h"

namespace motley::engine::reference {

Dims DimsOf(std::int64_t n, const graph::Shape& shape) {
  Dims dims{.n = n, .c = shape.empty() ? 1 : shape[0]};
  if (shape.size() == 3) {
    dims.h = shape[1];
    dims.w = shape[2];
  }
  return dims;
}

Values TakeChannels(Dims whole, Dims part, std::int64_t begin, View x) {
  Values y;
  y.reserve(static_cast<std::size_t>(part.count()));
  for (std::int64_t n = 0; n < whole.n; ++n) {
    const auto taken = x.subspan(whole.at(n, begin, 0, 0), static_cast<std::size_t>(part.sample()));
    y.insert(y.end(), taken.begin(), taken.end());
  }
  return y;
}

void PutChannels(Dims whole, Dims part, std::int64_t begin, View x, Values& into) {
  for (std::int64_t n = 0; n < whole.n; ++n) {
    const auto given = x.subspan(part.at(n, 0, 0, 0), static_cast<std::size_t>(part.sample()));
    std::copy(given.begin(), given.end(),
              into.begin() + static_cast<std::ptrdiff_t>(whole.at(n, begin, 0, 0)));
  }
}

Values ShuffleChannels(Dims in, std::int64_t groups, View x) {
  Values y = in.Zeros();
  const std::int64_t per_group = in.c / groups;
  for (std::int64_t n = 0; n < in.n; ++n) {
    for (std::int64_t c = 0; c < in.c; ++c) {
      const std::int64_t to = c % per_group * groups + c / per_group;
      for (std::int64_t i = 0; i < in.image(); ++i) y[in.at(n, to, 0, i)] = x[in.at(n, c, 0, i)];
    }
  }
  return y;
}

Values Pad(const graph::Padding& pad, Dims in, Dims out, View x) {
  Values y = out.Zeros();
  for (std::int64_t n = 0; n < out.n; ++n) {
    for (std::int64_t c = 0; c < out.c; ++c) {
      for (std::int64_t oy = 0; oy < out.h; ++oy) {
        for (std::int64_t ox = 0; ox < out.w; ++ox) {
          const std::int64_t iy = oy - pad.top, ix = ox - pad.left;
          const bool inside = iy >= 0 && iy < in.h && ix >= 0 && ix < in.w;
          if (inside) y[out.at(n, c, oy, ox)] = x[in.at(n, c, iy, ix)];
        }
      }
    }
  }
  return y;
}

graph::Padding Negated(const graph::Padding& pad) {
  return {-pad.top, -pad.left, -pad.bottom, -pad.right};
}

}  // namespace motley::engine::reference
