#include "motley/engine/reference/kernels.h"

namespace motley::engine::reference {
namespace {

// Calls visit(index in x, index in weight, index in y) for every product of the convolution:
// y[output] = sum of x[input] * weight. The output and both gradients are sums over these triples.
template <typename Visit>
void ForEachProduct(const graph::ConvAttrs& a, Dims in, Dims out, Visit visit) {
  const std::int64_t in_per_group = in.c / a.groups, out_per_group = out.c / a.groups;
  const Dims filter{out.c, in_per_group, a.kernel_h, a.kernel_w};
  for (std::int64_t n = 0; n < out.n; ++n) {
    for (std::int64_t oc = 0; oc < out.c; ++oc) {
      const std::int64_t first = oc / out_per_group * in_per_group;
      for (std::int64_t oy = 0; oy < out.h; ++oy) {
        for (std::int64_t ox = 0; ox < out.w; ++ox) {
          for (std::int64_t ic = 0; ic < in_per_group; ++ic) {
            for (std::int64_t ky = 0; ky < a.kernel_h; ++ky) {
              const std::int64_t iy = oy * a.stride_h - a.pad.top + ky * a.dilation_h;
              if (iy < 0 || iy >= in.h) continue;
              for (std::int64_t kx = 0; kx < a.kernel_w; ++kx) {
                const std::int64_t ix = ox * a.stride_w - a.pad.left + kx * a.dilation_w;
                if (ix < 0 || ix >= in.w) continue;
                visit(in.at(n, first + ic, iy, ix), filter.at(oc, ic, ky, kx),
                      out.at(n, oc, oy, ox));
              }
            }
          }
        }
      }
    }
  }
}

}  // namespace

Values Conv(const graph::ConvAttrs& attrs, Dims in, Dims out, View x, View weight, View bias) {
  Values y = out.Zeros();
  ForEachProduct(attrs, in, out, [&](std::size_t input, std::size_t filter, std::size_t output) {
    y[output] += x[input] * weight[filter];
  });
  if (bias.empty()) return y;
  for (std::size_t i = 0; i < y.size(); ++i) {
    const auto channel = static_cast<std::int64_t>(i) / out.image() % out.c;
    y[i] += bias[static_cast<std::size_t>(channel)];
  }
  return y;
}

LayerGradients ConvBackward(const graph::ConvAttrs& attrs, Dims in, Dims out, View x, View weight,
                            View dy) {
  LayerGradients gradients{.input = in.Zeros(), .weight = Values(weight.size()), .bias = {}};
  ForEachProduct(attrs, in, out, [&](std::size_t input, std::size_t filter, std::size_t output) {
    gradients.input[input] += weight[filter] * dy[output];
    gradients.weight[filter] += x[input] * dy[output];
  });
  if (!attrs.bias) return gradients;
  gradients.bias.resize(static_cast<std::size_t>(out.c));
  for (std::size_t i = 0; i < dy.size(); ++i) {
    const auto channel = static_cast<std::int64_t>(i) / out.image() % out.c;
    gradients.bias[static_cast<std::size_t>(channel)] += dy[i];
  }
  return gradients;
}

}  // namespace motley::engine::reference
