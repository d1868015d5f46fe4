#include <algorithm>
#include <cmath>

#include "motley/engine/reference/kernels.h"

namespace motley::engine::reference {
namespace {

// Calls visit(index) for every element of one channel in the samples [begin, end).
template <typename Visit>
void ForEachOfChannel(Dims in, std::int64_t begin, std::int64_t end, std::int64_t c, Visit visit) {
  for (std::int64_t n = begin; n < end; ++n) {
    for (std::int64_t i = 0; i < in.image(); ++i) visit(in.at(n, c, 0, i));
  }
}

Moments MomentsOf(Dims in, View x, std::int64_t begin, std::int64_t end) {
  Moments moments{.begin = begin, .end = end, .mean = {}, .variance = {}};
  const auto count = static_cast<double>((end - begin) * in.image());
  for (std::int64_t c = 0; c < in.c; ++c) {
    double sum = 0.0, squares = 0.0;
    ForEachOfChannel(in, begin, end, c, [&](std::size_t i) { sum += x[i]; });
    const double mean = sum / count;
    ForEachOfChannel(in, begin, end, c,
                     [&](std::size_t i) { squares += (x[i] - mean) * (x[i] - mean); });
    moments.mean.push_back(mean);
    moments.variance.push_back(squares / count);
  }
  return moments;
}

// The denominator of LRN before the power: k + alpha / size * sum of squares of the neighbours.
// For an even size the longer side lies before the channel, as in PyTorch.
double LrnScale(const graph::LrnAttrs& a, Dims in, View x, std::int64_t n, std::int64_t c,
                std::int64_t i) {
  const std::int64_t first = std::max<std::int64_t>(c - a.size / 2, 0);
  const std::int64_t last = std::min(c + (a.size - 1) / 2, in.c - 1);
  double squares = 0.0;
  for (std::int64_t other = first; other <= last; ++other) {
    const double value = x[in.at(n, other, 0, i)];
    squares += value * value;
  }
  return static_cast<double>(a.k) + static_cast<double>(a.alpha) / a.size * squares;
}

// Calls visit(sample, channel, pixel) for every element.
template <typename Visit>
void ForEach(Dims in, Visit visit) {
  for (std::int64_t n = 0; n < in.n; ++n) {
    for (std::int64_t c = 0; c < in.c; ++c) {
      for (std::int64_t i = 0; i < in.image(); ++i) visit(n, c, i);
    }
  }
}

}  // namespace

std::vector<Moments> MomentsOfGroups(Dims in, View x, std::int64_t group) {
  std::vector<Moments> groups;
  const std::int64_t size = group > 0 ? group : in.n;
  for (std::int64_t begin = 0; begin < in.n; begin += size) {
    groups.push_back(MomentsOf(in, x, begin, std::min(begin + size, in.n)));
  }
  return groups;
}

Values BatchNorm(float epsilon, Dims in, View x, View gamma, View beta,
                 const std::vector<Moments>& moments) {
  Values y = in.Zeros();
  for (const Moments& m : moments) {
    for (std::int64_t c = 0; c < in.c; ++c) {
      const auto k = static_cast<std::size_t>(c);
      const double scale = 1.0 / std::sqrt(m.variance[k] + static_cast<double>(epsilon));
      ForEachOfChannel(in, m.begin, m.end, c, [&](std::size_t i) {
        y[i] = gamma[k] * (x[i] - m.mean[k]) * scale + beta[k];
      });
    }
  }
  return y;
}

LayerGradients BatchNormBackward(float epsilon, Dims in, View x, View gamma,
                                 const std::vector<Moments>& moments, View dy) {
  LayerGradients gradients{
      .input = in.Zeros(), .weight = Values(gamma.size()), .bias = Values(gamma.size())};
  for (const Moments& m : moments) {
    const auto count = static_cast<double>((m.end - m.begin) * in.image());
    for (std::int64_t c = 0; c < in.c; ++c) {
      const auto k = static_cast<std::size_t>(c);
      const double scale = 1.0 / std::sqrt(m.variance[k] + static_cast<double>(epsilon));
      const auto normal = [&](std::size_t i) { return (x[i] - m.mean[k]) * scale; };
      double dgamma = 0.0, dbeta = 0.0;
      ForEachOfChannel(in, m.begin, m.end, c, [&](std::size_t i) {
        dgamma += dy[i] * normal(i);
        dbeta += dy[i];
      });
      // Mean and variance depend on x as well: their part is what is projected out of dy.
      ForEachOfChannel(in, m.begin, m.end, c, [&](std::size_t i) {
        gradients.input[i] = gamma[k] * scale * (dy[i] - (dbeta + normal(i) * dgamma) / count);
      });
      gradients.weight[k] += dgamma;
      gradients.bias[k] += dbeta;
    }
  }
  return gradients;
}

Values Lrn(const graph::LrnAttrs& attrs, Dims in, View x) {
  Values y = in.Zeros();
  ForEach(in, [&](std::int64_t n, std::int64_t c, std::int64_t i) {
    const std::size_t here = in.at(n, c, 0, i);
    y[here] = x[here] * std::pow(LrnScale(attrs, in, x, n, c, i), -static_cast<double>(attrs.beta));
  });
  return y;
}

Values LrnBackward(const graph::LrnAttrs& attrs, Dims in, View x, View dy) {
  Values dx = in.Zeros();
  const double beta = attrs.beta;
  ForEach(in, [&](std::int64_t n, std::int64_t c, std::int64_t i) {
    const std::size_t here = in.at(n, c, 0, i);
    const double scale = LrnScale(attrs, in, x, n, c, i);
    dx[here] += dy[here] * std::pow(scale, -beta);
    // What the neighbours in this element's window did to it through the scale.
    const double dscale = -beta * dy[here] * x[here] * std::pow(scale, -beta - 1.0);
    const std::int64_t first = std::max<std::int64_t>(c - attrs.size / 2, 0);
    const std::int64_t last = std::min(c + (attrs.size - 1) / 2, in.c - 1);
    for (std::int64_t other = first; other <= last; ++other) {
      const std::size_t there = in.at(n, other, 0, i);
      dx[there] += dscale * 2.0 * static_cast<double>(attrs.alpha) / attrs.size * x[there];
    }
  });
  return dx;
}

}  // namespace motley::engine::reference
