#include "motley/plan/coordinate_momentum.h"

#include <algorithm>
#include <utility>

#include "motley/base/check.h"

namespace motley::plan {
namespace {

constexpr std::size_t kCoordinates = 1024;
// Staler updates are rare, and one that is has no estimate.
constexpr std::size_t kModels = 256;

}  // namespace

std::optional<double> CoordinateMomentum(std::span<const float> w_0, std::span<const float> w_1,
                                         std::span<const float> w_2,
                                         std::span<const float> gradient_1, double a) {
  MOTLEY_CHECK(
      w_0.size() == w_1.size() && w_1.size() == w_2.size() && w_2.size() == gradient_1.size(),
      "models of {}, {}, {} and {} weights", w_0.size(), w_1.size(), w_2.size(), gradient_1.size());
  std::vector<double> ratios;
  for (std::size_t i = 0; i < w_0.size(); ++i) {
    const double before = static_cast<double>(w_1[i]) - static_cast<double>(w_0[i]);
    const double after = static_cast<double>(w_2[i]) - static_cast<double>(w_1[i]);
    if (before != 0.0) ratios.push_back((after + a * static_cast<double>(gradient_1[i])) / before);
  }
  if (ratios.empty()) return std::nullopt;
  const auto middle = ratios.begin() + static_cast<std::ptrdiff_t>(ratios.size() / 2);
  std::nth_element(ratios.begin(), middle, ratios.end());
  return *middle;
}

CoordinateWatch::CoordinateWatch(std::span<const float> weights)
    : stride_(std::max<std::size_t>(1, weights.size() / kCoordinates)) {
  models_.push_back(Sample(weights));
}

std::vector<float> CoordinateWatch::Sample(std::span<const float> array) const {
  std::vector<float> some;
  for (std::size_t i = 0; i < array.size(); i += stride_) some.push_back(array[i]);
  return some;
}

std::optional<double> CoordinateWatch::Add(std::int64_t staleness,
                                           std::span<const float> gradient_sum,
                                           std::int64_t samples, double learning_rate,
                                           std::vector<float> weights) {
  MOTLEY_CHECK(staleness >= 0 && samples >= 0, "staleness {}, {} samples", staleness, samples);
  models_.push_back(std::move(weights));
  if (models_.size() > kModels) models_.pop_front();
  // Behind the model that was read is the next one, in the worst case the one just made.
  const std::ptrdiff_t read = std::ssize(models_) - 2 - staleness;
  if (read < 1 || samples == 0) return std::nullopt;
  const auto at = models_.begin() + read;
  return CoordinateMomentum(at[-1], at[0], at[1], gradient_sum,
                            learning_rate / static_cast<double>(samples));
}

}  // namespace motley::plan
