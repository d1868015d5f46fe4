#ifndef MOTLEY_PLAN_NOISE_H_
#define MOTLEY_PLAN_NOISE_H_

#include <cstdint>
#include <optional>
#include <span>

namespace motley::plan {

// What one device added to a step: the square of the norm of its gradient sum.
struct GradientNorm {
  std::int64_t samples = 0;
  double squared = 0.0;
};

// The square of the norm. Not finite when a square is beyond what a float can hold.
double SquaredNorm(std::span<const float> values);

// The gradient noise scale tr(S) / |G|^2, in samples, from the gradients that the devices of a step
// have computed anyway: that of few samples has more noise than that of all. One step says little;
// the mean over many is worth something. Assumes that the devices drew their samples alike, which
// private data need not be.
//
// Thread safety: none.
class NoiseScale {
 public:
  // `total_squared` is of the sum over all. Nothing is learnt from a step of one device, nor from
  // one whose norms are not finite.
  void Add(std::span<const GradientNorm> devices, double total_squared);
  // None until enough steps were seen, or when they show no signal.
  std::optional<double> value() const;

 private:
  double signal_ = 0.0, noise_ = 0.0;  // |G|^2 and tr(S), averaged
  std::int64_t steps_ = 0;
};

// What the learning rate is multiplied by when a step has `samples` instead of `planned`: the gain
// of the smaller batch against the larger where the noise scale is known, in proportion otherwise.
// With much noise both are the same; with little, fewer samples cost little.
double LearningRateFactor(std::int64_t samples, std::int64_t planned, std::optional<double> noise);

}  // namespace motley::plan

#endif  // MOTLEY_PLAN_NOISE_H_
