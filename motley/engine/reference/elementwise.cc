#include <algorithm>

#include "motley/engine/dropout.h"
#include "motley/engine/reference/kernels.h"

namespace motley::engine::reference {
namespace {

template <typename Function>
Values Map(View x, Function function) {
  Values y(x.size());
  std::transform(x.begin(), x.end(), y.begin(), function);
  return y;
}

template <typename Function>
Values Map(View a, View b, Function function) {
  Values y(a.size());
  std::transform(a.begin(), a.end(), b.begin(), y.begin(), function);
  return y;
}

}  // namespace

Values Relu(View x) {
  return Map(x, [](double v) { return std::max(v, 0.0); });
}

Values ReluBackward(View x, View dy) {
  return Map(x, dy, [](double v, double d) { return v > 0.0 ? d : 0.0; });
}

Values Relu6(View x) {
  return Map(x, [](double v) { return std::clamp(v, 0.0, 6.0); });
}

Values Relu6Backward(View x, View dy) {
  return Map(x, dy, [](double v, double d) { return v > 0.0 && v < 6.0 ? d : 0.0; });
}

Values Sum(View a, View b) {
  return Map(a, b, [](double u, double v) { return u + v; });
}

Values Product(View a, View b) {
  return Map(a, b, [](double u, double v) { return u * v; });
}

Values DropoutFactors(float probability, Dims in, const data::Batch& batch, std::uint64_t seed,
                      graph::NodeId node) {
  Values factors = in.Zeros();
  const std::uint32_t threshold = DropoutThreshold(probability);
  const double kept = 1.0 / (1.0 - static_cast<double>(probability));
  const auto sample_size = static_cast<std::size_t>(in.sample());
  for (std::size_t i = 0; i < factors.size(); ++i) {
    const std::size_t sample = i / sample_size;
    const std::uint64_t key = DropoutKey(seed, batch.epoch, batch.ids[sample], node);
    factors[i] = DropoutKeep(key, i % sample_size, threshold) ? kept : 0.0;
  }
  return factors;
}

}  // namespace motley::engine::reference
