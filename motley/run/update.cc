#include "motley/run/update.h"

#include <algorithm>
#include <bit>
#include <cstdint>

namespace motley::run {

bool AllFinite(std::span<const float> values) {
  // In blocks without a branch inside, because every gradient of a cluster passes through here.
  constexpr std::size_t kBlock = 4096;
  constexpr std::uint32_t kExponent = 0x7f800000U;  // all ones: infinite, or no number
  for (std::size_t begin = 0; begin < values.size(); begin += kBlock) {
    const std::size_t end = std::min(values.size(), begin + kBlock);
    std::uint32_t found = 0;
    for (std::size_t i = begin; i < end; ++i) {
      const auto bits = std::bit_cast<std::uint32_t>(values[i]);
      found |= (bits & kExponent) == kExponent ? 1U : 0U;
    }
    if (found != 0) return false;
  }
  return true;
}

optim::SgdOptions ForFewer(optim::SgdOptions sgd, std::int64_t samples, std::int64_t planned) {
  if (samples < planned) {
    sgd.learning_rate *= static_cast<float>(samples) / static_cast<float>(planned);
  }
  return sgd;
}

std::string UpdateBuffers(const graph::Graph& graph, std::span<const float> sums,
                          std::int64_t samples, std::span<float> buffers) {
  const auto n = static_cast<float>(samples);
  for (const graph::Tensor& tensor : graph.buffers()) {
    const float momentum = graph.node(tensor.node).batch_norm().momentum;
    const auto offset = static_cast<std::size_t>(tensor.offset);
    const auto size = static_cast<std::size_t>(tensor.size);
    if (!AllFinite(sums.subspan(offset, size))) return fmt::format("'{}'", tensor.name);
    for (std::size_t i = offset; i < offset + size; ++i) {
      buffers[i] = (1.0F - momentum) * buffers[i] + momentum * (sums[i] / n);
    }
  }
  return {};
}

}  // namespace motley::run
