#include "motley/engine/native/native_device.h"

#include <sched.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <list>
#include <optional>

#include "motley/base/clock.h"
#include "motley/engine/check_batch.h"
#include "motley/engine/native/choose.h"
#include "motley/engine/native/gradient_sum.h"
#include "motley/engine/native/lanes.h"
#include "motley/engine/native/program.h"

namespace motley::engine::native {
namespace {

using base::InvalidInput;
using base::Result;
using base::Status;

// Among the kernel choices, which are by node otherwise; no node has an empty name.
constexpr char kGemmChoice[] = "";

// A part of the batch that one lane works on in one pass.
struct Chunk {
  std::int64_t begin = 0, end = 0;
  std::int64_t size() const { return end - begin; }
};

// [begin, end) in pieces of nearly equal size, none above `limit`.
std::vector<Chunk> Cut(std::int64_t begin, std::int64_t end, std::int64_t limit) {
  const std::int64_t count = (end - begin + limit - 1) / limit;
  std::vector<Chunk> chunks;
  for (std::int64_t i = 0; i < count; ++i) {
    chunks.push_back({begin + (end - begin) * i / count, begin + (end - begin) * (i + 1) / count});
  }
  return chunks;
}

class NativeDevice final : public Device {
 public:
  NativeDevice(std::shared_ptr<const graph::Graph> graph, const DeviceOptions& options, int lanes)
      : graph_(std::move(graph)),
        bn_batch_(options.bn_batch),
        profile_(options.profile),
        engine_(dnnl::engine::kind::cpu, 0),
        parameters_(*graph_, engine_),
        pool_(lanes, options.cores),
        gemm_(MakeGemm(options.kernel_choices)),
        cache_(options.kernel_cache),
        chooser_(*graph_, engine_, gemm_, options.kernel_choices, cache_),
        lanes_(static_cast<std::size_t>(lanes)),
        gradients_(*graph_, parameters_, gemm_, lanes) {
    const auto batch_norms =
        std::count_if(graph_->nodes().begin(), graph_->nodes().end(),
                      [](const graph::Node& node) { return node.op == graph::Op::kBatchNorm; });
    meetings_.resize(static_cast<std::size_t>(batch_norms));
    for (BatchNormMeeting& meeting : meetings_) {
      meeting.forward.resize(lanes_.size());
      meeting.backward.resize(lanes_.size());
      meeting.counts.resize(lanes_.size());
    }
  }

  const graph::Graph& graph() const override { return *graph_; }
  std::string kind() const override { return "native"; }
  Result<StepResult> Step(const StepRequest& request) override;
  Result<StepResult> Forward(const ForwardRequest& request) override;
  std::map<std::string, std::string> kernel_choices() const override {
    auto choices = chooser_.choices();
    choices[kGemmChoice] = gemm_.name();
    return choices;
  }
  std::vector<KernelReason> kernel_reasons() const override { return chooser_.reasons(); }
  std::vector<LayerTime> profile() const override;

 private:
  // One lane's memory and programs. Programs for the sizes used last are kept.
  struct Lane {
    AlignedFloats arena;
    struct Entry {
      std::int64_t samples = 0;
      bool training = false;
      std::unique_ptr<Program> program;
    };
    std::list<Entry> programs;  // the most recently used first
    std::vector<float> buffer_sums;
    std::vector<Chunk> chunks;
    LaneRun run;
    std::size_t done = 0;  // chunks
  };

  // Measured on a lane's thread, where the libraries are set to one thread.
  Gemm MakeGemm(const std::map<std::string, std::string>& given) {
    const auto found = given.find(kGemmChoice);
    std::optional<Gemm> gemm;
    pool_.Run(1, [&](int) { gemm.emplace(found == given.end() ? "" : found->second); });
    return *gemm;
  }

  // Batch norm over everything that this device gets: the lanes meet at each of them.
  bool LanesMeet() const { return graph_->has_batch_norm() && bn_batch_ == 0; }

  int AssignChunks(std::int64_t samples, bool training, bool may_stop);
  // Makes and binds every program that the chunks need, so that the lanes can start at once.
  Status Compile(int active, bool training, const float* weights);
  bool IsCompiled(int active, bool training) const;
  Program& Find(Lane& lane, std::int64_t samples, bool training, const float* weights);
  // Runs work(lane) on the lanes; false when they stopped before the end.
  Result<bool> RunLanes(int active, Barrier& barrier, const std::function<void(int)>& work);
  // The result of a step that did not compute a single sample.
  StepResult Nothing(const StepRequest& request) const;
  void RunTraining(int lane, int active, const StepRequest& request, Barrier& barrier);
  void RunInference(int lane, int active, const ForwardRequest& request, Barrier& barrier);
  void PointAt(LaneRun& run, const data::Batch& batch, std::int64_t begin) const;
  StepResult Collect(int active, double seconds) const;

  std::shared_ptr<const graph::Graph> graph_;
  std::int64_t bn_batch_;
  bool profile_;
  dnnl::engine engine_;
  Parameters parameters_;
  LanePool pool_;
  Gemm gemm_;
  KernelCache cache_;
  ConvChooser chooser_;
  std::vector<Lane> lanes_;
  GradientSum gradients_;
  std::vector<BatchNormMeeting> meetings_;
  std::atomic<bool> given_up_{false};  // a lane of this step has failed or stopped
  base::RealClock clock_;
};

// Gives each lane an equal, contiguous part, cut into chunks. Returns how many lanes have one.
int NativeDevice::AssignChunks(std::int64_t samples, bool training, bool may_stop) {
  // Enough for full speed: larger chunks only cost memory. A step with a deadline is cut into a few
  // more, because it can stop only between two of them.
  constexpr std::int64_t kChunk = 64, kLeast = 16, kStops = 4;
  const bool virtual_batches = training && graph_->has_batch_norm() && bn_batch_ > 0;
  const std::int64_t unit = virtual_batches ? bn_batch_ : 1;
  const std::int64_t units = (samples + unit - 1) / unit;
  const auto active = std::min<std::int64_t>(static_cast<std::int64_t>(lanes_.size()), units);
  for (std::int64_t lane = 0; lane < active; ++lane) {
    const std::int64_t begin = units * lane / active * unit;
    const std::int64_t end = std::min(units * (lane + 1) / active * unit, samples);
    std::vector<Chunk>& chunks = lanes_[static_cast<std::size_t>(lane)].chunks;
    if (virtual_batches) {
      chunks.clear();
      for (std::int64_t b = begin; b < end; b += unit) {
        chunks.push_back({b, std::min(b + unit, end)});
      }
    } else {
      const std::int64_t piece =
          may_stop ? std::clamp((end - begin + kStops - 1) / kStops, kLeast, kChunk) : kChunk;
      // The head answers when it has all samples, so a lane cannot keep some for later.
      const bool whole = training && (LanesMeet() || graph_->is_body());
      chunks = Cut(begin, end, whole ? end - begin : piece);
    }
  }
  return static_cast<int>(active);
}

Program& NativeDevice::Find(Lane& lane, std::int64_t samples, bool training, const float* weights) {
  // An epoch uses a few sizes (whole and last batch, training and test, two chunk sizes each).
  constexpr std::size_t kKept = 8;
  const auto found =
      std::find_if(lane.programs.begin(), lane.programs.end(), [&](const Lane::Entry& entry) {
        return entry.samples == samples && entry.training == training;
      });
  if (found != lane.programs.end()) {
    lane.programs.splice(lane.programs.begin(), lane.programs, found);
  } else {
    auto program = std::make_unique<Program>(
        *graph_, Program::Options{.samples = samples, .training = training, .profile = profile_},
        chooser_, parameters_, gemm_, engine_, weights);
    lane.programs.push_front({samples, training, std::move(program)});
    if (lane.programs.size() > kKept) lane.programs.pop_back();
  }
  return *lane.programs.front().program;
}

bool NativeDevice::IsCompiled(int active, bool training) const {
  for (std::size_t l = 0; l < static_cast<std::size_t>(active); ++l) {
    const Lane& lane = lanes_[l];
    for (const Chunk& chunk : lane.chunks) {
      const bool found =
          std::any_of(lane.programs.begin(), lane.programs.end(), [&](const Lane::Entry& entry) {
            return entry.samples == chunk.size() && entry.training == training &&
                   entry.program->IsBound(lane.arena.data());
          });
      if (!found) return false;
    }
  }
  return true;
}

Status NativeDevice::Compile(int active, bool training, const float* weights) {
  // As it is in every step but the first of its size: no need to wake a lane.
  if (IsCompiled(active, training)) return {};
  Status status;
  // On a lane's thread, where the libraries are set to one thread.
  pool_.Run(1, [&](int) {
    try {
      for (int l = 0; l < active; ++l) {
        Lane& lane = lanes_[static_cast<std::size_t>(l)];
        std::int64_t floats = lane.arena.size();
        for (const Chunk& chunk : lane.chunks) {
          floats = std::max(floats, Find(lane, chunk.size(), training, weights).arena_floats());
        }
        if (floats > lane.arena.size()) lane.arena.Reset(floats);
        for (const Chunk& chunk : lane.chunks) {
          Find(lane, chunk.size(), training, weights).Bind(lane.arena.data());
        }
      }
      cache_.Save();
    } catch (const dnnl::error& error) {
      status = base::Internal("{}: oneDNN cannot compile it: {}", graph_->name(), error.what());
    } catch (const std::bad_alloc&) {
      status = base::Unavailable("{}: not enough memory for this batch", graph_->name())
                   .WithFix("use a smaller batch");
    } catch (const std::exception& error) {
      status = base::Internal("{}: cannot compile it: {}", graph_->name(), error.what());
    }
  });
  return status;
}

std::vector<LayerTime> NativeDevice::profile() const {
  std::vector<LayerTime> times;
  if (!profile_) return times;
  for (const Lane& lane : lanes_) {
    for (const Lane::Entry& entry : lane.programs) {
      if (entry.training) entry.program->AddProfile(times);
    }
  }
  return times;
}

Result<bool> NativeDevice::RunLanes(int active, Barrier& barrier,
                                    const std::function<void(int)>& work) {
  given_up_ = false;
  try {
    pool_.Run(active, [&](int lane) {
      try {
        work(lane);
      } catch (...) {
        given_up_ = true;
        barrier.Abandon();
        throw;
      }
    });
  } catch (const Stopped&) {
    return false;
  } catch (const std::bad_alloc&) {
    return base::Unavailable("{}: not enough memory for this batch", graph_->name())
        .WithFix("use a smaller batch");
  } catch (const std::exception& error) {
    return base::Internal("{}: a lane failed: {}", graph_->name(), error.what());
  }
  return true;
}

StepResult NativeDevice::Nothing(const StepRequest& request) const {
  std::fill(request.gradient.begin(), request.gradient.end(), 0.0F);
  std::fill(request.buffer_sums.begin(), request.buffer_sums.end(), 0.0F);
  if (request.on_bucket) request.on_bucket(0, graph_->parameter_count());
  return StepResult{};
}

void NativeDevice::PointAt(LaneRun& run, const data::Batch& batch, std::int64_t begin) const {
  run.images = batch.images.data() + begin * graph::Count(graph_->input_shape());
  run.labels = batch.labels.data() + begin;
  run.ids = batch.ids.data() + begin;
}

void NativeDevice::RunTraining(int lane, int active, const StepRequest& request, Barrier& barrier) {
  Lane& own = lanes_[static_cast<std::size_t>(lane)];
  parameters_.Refresh(request.weights.data(), true, lane, active);
  barrier.Wait();

  own.buffer_sums.assign(static_cast<std::size_t>(graph_->buffer_count()), 0.0F);
  own.done = 0;
  LaneRun& run = own.run;
  run = {};
  run.lane = lane;
  run.lanes = active;
  run.weights = request.weights.data();
  run.seed = request.seed;
  run.epoch = request.batch->epoch;
  run.gradients = gradients_.Targets(lane);
  run.factors = gradients_.factors();
  run.buffer_sums = own.buffer_sums.data();
  run.barrier = LanesMeet() ? &barrier : nullptr;
  run.meetings = meetings_;
  const auto cancelled = [&] {
    return request.cancel != nullptr && request.cancel->load(std::memory_order_relaxed);
  };
  const auto must_stop = [&, cancelled] { return cancelled() || clock_.Now() >= request.deadline; };
  // A batch norm over everything leaves nothing to return at a deadline but all or nothing. Once
  // the backward pass has begun, parts of the gradient may have been announced.
  run.stop_forward = LanesMeet() ? std::function<bool()>(must_stop) : cancelled;
  run.stop_backward = cancelled;
  run.on_boundary = &request.on_boundary;
  run.given_up = &given_up_;
  bool announced = false;
  for (const Chunk& chunk : own.chunks) {
    // Lanes that meet must go through together.
    if (!LanesMeet() && must_stop()) break;
    announced = own.done + 1 == own.chunks.size();
    PointAt(run, *request.batch, chunk.begin);
    run.first_sample = chunk.begin;
    if (graph_->is_head()) {
      run.input_gradient =
          request.input_gradient.data() + chunk.begin * graph::Count(graph_->input_shape());
    }
    Find(own, chunk.size(), true, nullptr).Run(run, [&](graph::NodeId node) {
      if (announced) gradients_.Leave(lane, node, true);
    });
    run.accumulate = true;
    ++own.done;
  }
  if (!announced) {
    if (own.done < own.chunks.size()) {
      gradients_.SkipSamples(own.chunks[own.done].begin, own.chunks.back().end);
    }
    for (graph::NodeId node = graph_->size(); node-- > 0;) {
      if (!graph_->parameters_of(node).empty()) gradients_.Leave(lane, node, own.done > 0);
    }
  }
  barrier.Wait();
  gradients_.Finish(lane);
}

StepResult NativeDevice::Collect(int active, double seconds) const {
  StepResult result;
  result.seconds = seconds;
  result.cpu_seconds = pool_.cpu_seconds();
  for (std::size_t l = 0; l < static_cast<std::size_t>(active); ++l) {
    const Lane& lane = lanes_[l];
    result.loss_sum += lane.run.loss_sum;
    result.correct += lane.run.correct;
    for (std::size_t c = 0; c < lane.done; ++c) {
      result.samples_done += lane.chunks[c].size();
      if (!result.done.empty() && result.done.back().second == lane.chunks[c].begin) {
        result.done.back().second = lane.chunks[c].end;
      } else {
        result.done.emplace_back(lane.chunks[c].begin, lane.chunks[c].end);
      }
    }
  }
  return result;
}

Result<StepResult> NativeDevice::Step(const StepRequest& request) {
  MOTLEY_RETURN_IF_ERROR(CheckBatch(*graph_, request.batch, request.weights));
  MOTLEY_CHECK(static_cast<std::int64_t>(request.gradient.size()) == graph_->parameter_count(),
               "the gradient has the size of the weights");
  MOTLEY_CHECK(static_cast<std::int64_t>(request.buffer_sums.size()) == graph_->buffer_count(),
               "the buffer sums have the size of the buffers");
  MOTLEY_CHECK(!graph_->is_head() || request.input_gradient.size() == request.batch->images.size(),
               "the input's gradient has the size of the input");
  MOTLEY_CHECK(!graph_->is_body() || (request.on_boundary && !std::isfinite(request.deadline)),
               "a body needs to know who has the head, and has no deadline");
  const auto cancelled = [&] { return request.cancel != nullptr && request.cancel->load(); };
  if (cancelled()) return base::Cancelled("the step was cancelled");
  std::fill(request.buffer_sums.begin(), request.buffer_sums.end(), 0.0F);
  if (request.batch->size() == 0 || clock_.Now() >= request.deadline) return Nothing(request);
  const int active = AssignChunks(request.batch->size(), true, std::isfinite(request.deadline));
  MOTLEY_RETURN_IF_ERROR(Compile(active, true, request.weights.data()));

  try {
    gradients_.Begin(active, request.batch->size(), request.gradient.data(), &request.on_bucket);
  } catch (const std::bad_alloc&) {
    return base::Unavailable("{}: not enough memory for the gradients of {} lanes", graph_->name(),
                             active)
        .WithFix("use fewer threads");
  }
  const double begin = clock_.Now();
  Barrier barrier(active);
  MOTLEY_ASSIGN_OR_RETURN(const bool finished, RunLanes(active, barrier, [&](int lane) {
                            RunTraining(lane, active, request, barrier);
                          }));
  if (cancelled()) return base::Cancelled("the step was cancelled");
  if (!finished) return Nothing(request);
  for (std::size_t l = 0; l < static_cast<std::size_t>(active); ++l) {
    AddTo(request.buffer_sums.data(), lanes_[l].buffer_sums.data(), graph_->buffer_count());
  }
  return Collect(active, clock_.Now() - begin);
}

void NativeDevice::RunInference(int lane, int active, const ForwardRequest& request,
                                Barrier& barrier) {
  Lane& own = lanes_[static_cast<std::size_t>(lane)];
  parameters_.Refresh(request.weights.data(), false, lane, active);
  barrier.Wait();
  own.done = 0;
  own.run = {};
  own.run.weights = request.weights.data();
  own.run.buffers = request.buffers.data();
  for (const Chunk& chunk : own.chunks) {
    PointAt(own.run, *request.batch, chunk.begin);
    Program& program = Find(own, chunk.size(), false, nullptr);
    program.Run(own.run, {});
    if (!request.logits.empty()) {
      const std::int64_t classes = graph_->num_classes();
      std::copy_n(program.logits(), chunk.size() * classes,
                  request.logits.data() + chunk.begin * classes);
    }
    ++own.done;
  }
}

Result<StepResult> NativeDevice::Forward(const ForwardRequest& request) {
  MOTLEY_RETURN_IF_ERROR(CheckBatch(*graph_, request.batch, request.weights));
  MOTLEY_CHECK(static_cast<std::int64_t>(request.buffers.size()) == graph_->buffer_count(),
               "{} buffers for a net with {}", request.buffers.size(), graph_->buffer_count());
  MOTLEY_CHECK(request.logits.empty() || static_cast<std::int64_t>(request.logits.size()) ==
                                             request.batch->size() * graph_->num_classes(),
               "logits have one number per sample and class");
  if (request.batch->size() == 0) return StepResult{};
  const int active = AssignChunks(request.batch->size(), false, false);
  MOTLEY_RETURN_IF_ERROR(Compile(active, false, request.weights.data()));
  const double begin = clock_.Now();
  Barrier barrier(active);
  MOTLEY_RETURN_IF_ERROR(RunLanes(active, barrier, [&](int lane) {
                           RunInference(lane, active, request, barrier);
                         }).status());
  return Collect(active, clock_.Now() - begin);
}

}  // namespace

int UsableCores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof(set), &set) != 0) return 1;
  return std::max(1, CPU_COUNT(&set));
}

Result<std::unique_ptr<Device>> MakeNativeDevice(std::shared_ptr<const graph::Graph> graph,
                                                 const DeviceOptions& options) {
  constexpr int kMaxLanes = 1024;
  if (options.threads < 0 || options.threads > kMaxLanes) {
    return InvalidInput("a device cannot have {} threads", options.threads)
        .WithFix("leave threads out to use every core");
  }
  if (options.bn_batch < 0) return InvalidInput("bn_batch cannot be {}", options.bn_batch);
  if (graph->is_body() && graph->has_batch_norm() && options.bn_batch > 0) {
    return InvalidInput("{}: a net whose head is elsewhere cannot have virtual batches",
                        graph->name())
        .WithFix("leave bn_batch out");
  }
  int lanes = options.threads == 0 ? UsableCores() : options.threads;
  if (!options.cores.empty()) lanes = static_cast<int>(options.cores.size());
  try {
    return std::unique_ptr<Device>(
        std::make_unique<NativeDevice>(std::move(graph), options, lanes));
  } catch (const std::exception& error) {
    return base::Unavailable("the native device cannot start {} threads: {}", lanes, error.what())
        .WithFix(options.cores.empty() ? "use fewer threads"
                                       : "name cores that this process may use");
  }
}

}  // namespace motley::engine::native
