#ifndef MOTLEY_ENGINE_NATIVE_KERNEL_H_
#define MOTLEY_ENGINE_NATIVE_KERNEL_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <oneapi/dnnl/dnnl.hpp>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "motley/data/batch.h"
#include "motley/engine/device.h"
#include "motley/engine/native/gemm.h"
#include "motley/engine/native/lanes.h"
#include "motley/engine/native/layout.h"
#include "motley/engine/native/parameters.h"
#include "motley/graph/graph.h"

namespace motley::engine::native {

// What lanes leave for each other at one batch norm. One slot per lane; read by all after the
// barrier.
struct BatchNormMeeting {
  // [lane]: per channel mean, then sum of squared deviations (forward), or the two sums of the
  // backward pass. `counts`: elements per channel.
  std::vector<std::vector<double>> forward, backward;
  std::vector<std::int64_t> counts;
};

// Thrown by a lane that notices, in the middle of a pass, that its result is not wanted.
struct Stopped {};

// One lane's view of the step that is running. Kernels read what they need from it.
struct LaneRun {
  int lane = 0, lanes = 1;
  const float* weights = nullptr;  // canonical
  const float* buffers = nullptr;  // canonical; inference only
  const float* images = nullptr;   // this chunk's samples
  const std::int32_t* labels = nullptr;
  const data::SampleId* ids = nullptr;
  std::uint64_t seed = 0, epoch = 0;
  std::int64_t first_sample = 0;  // of this chunk, in the batch
  bool accumulate = false;        // gradients add to those of the lane's earlier chunks

  // Where this lane leaves the gradient of each parameter, in the layout of Parameters.
  std::span<float* const> gradients;
  std::span<const GradientFactors> factors;  // or its factors, shared by all lanes
  float* buffer_sums = nullptr;              // this lane's
  // Batch norm over all lanes; null when each chunk is a batch of its own.
  Barrier* barrier = nullptr;
  std::span<BatchNormMeeting> meetings;  // by batch norm, in node order

  // Asked before every layer of the forward and of the backward pass; where it is true, the pass
  // ends with Stopped.
  std::function<bool()> stop_forward, stop_backward;
  const std::function<bool(const Crossing&)>* on_boundary = nullptr;  // of a body,
  const std::atomic<bool>* given_up = nullptr;  // and whether another lane has failed
  float* input_gradient = nullptr;              // of a head; this chunk's

  // Results, added to.
  double loss_sum = 0.0;
  std::int64_t correct = 0;
};

// Where a kernel finds its operands. Pointers stay valid until the next Bind.
struct Bindings {
  std::vector<const float*> in;
  float* out = nullptr;
  // Null where no gradient is wanted. `accumulate[i]`: add to what is there instead of replacing.
  std::vector<float*> in_grad;
  std::vector<bool> accumulate;
  float* out_grad = nullptr;   // may be overwritten in Backward
  float* workspace = nullptr;  // kept from forward to backward
  float* scratch = nullptr;    // for the duration of one call
};

// What a kernel asks of the memory plan.
struct KernelNeeds {
  bool input_in_backward = false;  // input 0
  bool output_in_backward = false;
  // Output may share memory with input 0, and their gradients likewise.
  bool in_place = false;
  bool in_place_gradient = false;  // only their gradients
  std::int64_t workspace_floats = 0;
  std::int64_t scratch_floats = 0;
};

// One operator, compiled for one lane's n samples. Forward, then (in training) Backward, on the
// bound memory. A kernel keeps no state of its own between the two but what lies in its workspace.
class Kernel {
 public:
  virtual ~Kernel() = default;
  virtual KernelNeeds needs() const = 0;
  virtual void Bind(const Bindings& bindings) { b_ = bindings; }
  virtual void Forward(LaneRun& run) = 0;
  virtual void Backward(LaneRun& run) = 0;

 protected:
  Bindings b_;
};

// What kernels are made from.
struct KernelContext {
  const graph::Graph& graph;
  graph::NodeId id = 0;
  bool training = true;
  std::vector<Layout> in;
  Layout out;
  std::vector<bool> wants_gradient;  // of each input
  // The ReLU that the kernel computes with its own operator; none where there is none.
  std::optional<float> relu_ceiling;
  Parameters& parameters;
  const Gemm& gemm;
  dnnl::engine engine;

  const graph::Node& node() const { return graph.node(id); }
};

// dst += src
void AddTo(float* dst, const float* src, std::int64_t count);

}  // namespace motley::engine::native

#endif  // MOTLEY_ENGINE_NATIVE_KERNEL_H_
