#ifndef MOTLEY_RUN_EVALUATE_H_
#define MOTLEY_RUN_EVALUATE_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>

#include "motley/base/status.h"
#include "motley/data/dataset.h"
#include "motley/data/transform.h"
#include "motley/engine/device.h"
#include "motley/run/checkpoint.h"

namespace motley::run {

// Mean loss and accuracy over the whole dataset. Fails with kCancelled soon after `cancel` (may be
// null) becomes true.
base::Result<Evaluation> Evaluate(engine::Device& device, std::span<const float> weights,
                                  std::span<const float> buffers,
                                  std::shared_ptr<const data::Dataset> dataset,
                                  const data::Transform& transform, std::int64_t batch,
                                  int loader_threads, const std::atomic<bool>* cancel = nullptr);

}  // namespace motley::run

#endif  // MOTLEY_RUN_EVALUATE_H_
