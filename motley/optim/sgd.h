#ifndef MOTLEY_OPTIM_SGD_H_
#define MOTLEY_OPTIM_SGD_H_

#include <cstdint>
#include <span>

namespace motley::optim {

struct SgdOptions {
  float learning_rate = 0.05F;
  float momentum = 0.9F;  // may be negative
  float weight_decay = 0.0F;
  bool nesterov = false;
};

// One update of flat weights, PyTorch's convention, in one pass:
//   g = gradient_sum / samples + lambda * w;  v <- mu * v + g
//   w <- w - eta * v            (plain)
//   w <- w - eta * (g + mu * v) (Nesterov)
// Requires samples > 0 and spans of one length that do not overlap.
//
// Every element depends on its own index only: a caller may cut the arrays anywhere, and the number
// of threads does not change a bit of the result. Small arrays are updated in the calling thread.
//
// False when a weight is not finite any more: training has diverged.
bool SgdUpdate(const SgdOptions& options, std::span<const float> gradient_sum, std::int64_t samples,
               std::span<float> weights, std::span<float> velocity, int threads = 1);

}  // namespace motley::optim

#endif  // MOTLEY_OPTIM_SGD_H_
