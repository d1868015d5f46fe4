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
#include "motley/engine/native/gemm.h"
#include "motley/engine/native/parameters.h"
#include "motley/graph/graph.h"

namespace motley::engine::native {

// The lanes' gradients and their sum. Each lane leaves its gradient of a node's parameters and goes
// on; when it next comes by and all lanes have left theirs, it sums its own part of it, in lane
// order, so that the result does not depend on who came first. The lane that ends a node's last
// part announces it.
//
// Of a fully connected layer the lanes leave not a gradient but its factors, and the sum is one
// product over the whole batch: a gradient per lane would be as large as the layer, and slower to
// write and read than to compute.
class GradientSum {
 public:
  using OnBucket = std::function<void(std::int64_t offset, std::int64_t count)>;

  GradientSum(const graph::Graph& graph, Parameters& parameters, const Gemm& gemm, int lanes);

  // Before each step. `canonical` receives the sum over `samples`.
  void Begin(int lanes, std::int64_t samples, float* canonical, const OnBucket* on_bucket);

  // Where lane `lane` leaves the gradient of each parameter; null for those that are left as
  // factors. The first lane's canonical ones are written in place.
  std::span<float* const> Targets(int lane) const {
    return targets_[static_cast<std::size_t>(lane)];
  }
  // Where all lanes leave the factors, by parameter.
  std::span<const GradientFactors> factors() const { return factors_; }
  // Samples [begin, end) will not come.
  void SkipSamples(std::int64_t begin, std::int64_t end);

  // The lane's gradient of a node is complete. `contributes` is false for a lane that had no time
  // for a single sample: what its memory holds means nothing.
  void Leave(int lane, graph::NodeId node, bool contributes);
  // After all lanes have left everything: sums what is still to do of the lane's parts.
  void Finish(int lane);

 private:
  // What one lane is about.
  struct Lane {
    std::vector<AlignedFloats> memory;  // by parameter
    std::vector<graph::NodeId> left;    // in this order,
    std::size_t summed = 0;             // of which the lane has done its part
    std::atomic<bool> contributes = false;
  };

  bool Complete(graph::NodeId node) const;
  void SumPart(int lane, graph::NodeId node);
  void SumParameter(int index, int part);
  void SumRange(int index, std::int64_t begin, std::int64_t end);
  void Multiply(int index, int part) const;
  void Announce(graph::NodeId node);

  const graph::Graph& graph_;
  Parameters& parameters_;
  const Gemm& gemm_;
  std::vector<Lane> state_;
  std::vector<std::vector<float*>> targets_;       // [lane][parameter]
  std::vector<AlignedFloats> inputs_, gradients_;  // of factors, by parameter
  std::vector<GradientFactors> factors_;
  std::vector<std::atomic<int>> arrived_, summed_;  // lanes, by node
  int lanes_ = 0;
  std::int64_t samples_ = 0;
  float* canonical_ = nullptr;
  const OnBucket* on_bucket_ = nullptr;
  std::mutex bucket_mutex_;
};

}  // namespace motley::engine::native

#endif  // MOTLEY_ENGINE_NATIVE_GRADIENT_SUM_H_
