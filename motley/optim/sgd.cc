#include "motley/optim/sgd.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstddef>
#include <limits>
#include <system_error>
#include <thread>
#include <vector>

#include "motley/base/check.h"

namespace motley::optim {
namespace {

// The kind of momentum is a template parameter to keep the branch out of a loop that the compiler
// turns into vector code; __restrict because it could not know otherwise that w and v do not alias.
template <bool kNesterov>
bool Update(const SgdOptions& options, std::size_t count, const float* __restrict gradient_sum,
            float samples, float* __restrict w, float* __restrict v) {
  const float eta = options.learning_rate, mu = options.momentum, lambda = options.weight_decay;
  int infinite = 0;
  for (std::size_t i = 0; i < count; ++i) {
    const float g = gradient_sum[i] / samples + lambda * w[i];
    v[i] = mu * v[i] + g;
    w[i] -= eta * (kNesterov ? g + mu * v[i] : v[i]);
    infinite |= std::abs(w[i]) <= std::numeric_limits<float>::max() ? 0 : 1;
  }
  return infinite == 0;
}

}  // namespace

bool SgdUpdate(const SgdOptions& options, std::span<const float> gradient_sum, std::int64_t samples,
               std::span<float> weights, std::span<float> velocity, int threads) {
  MOTLEY_CHECK(samples > 0, "an update needs samples, not {}", samples);
  MOTLEY_CHECK(gradient_sum.size() == weights.size() && velocity.size() == weights.size(),
               "{} gradients, {} weights, {} velocities", gradient_sum.size(), weights.size(),
               velocity.size());
  const auto update = options.nesterov ? Update<true> : Update<false>;
  std::atomic<bool> finite = true;
  const auto part = [&](std::size_t begin, std::size_t end) {
    if (!update(options, end - begin, gradient_sum.data() + begin, static_cast<float>(samples),
                weights.data() + begin, velocity.data() + begin)) {
      finite.store(false, std::memory_order_relaxed);
    }
  };
  // Below this a thread costs more to start (some 50 microseconds) than it saves.
  constexpr std::size_t kElementsPerThread = 1 << 19;
  const std::size_t count = weights.size();
  const std::size_t parts = std::clamp<std::size_t>(count / kElementsPerThread, 1,
                                                    static_cast<std::size_t>(std::max(threads, 1)));
  std::vector<std::jthread> others;
  others.reserve(parts - 1);
  std::size_t end = count;
  try {
    for (std::size_t p = parts; p-- > 1;) {
      const std::size_t begin = count * p / parts;
      others.emplace_back(part, begin, end);
      end = begin;
    }
  } catch (const std::system_error&) {
    // No more threads to be had: this one does the rest.
  }
  part(0, end);
  others.clear();  // waits for them
  return finite.load(std::memory_order_relaxed);
}

}  // namespace motley::optim
