#ifndef MOTLEY_SIM_SPLIT_STEP_H_
#define MOTLEY_SIM_SPLIT_STEP_H_

#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <span>
#include <vector>

#include "motley/base/status.h"
#include "motley/data/batch.h"
#include "motley/engine/device.h"
#include "motley/graph/graph.h"

namespace motley::sim {

// The head's part of the FLOPs of a training step.
double HeadPart(const graph::Halves& halves);

// The step of one device with a merged head, in one process: the body's device crosses the boundary
// to the head's, which computes all samples at once, so that their order and with it every bit is
// the same from run to run.
//
// Thread safety: none.
class SplitStep {
 public:
  // The devices of the two halves of a net (graph::Split) outlive it.
  SplitStep(engine::Device& body, engine::Device& head);

  // As the body's device would do `request`, with the loss and the correct samples of the head.
  // The gradient of the head's weights is overwritten.
  base::Result<engine::StepResult> Step(engine::StepRequest request,
                                        std::span<const float> head_weights,
                                        std::span<float> head_gradient);

 private:
  // From any of the body's threads; the last one computes the head for all.
  bool Cross(const engine::Crossing& crossing, engine::StepRequest& head);

  engine::Device& body_;
  engine::Device& head_;
  const std::int64_t features_;
  data::Batch batch_;  // of the head: what has crossed
  std::vector<float> gradient_;

  std::mutex mutex_;
  std::condition_variable changed_;
  std::int64_t missing_ = 0;  // samples
  base::Result<engine::StepResult> outcome_;
};

}  // namespace motley::sim

#endif  // MOTLEY_SIM_SPLIT_STEP_H_
