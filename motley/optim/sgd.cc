#include "motley/optim/sgd.h"

#include <cstddef>

#include "motley/base/check.h"

namespace motley::optim {
namespace {

// The kind of momentum is a template parameter to keep the branch out of a loop that the compiler
// turns into vector code; __restrict because it could not know otherwise that w and v do not alias.
template <bool kNesterov>
void Update(const SgdOptions& options, std::size_t count, const float* __restrict gradient_sum,
            float samples, float* __restrict w, float* __restrict v) {
  const float eta = options.learning_rate, mu = options.momentum, lambda = options.weight_decay;
  for (std::size_t i = 0; i < count; ++i) {
    const float g = gradient_sum[i] / samples + lambda * w[i];
    v[i] = mu * v[i] + g;
    w[i] -= eta * (kNesterov ? g + mu * v[i] : v[i]);
  }
}

}  // namespace

void SgdUpdate(const SgdOptions& options, std::span<const float> gradient_sum, std::int64_t samples,
               std::span<float> weights, std::span<float> velocity) {
  MOTLEY_CHECK(samples > 0, "an update needs samples, not {}", samples);
  MOTLEY_CHECK(gradient_sum.size() == weights.size() && velocity.size() == weights.size(),
               "{} gradients, {} weights, {} velocities", gradient_sum.size(), weights.size(),
               velocity.size());
  const auto update = options.nesterov ? Update<true> : Update<false>;
  update(options, weights.size(), gradient_sum.data(), static_cast<float>(samples), weights.data(),
         velocity.data());
}

}  // namespace motley::optim
