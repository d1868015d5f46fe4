#ifndef MOTLEY_ENGINE_TORCH_NETWORK_H_
#define MOTLEY_ENGINE_TORCH_NETWORK_H_

#include <ATen/ATen.h>

#include <cstdint>
#include <exception>
#include <functional>
#include <vector>

#include "motley/data/batch.h"
#include "motley/graph/graph.h"

namespace motley::engine::torch {

// Thrown out of a pass that was told to stop.
struct Stopped : std::exception {
  const char* what() const noexcept override { return "stopped"; }
};

// The samples [begin, end) of a batch.
struct Chunk {
  std::int64_t begin = 0, end = 0;
  std::int64_t size() const { return end - begin; }
};

// What the passes over all chunks of one step have in common.
struct PassOptions {
  at::Device device = at::kCPU;
  // One for each of the graph's, with their shapes.
  std::vector<at::Tensor> parameters;
  // Likewise. In training the sums over the samples of the statistics of their batch, to which a
  // pass adds; otherwise the running statistics, which it reads.
  std::vector<at::Tensor> buffers;
  bool training = false;
  std::int64_t bn_batch = 0;  // 0: statistics over the whole chunk
  std::uint64_t seed = 0;     // of dropout
  // Asked before every node; true ends the pass. May be empty.
  std::function<bool()> stop_forward, stop_backward;
};

// The logits [n][classes] of a chunk, by LibTorch's operators. Where a parameter requires a
// gradient, autograd has recorded the way back to it; `options` must live until it was gone.
//
// Throws Stopped, here or from backward(), and whatever LibTorch throws.
at::Tensor Logits(const graph::Graph& graph, const PassOptions& options, const data::Batch& batch,
                  const Chunk& chunk);

}  // namespace motley::engine::torch

#endif  // MOTLEY_ENGINE_TORCH_NETWORK_H_
