#include "motley/engine/native/native_device.h"

#include <sched.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <list>
#include <optional>
#include <set>

#include "motley/base/clock.h"
#include "motley/engine/check_batch.h"
#include "motley/engine/native/choose.h"
#include "motley/engine/native/gradient_sum.h"
#include "motley/engine/native/lanes.h"
#include "motley/engine/native/pieces.h"
#include "motley/engine/native/program.h"

namespace motley::engine::native {
namespace {

using base::InvalidInput;
using base::Result;
using base::Status;

// Among the kernel choices, which are by node otherwise; no node has an empty name.
constexpr char kGemmChoice[] = "";

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
        gradients_(*graph_, parameters_, gemm_) {
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
  bool pauses() const override { return true; }
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
  };

  // Measured on a lane's thread, where the libraries are set to one thread.
  Gemm MakeGemm(const std::map<std::string, std::string>& given) {
    const auto found = given.find(kGemmChoice);
    std::optional<Gemm> gemm;
    pool_.Run(1, LanePool::Wanted::kAll,
              [&](int) { gemm.emplace(found == given.end() ? "" : found->second); });
    return *gemm;
  }

  // Batch norm over everything that this device gets: the lanes meet at each of them.
  bool LanesMeet() const { return graph_->has_batch_norm() && bn_batch_ == 0; }
  // Whether each lane must work on one piece, at the same time as the others. A body's must,
  // because the head answers when it has all samples.
  bool LanesGoTogether(bool training) const {
    return training && (LanesMeet() || graph_->is_body());
  }

  int CutPieces(std::int64_t samples, bool training);
  // Makes and binds every program that the pieces need, so that the lanes can start at once.
  Status Compile(int active, bool training, const float* weights);
  std::set<std::int64_t> ChunkSizes() const;
  bool IsCompiled(const std::set<std::int64_t>& sizes, int active, bool training) const;
  Program& Find(Lane& lane, std::int64_t samples, bool training, const float* weights);
  // Refreshes the copies of the weights, runs work(round, lane, piece) for every piece and then
  // finish() on every lane; false when they stopped before the end.
  using Work = std::function<void(Round&, int lane, int piece)>;
  Result<bool> RunLanes(int active, bool training, const float* weights, const Work& work,
                        const std::function<void()>& finish);
  void RunLane(Round& round, int lane, bool training, const float* weights, const Work& work);
  // The result of a step that did not compute a single sample.
  StepResult Nothing(const StepRequest& request) const;
  LaneRun TrainingRun(const StepRequest& request, Round& round, int lane, int index) const;
  bool MustStop(const StepRequest& request) const;
  void RunTraining(const StepRequest& request, Round& round, int lane, int index);
  void RunInference(const ForwardRequest& request, int lane, int index);
  void PointAt(LaneRun& run, const data::Batch& batch, std::int64_t begin) const;
  StepResult Collect(double seconds) const;

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
  std::vector<Piece> pieces_;
  GradientSum gradients_;
  std::vector<BatchNormMeeting> meetings_;
  std::atomic<bool> given_up_{false};  // a lane of this step has failed or stopped
  base::RealClock clock_;
};

// Returns for how many lanes there is work.
int NativeDevice::CutPieces(std::int64_t samples, bool training) {
  pieces_ = CutBatch({.samples = samples,
                      .virtual_batch = training && graph_->has_batch_norm() ? bn_batch_ : 0,
                      .lanes = static_cast<int>(lanes_.size()),
                      .together = LanesGoTogether(training)});
  if (training) {
    for (Piece& piece : pieces_) {
      piece.buffer_sums.assign(static_cast<std::size_t>(graph_->buffer_count()), 0.0F);
    }
  }
  return static_cast<int>(std::min(lanes_.size(), pieces_.size()));
}

Program& NativeDevice::Find(Lane& lane, std::int64_t samples, bool training, const float* weights) {
  // An epoch uses a few sizes (whole and last batch, training and test, three chunk sizes each).
  constexpr std::size_t kKept = 12;
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

std::set<std::int64_t> NativeDevice::ChunkSizes() const {
  std::set<std::int64_t> sizes;
  for (const Piece& piece : pieces_) {
    for (const Chunk& chunk : piece.chunks) sizes.insert(chunk.size());
  }
  return sizes;
}

bool NativeDevice::IsCompiled(const std::set<std::int64_t>& sizes, int active,
                              bool training) const {
  for (std::size_t l = 0; l < static_cast<std::size_t>(active); ++l) {
    const Lane& lane = lanes_[l];
    for (const std::int64_t samples : sizes) {
      const bool found =
          std::any_of(lane.programs.begin(), lane.programs.end(), [&](const Lane::Entry& entry) {
            return entry.samples == samples && entry.training == training &&
                   entry.program->IsBound(lane.arena.data());
          });
      if (!found) return false;
    }
  }
  return true;
}

Status NativeDevice::Compile(int active, bool training, const float* weights) {
  // As it is in every step but the first of its size: no need to wake a lane.
  const std::set<std::int64_t> sizes = ChunkSizes();
  if (IsCompiled(sizes, active, training)) return {};
  Status status;
  // On a lane's thread, where the libraries are set to one thread.
  pool_.Run(1, LanePool::Wanted::kAll, [&](int) {
    try {
      for (std::size_t l = 0; l < static_cast<std::size_t>(active); ++l) {
        Lane& lane = lanes_[l];
        std::int64_t floats = lane.arena.size();
        for (const std::int64_t samples : sizes) {
          floats = std::max(floats, Find(lane, samples, training, weights).arena_floats());
        }
        if (floats > lane.arena.size()) lane.arena.Reset(floats);
        for (const std::int64_t samples : sizes) {
          Find(lane, samples, training, weights).Bind(lane.arena.data());
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

void NativeDevice::RunLane(Round& round, int lane, bool training, const float* weights,
                           const Work& work) {
  for (int copy = --round.next_copy; copy >= 0; copy = --round.next_copy) {
    parameters_.Refresh(copy, weights, training);
    round.stale.CountDown();
  }
  round.stale.Wait();
  if (LanesGoTogether(training)) {
    work(round, lane, lane);
    round.unfinished.CountDown();
  } else {
    for (int i = round.next_piece++; i < static_cast<int>(pieces_.size()); i = round.next_piece++) {
      if (given_up_) throw Abandoned();
      work(round, lane, i);
      round.unfinished.CountDown();
    }
  }
  round.unfinished.Wait();
}

Result<bool> NativeDevice::RunLanes(int active, bool training, const float* weights,
                                    const Work& work, const std::function<void()>& finish) {
  given_up_ = false;
  Round round(active, parameters_.copies(), static_cast<int>(pieces_.size()));
  const auto wanted = LanesGoTogether(training) ? LanePool::Wanted::kAll : LanePool::Wanted::kAny;
  try {
    pool_.Run(active, wanted, [&](int lane) {
      try {
        RunLane(round, lane, training, weights, work);
        finish();
      } catch (...) {
        given_up_ = true;
        round.Abandon();
        if (training) gradients_.Abandon();
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

LaneRun NativeDevice::TrainingRun(const StepRequest& request, Round& round, int lane,
                                  int index) const {
  LaneRun run;
  run.lane = lane;
  run.lanes = static_cast<int>(pieces_.size());
  run.weights = request.weights.data();
  run.seed = request.seed;
  run.epoch = request.batch->epoch;
  run.gradients = gradients_.Targets(index);
  run.factors = gradients_.factors();
  run.barrier = LanesMeet() ? &round.barrier : nullptr;
  const auto cancelled = [&request] {
    if (request.on_pause) request.on_pause();
    return request.cancel != nullptr && request.cancel->load(std::memory_order_relaxed);
  };
  // A batch norm over everything leaves nothing to return at a deadline but all or nothing. Once
  // the backward pass has begun, parts of the gradient may have been announced.
  run.stop_forward = cancelled;
  if (LanesMeet()) run.stop_forward = [this, &request] { return MustStop(request); };
  run.stop_backward = cancelled;
  run.on_boundary = &request.on_boundary;
  run.given_up = &given_up_;
  return run;
}

bool NativeDevice::MustStop(const StepRequest& request) const {
  if (request.on_pause) request.on_pause();
  if (request.cancel != nullptr && request.cancel->load(std::memory_order_relaxed)) return true;
  return clock_.Now() >= request.deadline;
}

void NativeDevice::RunTraining(const StepRequest& request, Round& round, int lane, int index) {
  Piece& piece = pieces_[static_cast<std::size_t>(index)];
  LaneRun run = TrainingRun(request, round, lane, index);
  run.meetings = meetings_;
  run.buffer_sums = piece.buffer_sums.data();
  bool announced = false;
  for (const Chunk& chunk : piece.chunks) {
    // Lanes that meet must go through together.
    if (!LanesMeet() && MustStop(request)) break;
    announced = piece.done + 1 == piece.chunks.size();
    PointAt(run, *request.batch, chunk.begin);
    run.first_sample = chunk.begin;
    if (graph_->is_head()) {
      run.input_gradient =
          request.input_gradient.data() + chunk.begin * graph::Count(graph_->input_shape());
    }
    Lane& own = lanes_[static_cast<std::size_t>(lane)];
    Find(own, chunk.size(), true, nullptr).Run(run, [&](graph::NodeId node) {
      if (!announced) return;
      gradients_.Leave(index, node, true);
      gradients_.SumSome(lane);
    });
    run.accumulate = true;
    ++piece.done;
  }
  piece.loss_sum = run.loss_sum;
  piece.correct = run.correct;
  if (announced) return;
  gradients_.SkipSamples(piece.chunks[piece.done].begin, piece.chunks.back().end);
  for (graph::NodeId node = graph_->size(); node-- > 0;) {
    if (!graph_->parameters_of(node).empty()) gradients_.Leave(index, node, piece.done > 0);
  }
}

StepResult NativeDevice::Collect(double seconds) const {
  StepResult result;
  result.seconds = seconds;
  result.cpu_seconds = pool_.cpu_seconds();
  for (const Piece& piece : pieces_) {
    result.loss_sum += piece.loss_sum;
    result.correct += piece.correct;
    for (std::size_t c = 0; c < piece.done; ++c) {
      const Chunk& chunk = piece.chunks[c];
      result.samples_done += chunk.size();
      if (!result.done.empty() && result.done.back().second == chunk.begin) {
        result.done.back().second = chunk.end;
      } else {
        result.done.emplace_back(chunk.begin, chunk.end);
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
  MOTLEY_CHECK(!request.on_final || (!std::isfinite(request.deadline) && !request.cancel),
               "weights are not updated by a part of a step");
  const auto cancelled = [&] { return request.cancel != nullptr && request.cancel->load(); };
  if (cancelled()) return base::Cancelled("the step was cancelled");
  std::fill(request.buffer_sums.begin(), request.buffer_sums.end(), 0.0F);
  if (request.batch->size() == 0 || clock_.Now() >= request.deadline) return Nothing(request);
  const int active = CutPieces(request.batch->size(), true);
  MOTLEY_RETURN_IF_ERROR(Compile(active, true, request.weights.data()));

  try {
    gradients_.Begin(static_cast<int>(pieces_.size()), active, request);
  } catch (const std::bad_alloc&) {
    return base::Unavailable("{}: not enough memory for the gradients of {} pieces of the batch",
                             graph_->name(), pieces_.size())
        .WithFix("use fewer threads");
  }
  const double begin = clock_.Now();
  MOTLEY_ASSIGN_OR_RETURN(const bool finished, RunLanes(
                                                   active, true, request.weights.data(),
                                                   [&](Round& round, int lane, int piece) {
                                                     RunTraining(request, round, lane, piece);
                                                   },
                                                   [&] { gradients_.Finish(); }));
  if (cancelled()) return base::Cancelled("the step was cancelled");
  if (!finished) return Nothing(request);
  for (const Piece& piece : pieces_) {
    AddTo(request.buffer_sums.data(), piece.buffer_sums.data(), graph_->buffer_count());
  }
  return Collect(clock_.Now() - begin);
}

void NativeDevice::RunInference(const ForwardRequest& request, int lane, int index) {
  Piece& piece = pieces_[static_cast<std::size_t>(index)];
  LaneRun run;
  run.weights = request.weights.data();
  run.buffers = request.buffers.data();
  for (const Chunk& chunk : piece.chunks) {
    PointAt(run, *request.batch, chunk.begin);
    Program& program = Find(lanes_[static_cast<std::size_t>(lane)], chunk.size(), false, nullptr);
    program.Run(run, {});
    if (!request.logits.empty()) {
      const std::int64_t classes = graph_->num_classes();
      std::copy_n(program.logits(), chunk.size() * classes,
                  request.logits.data() + chunk.begin * classes);
    }
    ++piece.done;
  }
  piece.loss_sum = run.loss_sum;
  piece.correct = run.correct;
}

Result<StepResult> NativeDevice::Forward(const ForwardRequest& request) {
  MOTLEY_RETURN_IF_ERROR(CheckBatch(*graph_, request.batch, request.weights));
  MOTLEY_CHECK(static_cast<std::int64_t>(request.buffers.size()) == graph_->buffer_count(),
               "{} buffers for a net with {}", request.buffers.size(), graph_->buffer_count());
  MOTLEY_CHECK(request.logits.empty() || static_cast<std::int64_t>(request.logits.size()) ==
                                             request.batch->size() * graph_->num_classes(),
               "logits have one number per sample and class");
  if (request.batch->size() == 0) return StepResult{};
  const int active = CutPieces(request.batch->size(), false);
  MOTLEY_RETURN_IF_ERROR(Compile(active, false, request.weights.data()));
  const double begin = clock_.Now();
  MOTLEY_RETURN_IF_ERROR(
      RunLanes(
          active, false, request.weights.data(),
          [&](Round&, int lane, int piece) { RunInference(request, lane, piece); }, [] {})
          .status());
  return Collect(clock_.Now() - begin);
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
    // A core that is not there will not come; threads may.
    const base::Code code =
        options.cores.empty() ? base::Code::kUnavailable : base::Code::kInvalidInput;
    return base::Status(code, fmt::format("the native device cannot start {} threads: {}", lanes,
                                          error.what()))
        .WithFix(options.cores.empty() ? "use fewer threads"
                                       : "name cores that this process may use");
  }
}

}  // namespace motley::engine::native
