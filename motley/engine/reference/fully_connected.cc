#include "motley/engine/reference/kernels.h"

namespace motley::engine::reference {

Values FullyConnected(Dims in, Dims out, View x, View weight, View bias) {
  const auto features = static_cast<std::size_t>(in.sample());
  const auto outputs = static_cast<std::size_t>(out.sample());
  Values y = out.Zeros();
  for (std::size_t i = 0; i < y.size(); ++i) {
    const std::size_t sample = i / outputs, row = i % outputs;
    double sum = bias.empty() ? 0.0 : bias[row];
    for (std::size_t k = 0; k < features; ++k) {
      sum += x[sample * features + k] * weight[row * features + k];
    }
    y[i] = sum;
  }
  return y;
}

LayerGradients FullyConnectedBackward(Dims in, Dims out, View x, View weight, View dy) {
  const auto features = static_cast<std::size_t>(in.sample());
  const auto outputs = static_cast<std::size_t>(out.sample());
  LayerGradients gradients{
      .input = in.Zeros(), .weight = Values(weight.size()), .bias = Values(outputs)};
  for (std::size_t i = 0; i < dy.size(); ++i) {
    const std::size_t sample = i / outputs, row = i % outputs;
    gradients.bias[row] += dy[i];
    for (std::size_t k = 0; k < features; ++k) {
      gradients.input[sample * features + k] += weight[row * features + k] * dy[i];
      gradients.weight[row * features + k] += x[sample * features + k] * dy[i];
    }
  }
  return gradients;
}

}  // namespace motley::engine::reference
