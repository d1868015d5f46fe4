#ifndef MOTLEY_ENGINE_NATIVE_GRADIENT_SUM_H_
#define MOTLEY_ENGINE_NATIVE_GRADIENT_SUM_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "motley/engine/native/aligned.h"
#include "motley/engine/native/parameters.h"
#include "motley/graph/graph.h"

namespace motley::engine::native {

// The lanes' gradients and their sum. Each lane leaves its gradient of a node's parameters and
// goes on; the last lane to leave it sums all of them in lane order, so that the result does not
// depend on who came last, and announces the finished part.
class GradientSum {
 public:
  using OnBucket = std::function<void(std::int64_t offset, std::int64_t count)>;

  GradientSum(const graph::Graph& graph, Parameters& parameters, int lanes);

  // Before each step. `canonical` receives the sum.
  void Begin(int lanes, float* canonical, const OnBucket* on_bucket);

  // Where lane `lane` leaves the gradient of each parameter. The first lane's canonical ones are
  // written in place.
  std::span<float* const> Targets(int lane) const {
    return targets_[static_cast<std::size_t>(lane)];
  }

  // The lane's gradient of a node is complete. `contributes` is false for a lane that had no time
  // for a single sample: what its memory holds means nothing.
  void Leave(int lane, graph::NodeId node, bool contributes);

 private:
  void Sum(graph::NodeId node);
  void SumParameter(int index);

  const graph::Graph& graph_;
  Parameters& parameters_;
  std::vector<std::vector<AlignedFloats>> memory_;  // [lane][parameter]
  std::vector<std::vector<float*>> targets_;
  std::vector<std::atomic<int>> arrived_;       // by node
  std::vector<std::atomic<bool>> contributes_;  // by lane
  int lanes_ = 0;
  float* canonical_ = nullptr;
  const OnBucket* on_bucket_ = nullptr;
  std::mutex bucket_mutex_;
};

}  // namespace motley::engine::native

#endif  // MOTLEY_ENGINE_NATIVE_GRADIENT_SUM_H_
