#ifndef MOTLEY_PLAN_COORDINATE_MOMENTUM_H_
#define MOTLEY_PLAN_COORDINATE_MOMENTUM_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <vector>

namespace motley::plan {

// The momentum that the weights themselves show, for diagnosis only (YellowFin):
//   median over coordinates of (w_2 - w_1 + a * gradient_1) / (w_1 - w_0)
// with three models in a row and the gradient of the one in the middle. It is biased when gradients
// are noisy (docs/asynchrony.md has figures), so nothing acts on it. None when no coordinate has
// moved. Requires spans of one length.
std::optional<double> CoordinateMomentum(std::span<const float> w_0, std::span<const float> w_1,
                                         std::span<const float> w_2,
                                         std::span<const float> gradient_1, double a);

// Makes this estimate of the updates of a run whose gradients are stale: by the models around the
// one that a gradient was computed with. Looks at some coordinates only, spread over the model, and
// keeps them of the last models.
//
// Thread safety: none.
class CoordinateWatch {
 public:
  // `weights`: the model before the first update.
  explicit CoordinateWatch(std::span<const float> weights);

  // The coordinates that are looked at, of an array like the weights.
  std::vector<float> Sample(std::span<const float> array) const;

  // An update was made with this learning rate, of a gradient sum over so many samples that was
  // computed from the model of `staleness` updates ago: samples of the sum, and of the weights now.
  // Its estimate; none without three models in a row around it, or when the model was too long ago.
  std::optional<double> Add(std::int64_t staleness, std::span<const float> gradient_sum,
                            std::int64_t samples, double learning_rate, std::vector<float> weights);

 private:
  const std::size_t stride_;
  std::deque<std::vector<float>> models_;  // the last one is the present one
};

}  // namespace motley::plan

#endif  // MOTLEY_PLAN_COORDINATE_MOMENTUM_H_
