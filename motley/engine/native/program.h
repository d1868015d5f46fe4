#ifndef MOTLEY_ENGINE_NATIVE_PROGRAM_H_
#define MOTLEY_ENGINE_NATIVE_PROGRAM_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "motley/engine/device.h"
#include "motley/engine/native/choose.h"
#include "motley/engine/native/fusion.h"
#include "motley/engine/native/kernel.h"
#include "motley/engine/native/memory_plan.h"
#include "motley/graph/graph.h"

namespace motley::engine::native {

// A network compiled for one lane and n samples: a list of kernels with every byte of memory
// planned ahead. Programs of one lane share its memory, because only one runs at a time.
class Program {
 public:
  struct Options {
    std::int64_t samples = 0;
    bool training = true;
    bool profile = false;
  };

  // `weights`: canonical, for measuring kernels that are not chosen yet.
  Program(const graph::Graph& graph, const Options& options, ConvChooser& chooser,
          Parameters& parameters, const Gemm& gemm, const dnnl::engine& engine,
          const float* weights);

  std::int64_t arena_floats() const { return arena_floats_; }
  // Places the program in memory of at least arena_floats; quick when nothing has changed.
  void Bind(float* arena);
  bool IsBound(const float* arena) const { return arena_ != nullptr && arena == arena_; }

  // One pass over the samples of `run`; requires Bind. Throws Stopped where `run` wants to end. In
  // training the backward pass follows, and on_node(id) is called when the lane's gradient of a
  // node's parameters is complete.
  void Run(LaneRun& run, const std::function<void(graph::NodeId)>& on_node);

  // Adds what the steps have taken so far to `times`, one entry per step of the program.
  void AddProfile(std::vector<LayerTime>& times) const;

  // [n][classes], plain; valid after a forward pass until the next Run of the lane.
  const float* logits() const { return logits_; }

 private:
  struct Value {
    Layout layout;
    bool wants_gradient = false;
    int producer = -1;  // step; -1: the input
    int consumers = 0;
    // The value whose memory this one shares; itself when none.
    int root = 0, gradient_root = 0;
    int data = -1, gradient = -1;  // buffers of the roots
  };
  struct Step {
    graph::NodeId node = 0;  // the first that it computes
    std::optional<float> relu_ceiling;
    bool convert = false;
    std::vector<int> in;
    std::vector<Layout> in_layouts;
    int out = 0;
    std::unique_ptr<Kernel> kernel;
    std::string label;
    std::vector<bool> accumulate;
    int workspace = -1;
    bool reached = true;  // whether the loss depends on it
    bool has_parameters = false;
    double forward_seconds = 0.0, backward_seconds = 0.0;  // when profiling
    std::int64_t runs = 0;
  };

  // Compilation, in this order.
  void DraftSteps(ConvChooser& chooser, const float* weights);
  void MakeKernels(ConvChooser& chooser, const float* weights);
  void ShareMemory();
  void OrderGradients();
  void PlanBuffers();

  int Convert(int value, std::int64_t inner);
  void Draft(const Fusion& nodes, std::vector<int> in, std::int64_t in_inner,
             std::int64_t out_inner);
  void DraftNodes(const Fusion& nodes, ConvChooser& chooser, const float* weights);
  std::unique_ptr<Kernel> MakeKernel(const KernelContext& context, Step& step, ConvChooser& chooser,
                                     const float* weights);
  int AddBuffer(std::int64_t floats, int first, int last);
  float* At(int buffer) const;
  void Forward(LaneRun& run);
  // Calls work, and adds the seconds that it took when the program is profiled.
  template <typename Work>
  void Timed(double& seconds, const Work& work) const;
  void Backward(LaneRun& run, const std::function<void(graph::NodeId)>& on_node);

  const graph::Graph& graph_;
  Options options_;
  Parameters& parameters_;
  const Gemm& gemm_;
  dnnl::engine engine_;
  std::vector<Value> values_;
  std::vector<int> value_of_;  // by node
  std::vector<Step> steps_;
  std::vector<Buffer> buffers_;
  int scratch_ = -1;
  std::int64_t arena_floats_ = 0;
  float* arena_ = nullptr;
  const float* logits_ = nullptr;
};

}  // namespace motley::engine::native

#endif  // MOTLEY_ENGINE_NATIVE_PROGRAM_H_
