#ifndef MOTLEY_ENGINE_DEVICE_H_
#define MOTLEY_ENGINE_DEVICE_H_

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <limits>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "motley/base/status.h"
#include "motley/data/batch.h"
#include "motley/graph/graph.h"

namespace motley::engine {

// What has come to the end of a body (graph::Split), and the gradient that the rest of the net has
// for it.
struct Crossing {
  std::int64_t begin = 0, end = 0;  // samples of the batch
  std::span<const float> activations;
  std::span<float> gradient;                    // to be filled
  const std::atomic<bool>* given_up = nullptr;  // becomes true when another thread cannot go on
};

// What a device is asked to do in one step. All spans are borrowed for the duration of the call.
struct StepRequest {
  std::span<const float> weights;  // canonical order and layout (graph::Graph)
  const data::Batch* batch = nullptr;
  std::uint64_t seed = 0;
  // In seconds of the device's clock; at the deadline the device returns what it has finished.
  double deadline = std::numeric_limits<double>::infinity();
  // Becomes true when nobody wants the result any more.
  const std::atomic<bool>* cancel = nullptr;
  // Called by each of the device's threads again and again between two parts of its work, if
  // Device::pauses(): the time to sleep, when the device is to look slower.
  std::function<void()> on_pause;
  // Announces that gradient[offset, offset + count) is final while the rest is still being
  // computed. Called from any of the device's threads, at most once per element, not concurrently.
  // Before the deadline only when the step will not stop at it any more.
  std::function<void(std::int64_t offset, std::int64_t count)> on_bucket;

  // Called when gradient[offset, offset + count) is final and the step reads these weights no more:
  // the time to update them, in place, while the gradient is in the caches. Called from any of the
  // device's threads, also concurrently, once per element. Only without deadline and cancel,
  // because the sum is then over all samples, unless the step fails.
  std::function<void(std::int64_t offset, std::int64_t count)> on_final;

  // Of a body only: gets the gradients from whoever has the head. Called from any of the device's
  // threads, also concurrently, each sample once; false: the step is given up. There is no deadline
  // then, because others wait for these samples.
  std::function<bool(const Crossing&)> on_boundary;

  // Results, overwritten. Sums over samples, never means.
  std::span<float> gradient;     // parameter_count
  std::span<float> buffer_sums;  // buffer_count; sum over samples of the statistics of their batch
  std::span<float> input_gradient;  // of a head only: [n][input], of each sample
};

struct StepResult {
  double loss_sum = 0.0;
  std::int64_t correct = 0;       // samples whose largest logit is their label's
  std::int64_t samples_done = 0;  // how many samples of the batch are in the sums,
  std::vector<std::pair<std::int64_t, std::int64_t>> done;  // and which: sorted ranges [begin, end)
  double seconds = 0.0;                                     // compute time
  // Of the processor, all threads of the device together; 0 where it cannot be told. Less than
  // seconds x threads when others use the processor too, or threads waited.
  double cpu_seconds = 0.0;
};

// Forward only, as a trained net is used: running statistics, no dropout. A body gives its output
// as logits.
struct ForwardRequest {
  std::span<const float> weights;
  std::span<const float> buffers;
  const data::Batch* batch = nullptr;
  std::span<float> logits;  // [n][classes]; may be empty
};

// What a device spent on one layer (or several that it computes as one), over all lanes and steps.
struct LayerTime {
  std::string layer, kernel;
  struct Pass {
    double seconds = 0.0;
    double flops = 0.0;  // of the convolution or GEMM as it stands in the graph
    double bytes = 0.0;  // operands and results, each once: what a perfect cache would move
  };
  Pass forward, backward;
};

// The kernel of one layer, and what the candidates took for a forward and backward pass over a few
// samples. No times where the kernel was given.
struct KernelReason {
  std::string layer, kernel;
  std::map<std::string, double> seconds;
};

// A black box that turns (weights, samples) into a gradient. Everything above this seam treats it
// so; an engine may keep whatever layouts it likes inside.
//
// Gradients are sums over samples. Batch norm uses the statistics of the whole batch it is given,
// or of `bn_batch` consecutive samples (DeviceOptions). Dropout is keyed by (seed, epoch, sample,
// node), so that it does not depend on who computes a sample.
//
// Thread safety: one call at a time.
class Device {
 public:
  virtual ~Device() = default;

  virtual const graph::Graph& graph() const = 0;
  // "native", "reference", "torch:cpu", …
  virtual std::string kind() const = 0;

  // Whether a step calls on_pause, and tells the processor's seconds.
  virtual bool pauses() const { return false; }

  virtual base::Result<StepResult> Step(const StepRequest& request) = 0;
  virtual base::Result<StepResult> Forward(const ForwardRequest& request) = 0;

  // Choices that change rounding (which kernel computes a layer), as readable strings. A device
  // that is given the choices of another on the same machine computes bit for bit the same.
  virtual std::map<std::string, std::string> kernel_choices() const { return {}; }

  // Why these: the measurements behind them.
  virtual std::vector<KernelReason> kernel_reasons() const { return {}; }

  // In the order of the net; empty unless DeviceOptions asked for it.
  virtual std::vector<LayerTime> profile() const { return {}; }
};

struct DeviceOptions {
  int threads = 0;            // lanes; 0: one for every core that this process may use
  std::vector<int> cores;     // instead: one lane on each of these
  std::int64_t bn_batch = 0;  // 0: statistics over the whole batch of a step
  std::map<std::string, std::string> kernel_choices;  // used instead of measuring
  // A file of measurements to use and add to; empty: measure, and forget.
  std::filesystem::path kernel_cache;
  bool profile = false;  // time every layer
};

}  // namespace motley::engine

#endif  // MOTLEY_ENGINE_DEVICE_H_
