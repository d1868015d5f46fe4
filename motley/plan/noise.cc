#include "motley/plan/noise.h"

#include <algorithm>
#include <cmath>

namespace motley::plan {
namespace {

constexpr std::int64_t kFewestSteps = 20;
constexpr double kMemory = 0.995;  // of what was known before

}  // namespace

double SquaredNorm(std::span<const float> values) {
  // In blocks of floats, so that it is one more pass of vectors over what lies in the cache.
  constexpr std::size_t kBlock = 1024;
  double total = 0.0;
  for (std::size_t begin = 0; begin < values.size(); begin += kBlock) {
    const std::size_t end = std::min(values.size(), begin + kBlock);
    float lanes[16] = {};
    std::size_t i = begin;
    for (; i + 16 <= end; i += 16) {
      for (std::size_t k = 0; k < 16; ++k) lanes[k] += values[i + k] * values[i + k];
    }
    for (; i < end; ++i) lanes[0] += values[i] * values[i];
    for (const float lane : lanes) total += static_cast<double>(lane);
  }
  return total;
}

void NoiseScale::Add(std::span<const GradientNorm> devices, double total_squared) {
  double total = 0.0;
  for (const GradientNorm& device : devices) total += static_cast<double>(device.samples);
  double signal = 0.0, noise = 0.0, weight = 0.0;
  const double large = total_squared / (total * total);  // of the mean gradient
  for (const GradientNorm& device : devices) {
    const auto b = static_cast<double>(device.samples);
    if (b <= 0.0 || b >= total) continue;
    const double small = device.squared / (b * b);
    signal += b * (total * large - b * small) / (total - b);
    noise += b * (small - large) / (1.0 / b - 1.0 / total);
    weight += b;
  }
  if (weight <= 0.0 || !std::isfinite(signal) || !std::isfinite(noise)) return;
  ++steps_;
  const double keep = std::min(kMemory, 1.0 - 1.0 / static_cast<double>(steps_));
  signal_ = keep * signal_ + (1.0 - keep) * signal / weight;
  noise_ = keep * noise_ + (1.0 - keep) * noise / weight;
}

std::optional<double> NoiseScale::value() const {
  if (steps_ < kFewestSteps || signal_ <= 0.0 || noise_ <= 0.0) return std::nullopt;
  const double scale = noise_ / signal_;
  return std::isfinite(scale) ? std::optional(scale) : std::nullopt;
}

double LearningRateFactor(std::int64_t samples, std::int64_t planned, std::optional<double> noise) {
  if (samples >= planned || planned <= 0) return 1.0;
  const auto b = static_cast<double>(samples), large = static_cast<double>(planned);
  if (!noise || samples == 0) return b / large;
  return (1.0 + *noise / large) / (1.0 + *noise / b);
}

}  // namespace motley::plan
