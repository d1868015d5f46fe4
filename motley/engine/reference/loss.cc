#include <algorithm>
#include <cmath>

#include "motley/engine/reference/kernels.h"

namespace motley::engine::reference {

Loss SoftmaxCrossEntropy(Dims logits, View x, std::span<const std::int32_t> labels) {
  const auto classes = static_cast<std::size_t>(logits.sample());
  Loss loss{.dlogits = logits.Zeros()};
  for (std::size_t n = 0; n < labels.size(); ++n) {
    const View row = x.subspan(n * classes, classes);
    const auto label = static_cast<std::size_t>(labels[n]);
    const auto largest = std::max_element(row.begin(), row.end());  // the first of equals
    double sum = 0.0;
    for (const double value : row) sum += std::exp(value - *largest);
    loss.sum += std::log(sum) + *largest - row[label];
    loss.correct += static_cast<std::size_t>(largest - row.begin()) == label ? 1 : 0;
    for (std::size_t k = 0; k < classes; ++k) {
      loss.dlogits[n * classes + k] = std::exp(row[k] - *largest) / sum - (k == label ? 1.0 : 0.0);
    }
  }
  return loss;
}

}  // namespace motley::engine::reference
