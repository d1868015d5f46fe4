#include "motley/engine/torch/torch_device.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <cblas.h>

#include <algorithm>
#include <new>
#include <string_view>
#include <utility>
#include <vector>

#include "motley/base/check.h"
#include "motley/base/clock.h"
#include "motley/engine/check_batch.h"
#include "motley/engine/native/native_device.h"
#include "motley/engine/torch/kind.h"
#include "motley/engine/torch/network.h"

namespace motley::engine::torch {
namespace {

using base::InvalidInput;
using base::Result;
using base::Status;
using base::Unavailable;

// An array of ours as a tensor, without a copy. from_blob takes no const; weights and buffers are
// only read.
at::Tensor View(std::span<const float> values) {
  return at::from_blob(const_cast<float*>(values.data()), {std::ssize(values)}, at::kFloat);
}

// The parts of a flat array that belong to each of the graph's tensors, without a copy.
std::vector<at::Tensor> Parts(const std::vector<graph::Tensor>& tensors, const at::Tensor& flat) {
  std::vector<at::Tensor> parts;
  for (const graph::Tensor& tensor : tensors) {
    parts.push_back(flat.narrow(0, tensor.offset, tensor.size).view(tensor.shape));
  }
  return parts;
}

// LibTorch's messages go on with where in its source they come from.
std::string FirstLine(std::string_view message) {
  return std::string(message.substr(0, message.find('\n')));
}

class TorchDevice final : public Device {
 public:
  TorchDevice(std::shared_ptr<const graph::Graph> graph, std::int64_t bn_batch, int threads,
              std::string kind, at::Device device)
      : graph_(std::move(graph)),
        bn_batch_(bn_batch),
        threads_(threads),
        kind_(std::move(kind)),
        device_(device) {}

  const graph::Graph& graph() const override { return *graph_; }
  std::string kind() const override { return kind_; }
  Result<StepResult> Step(const StepRequest& request) override;
  Result<StepResult> Forward(const ForwardRequest& request) override;

 private:
  // Batch norm over everything that this device gets.
  bool NormsTheWholeBatch() const { return graph_->has_batch_norm() && bn_batch_ == 0; }

  std::vector<Chunk> Cut(std::int64_t samples, bool whole) const;
  // Where a result is computed: in place on the CPU, in memory of its own on a GPU.
  at::Tensor Zeros(std::span<float> result) const;
  PassOptions Training(const StepRequest& request, const at::Tensor& gradient,
                       const at::Tensor& buffer_sums) const;
  StepResult Train(const StepRequest& request) const;
  StepResult Infer(const ForwardRequest& request) const;
  // Adds a chunk's samples to the result, and returns their loss for the way back.
  at::Tensor Score(const at::Tensor& logits, const data::Batch& batch, const Chunk& chunk,
                   StepResult& result) const;
  // The result of a step that was stopped before a single sample was done.
  StepResult Nothing(const StepRequest& request) const;
  // Turns what `work` throws into a Status.
  template <typename Work>
  Result<StepResult> Guarded(const Work& work) const;
  Status Failed(std::string_view message) const;
  void UseThreads() const;

  std::shared_ptr<const graph::Graph> graph_;
  std::int64_t bn_batch_;
  int threads_;
  std::string kind_;
  at::Device device_;
  base::RealClock clock_;
};

std::vector<Chunk> TorchDevice::Cut(std::int64_t samples, bool whole) const {
  // Enough to keep the device busy, and small enough for its memory and to stop at a deadline.
  const std::int64_t limit = device_.is_cpu() ? 64 : 256;
  const std::int64_t unit = std::max<std::int64_t>(graph_->has_batch_norm() ? bn_batch_ : 1, 1);
  const std::int64_t size = whole ? samples : std::max(limit / unit, std::int64_t{1}) * unit;
  std::vector<Chunk> chunks;
  for (std::int64_t begin = 0; begin < samples; begin += size) {
    chunks.push_back({begin, std::min(begin + size, samples)});
  }
  return chunks;
}

at::Tensor TorchDevice::Zeros(std::span<float> result) const {
  if (device_.is_cpu()) return View(result).zero_();
  return at::zeros({std::ssize(result)}, at::TensorOptions(at::kFloat).device(device_));
}

PassOptions TorchDevice::Training(const StepRequest& request, const at::Tensor& gradient,
                                  const at::Tensor& buffer_sums) const {
  PassOptions options{.device = device_,
                      .parameters = Parts(graph_->parameters(), View(request.weights).to(device_)),
                      .buffers = Parts(graph_->buffers(), buffer_sums),
                      .training = true,
                      .bn_batch = bn_batch_,
                      .seed = request.seed};
  // Autograd adds to a gradient that is there already, so the sum over the chunks comes by itself.
  const std::vector<at::Tensor> gradients = Parts(graph_->parameters(), gradient);
  for (std::size_t i = 0; i < gradients.size(); ++i) {
    options.parameters[i].requires_grad_(true).mutable_grad() = gradients[i];
  }
  const auto cancelled = [&request] { return request.cancel != nullptr && *request.cancel; };
  options.stop_forward = options.stop_backward = cancelled;
  if (NormsTheWholeBatch()) {
    // All samples are one chunk: this is the only place to notice the deadline.
    options.stop_forward = [this, &request, cancelled] {
      return cancelled() || clock_.Now() >= request.deadline;
    };
  }
  return options;
}

at::Tensor TorchDevice::Score(const at::Tensor& logits, const data::Batch& batch,
                              const Chunk& chunk, StepResult& result) const {
  std::int32_t* const labels = const_cast<std::int32_t*>(batch.labels.data()) + chunk.begin;
  const at::Tensor targets = at::from_blob(labels, {chunk.size()}, at::kInt).to(device_, at::kLong);
  // In double precision, like the other devices: the loss of a sure answer is a small difference.
  const at::Tensor loss = at::nll_loss(at::log_softmax(logits.to(at::kDouble), 1), targets,
                                       /*weight=*/{}, at::Reduction::Sum);
  result.loss_sum += loss.item<double>();
  // Not by argmax, because the first of equals is the answer, and NaN none.
  const at::Tensor host = logits.detach().cpu().contiguous();
  const std::int64_t classes = graph_->num_classes();
  for (std::int64_t n = 0; n < chunk.size(); ++n) {
    const float* const row = host.data_ptr<float>() + n * classes;
    if (std::max_element(row, row + classes) - row == labels[n]) ++result.correct;
  }
  result.samples_done = chunk.end;
  result.done = {{0, chunk.end}};
  return loss;
}

StepResult TorchDevice::Nothing(const StepRequest& request) const {
  std::fill(request.gradient.begin(), request.gradient.end(), 0.0F);
  std::fill(request.buffer_sums.begin(), request.buffer_sums.end(), 0.0F);
  if (request.on_bucket) request.on_bucket(0, graph_->parameter_count());
  return StepResult{};
}

StepResult TorchDevice::Train(const StepRequest& request) const {
  const double start = clock_.Now();
  const at::Tensor gradient = Zeros(request.gradient), buffer_sums = Zeros(request.buffer_sums);
  const PassOptions options = Training(request, gradient, buffer_sums);
  StepResult result;
  for (const Chunk& chunk : Cut(request.batch->size(), NormsTheWholeBatch())) {
    if (options.stop_backward()) throw Stopped{};
    if (clock_.Now() >= request.deadline) break;
    const at::Tensor logits = Logits(*graph_, options, *request.batch, chunk);
    const at::Tensor loss = Score(logits, *request.batch, chunk, result);
    if (loss.requires_grad()) loss.backward();
  }
  if (!device_.is_cpu()) {
    View(request.gradient).copy_(gradient);
    View(request.buffer_sums).copy_(buffer_sums);
  }
  result.seconds = clock_.Now() - start;
  if (request.on_bucket) request.on_bucket(0, graph_->parameter_count());
  if (request.on_final) request.on_final(0, graph_->parameter_count());
  return result;
}

StepResult TorchDevice::Infer(const ForwardRequest& request) const {
  const double start = clock_.Now();
  const at::NoGradGuard no_gradient;
  const PassOptions options{
      .device = device_,
      .parameters = Parts(graph_->parameters(), View(request.weights).to(device_)),
      .buffers = Parts(graph_->buffers(), View(request.buffers).to(device_))};
  const std::int64_t classes = graph_->num_classes();
  StepResult result;
  for (const Chunk& chunk : Cut(request.batch->size(), false)) {
    const at::Tensor logits = Logits(*graph_, options, *request.batch, chunk);
    Score(logits, *request.batch, chunk, result);
    if (request.logits.empty()) continue;
    const auto begin = static_cast<std::size_t>(chunk.begin * classes);
    const auto count = static_cast<std::size_t>(chunk.size() * classes);
    View(request.logits.subspan(begin, count)).copy_(logits.reshape({-1}));
  }
  result.seconds = clock_.Now() - start;
  return result;
}

Status TorchDevice::Failed(std::string_view message) const {
  // The kind of exception for this differs between CPU and GPU, and between versions.
  if (message.find("allocate") != std::string_view::npos) {
    return Unavailable("{} on {}: not enough memory for this batch: {}", graph_->name(), kind_,
                       FirstLine(message))
        .WithFix("use a smaller batch");
  }
  return base::Internal("{} on {}: {}", graph_->name(), kind_, FirstLine(message));
}

template <typename Work>
Result<StepResult> TorchDevice::Guarded(const Work& work) const {
  try {
    UseThreads();
    return work();
  } catch (const c10::Error& error) {
    return Failed(error.what_without_backtrace());
  } catch (const std::bad_alloc&) {
    return Failed("cannot allocate");
  } catch (const std::exception& error) {
    return Failed(error.what());
  } catch (...) {
    return Failed("an exception of an unknown kind");
  }
}

void TorchDevice::UseThreads() const {
  // Process-wide, and known to OpenMP by thread: asked for anew in every call, because another
  // device or another calling thread may have changed it. Setting it drops LibTorch's caches.
  if (at::get_num_threads() != threads_) at::set_num_threads(threads_);
  // OpenBLAS has a number of its own, also process-wide. It is never raised: the lanes of a native
  // device rely on 1.
  if (openblas_get_num_threads() > threads_) openblas_set_num_threads(threads_);
}

Result<StepResult> TorchDevice::Step(const StepRequest& request) {
  MOTLEY_RETURN_IF_ERROR(CheckBatch(*graph_, request.batch, request.weights));
  MOTLEY_CHECK(std::ssize(request.gradient) == graph_->parameter_count(),
               "the gradient has the size of the weights");
  MOTLEY_CHECK(std::ssize(request.buffer_sums) == graph_->buffer_count(),
               "the buffer sums have the size of the buffers");
  const auto cancelled = [&] { return request.cancel != nullptr && *request.cancel; };
  return Guarded([&]() -> Result<StepResult> {
    if (cancelled()) return base::Cancelled("the step was cancelled");
    try {
      return Train(request);
    } catch (const Stopped&) {
      if (cancelled()) return base::Cancelled("the step was cancelled");
      return Nothing(request);
    }
  });
}

Result<StepResult> TorchDevice::Forward(const ForwardRequest& request) {
  MOTLEY_RETURN_IF_ERROR(CheckBatch(*graph_, request.batch, request.weights));
  MOTLEY_CHECK(std::ssize(request.buffers) == graph_->buffer_count(),
               "{} buffers for a net with {}", request.buffers.size(), graph_->buffer_count());
  MOTLEY_CHECK(request.logits.empty() ||
                   std::ssize(request.logits) == request.batch->size() * graph_->num_classes(),
               "logits have one number per sample and class");
  return Guarded([&] { return Infer(request); });
}

Result<at::Device> FindDevice(const std::string& kind) {
  MOTLEY_ASSIGN_OR_RETURN(const Kind parsed, ParseKind(kind));
  if (!parsed.cuda) return at::Device(at::kCPU);
  const auto gpus = static_cast<int>(at::getNumGPUs());
  if (gpus == 0) {
    return Unavailable("{}: LibTorch sees no GPU on this machine", kind)
        .WithFix("use torch:cpu, or build with a LibTorch for CUDA and check the driver");
  }
  if (*parsed.cuda >= gpus) {
    return Unavailable("{}: this machine has {} GPU{}, and counting starts at 0", kind, gpus,
                       gpus == 1 ? "" : "s")
        .WithFix("use torch:cuda:" + std::to_string(gpus - 1));
  }
  // Process-wide: the same gradient as other devices, to single precision, and the same twice.
  at::globalContext().setAllowTF32CuDNN(false);
  at::globalContext().setAllowTF32CuBLAS(false);
  at::globalContext().setDeterministicCuDNN(true);
  return at::Device(at::kCUDA, static_cast<at::DeviceIndex>(*parsed.cuda));
}

}  // namespace

Result<std::unique_ptr<Device>> MakeTorchDevice(std::shared_ptr<const graph::Graph> graph,
                                                const DeviceOptions& options,
                                                const std::string& kind) {
  constexpr int kMaxThreads = 1024;
  if (options.threads < 0 || options.threads > kMaxThreads) {
    return InvalidInput("a device cannot have {} threads", options.threads)
        .WithFix("leave threads out to use every core");
  }
  if (options.bn_batch < 0) return InvalidInput("bn_batch cannot be {}", options.bn_batch);
  if (graph->is_body() || graph->is_head()) {
    return InvalidInput("{}: LibTorch devices compute whole nets only", graph->name())
        .WithFix("leave cluster.merged_head out, or use native devices");
  }
  try {
    MOTLEY_ASSIGN_OR_RETURN(const at::Device device, FindDevice(kind));
    const int threads = options.threads == 0 ? native::UsableCores() : options.threads;
    return std::unique_ptr<Device>(
        std::make_unique<TorchDevice>(std::move(graph), options.bn_batch, threads, kind, device));
  } catch (const std::exception& error) {
    return Unavailable("{} cannot start: {}", kind, FirstLine(error.what()));
  }
}

}  // namespace motley::engine::torch
