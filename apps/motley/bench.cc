#include <sys/resource.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <memory>
#include <span>
#include <system_error>
#include <vector>

#include "apps/motley/bench_report.h"
#include "apps/motley/commands.h"
#include "apps/motley/prepare.h"
#include "motley/base/clock.h"
#include "motley/base/rng.h"
#include "motley/engine/native/native_device.h"
#include "motley/graph/safetensors.h"
#include "motley/graph/zoo.h"
#include "motley/optim/sgd.h"

namespace motley::app {
namespace {

namespace fs = std::filesystem;
using base::InvalidInput;
using base::Result;
using base::Status;

// Enough for a median with a spread, few enough that each holds several steps.
constexpr int kWindows = 5;
constexpr double kWarmUpSeconds = 0.5;
// Steps whose losses are reported, so that speeds are only compared where the losses agree.
constexpr int kLossSteps = 5;
// So small that random labels do not drive the weights to infinity, which would be slow.
constexpr optim::SgdOptions kUpdate{.learning_rate = 1e-4F, .momentum = 0.9F};

Result<graph::Model> BenchModel(const BenchArgs& args) {
  graph::Shape input;
  std::int64_t classes = args.classes;
  for (const graph::ZooEntry& entry : graph::Zoo()) {
    if (entry.name != args.model) continue;
    input = entry.input;
    if (classes == 0) classes = entry.classes;
  }
  if (!args.input.empty()) {
    auto shape = ParseShape(args.input);
    if (!shape.ok()) return std::move(shape).status().In("--input");
    if (shape->size() != 3) {
      return InvalidInput("--input {}: an image has channels, height and width", args.input)
          .WithFix("write it like 3x224x224");
    }
    input = *shape;
  }
  // An unknown name gets its message, with the nearest one, from the zoo.
  if (input.empty()) input = {3, 224, 224};
  auto graph = graph::BuildZoo(args.model, input, std::max<std::int64_t>(classes, 1));
  if (!graph.ok()) {
    auto failed = std::move(graph).status().In("--model " + args.model);
    if (!failed.fix().empty()) return failed;
    return std::move(failed).WithFix(
        "choose another --input, or leave it out for the authors' own");
  }
  if (args.no_dropout) graph = graph::WithoutDropout(*graph);
  return graph::InitialModel(std::move(graph).value(), 1);
}

data::Batch SyntheticBatch(const graph::Graph& graph, std::int64_t size) {
  base::Rng rng(base::Key({1}));
  data::Batch batch;
  batch.images.resize(static_cast<std::size_t>(size * graph::Count(graph.input_shape())));
  for (float& pixel : batch.images) pixel = static_cast<float>(rng.Normal());
  for (std::int64_t i = 0; i < size; ++i) {
    batch.ids.push_back(static_cast<data::SampleId>(i));
    batch.labels.push_back(
        static_cast<std::int32_t>(rng.Below(static_cast<std::uint64_t>(graph.num_classes()))));
  }
  return batch;
}

// What another program needs to take the same steps: DIR/weights.safetensors and
// DIR/batch.safetensors, the latter with labels as floats, because the writer knows no integers.
Status SaveStart(const fs::path& folder, const graph::Model& model, const data::Batch& batch) {
  std::error_code error;
  fs::create_directories(folder, error);
  if (error) {
    return InvalidInput("--save {}: cannot make this folder: {}", folder.string(), error.message())
        .WithFix("choose a folder that you can write to");
  }
  MOTLEY_RETURN_IF_ERROR(graph::SaveWeights(folder / "weights.safetensors", model));
  graph::Shape images = model.graph.input_shape();
  images.insert(images.begin(), batch.size());
  const std::vector<float> labels(batch.labels.begin(), batch.labels.end());
  const std::array arrays{graph::NamedArray{"images", images, batch.images},
                          graph::NamedArray{"labels", {batch.size()}, labels}};
  return graph::WriteSafetensors(folder / "batch.safetensors", arrays);
}

// Whole training steps: forward, backward, update.
class Stepper {
 public:
  Stepper(graph::Model& model, engine::Device& device, const data::Batch& batch)
      : model_(model),
        device_(device),
        batch_(batch),
        gradient_(model.weights.size()),
        velocity_(model.weights.size()),
        buffer_sums_(model.buffers.size()) {}

  // The mean loss over the batch, before the update.
  Result<double> Step() {
    engine::StepRequest request;
    request.weights = model_.weights;
    request.batch = &batch_;
    request.gradient = gradient_;
    request.buffer_sums = buffer_sums_;
    request.on_final = [this](std::int64_t offset, std::int64_t count) {
      const auto part = [&](std::vector<float>& all) {
        return std::span(all).subspan(static_cast<std::size_t>(offset),
                                      static_cast<std::size_t>(count));
      };
      optim::SgdUpdate(kUpdate, part(gradient_), batch_.size(), part(model_.weights),
                       part(velocity_));
    };
    MOTLEY_ASSIGN_OR_RETURN(const engine::StepResult result, device_.Step(request));
    return result.loss_sum / static_cast<double>(result.samples_done);
  }

  // Images per second over at least `seconds` and one step.
  Result<double> Measure(double seconds) {
    const double start = clock_.Now();
    std::int64_t steps = 0;
    double elapsed = 0.0;
    do {
      MOTLEY_RETURN_IF_ERROR(Step().status());
      ++steps;
      elapsed = clock_.Now() - start;
    } while (elapsed < seconds);
    return static_cast<double>(steps * batch_.size()) / elapsed;
  }

 private:
  graph::Model& model_;
  engine::Device& device_;
  const data::Batch& batch_;
  std::vector<float> gradient_, velocity_, buffer_sums_;
  base::RealClock clock_;
};

// Of processors, by all threads so far.
double CpuSeconds() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_usec);
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

double PeakRssMb() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  return static_cast<double>(usage.ru_maxrss) / 1024.0;  // Linux counts in KiB
}

Status CheckArgs(const BenchArgs& args) {
  if (args.batch < 1 || args.batch > 1 << 16) {
    return InvalidInput("--batch {}: it must be from 1 to 65536", args.batch)
        .WithFix("give the images of one step, for example --batch 32");
  }
  // 0: the authors' own.
  if (args.classes != 0 && (args.classes < 2 || args.classes > 1 << 24)) {
    return InvalidInput("--classes {}: it must be from 2 to 16777216", args.classes)
        .WithFix("leave it out for the authors' own number, or give that of your data");
  }
  if (args.threads < 0 || args.threads > 1024) {
    return InvalidInput("--threads {}: it must be from 1 to 1024, or 0 for all", args.threads)
        .WithFix(fmt::format("leave it out to use all {} cores", engine::native::UsableCores()));
  }
  if (!(args.seconds > 0) || args.seconds > 3600) {
    return InvalidInput("--seconds {}: it must be above 0 and at most 3600", args.seconds)
        .WithFix("leave it out for 10 seconds");
  }
  return {};
}

Result<BenchFigures> Measure(Stepper& stepper, int threads, double seconds) {
  BenchFigures figures{.threads = threads, .update = kUpdate};
  // The first step also compiles the plan and chooses kernels.
  for (int step = 0; step < kLossSteps; ++step) {
    MOTLEY_ASSIGN_OR_RETURN(const double loss, stepper.Step());
    figures.losses.push_back(loss);
  }
  MOTLEY_RETURN_IF_ERROR(stepper.Measure(kWarmUpSeconds).status());
  figures.peak_rss_mb = PeakRssMb();

  // Before and after, because clocks and neighbours change while we measure.
  const double gemm_seconds = std::clamp(seconds / 10.0, 0.2, 2.0);
  const double gemm_before = engine::native::MeasureGemmGflops(threads, gemm_seconds);
  const base::RealClock clock;
  const double cpu_before = CpuSeconds(), before = clock.Now();
  for (int window = 0; window < kWindows; ++window) {
    MOTLEY_ASSIGN_OR_RETURN(const double rate, stepper.Measure(seconds / kWindows));
    figures.rates.push_back(rate);
  }
  figures.busy_cores = (CpuSeconds() - cpu_before) / (clock.Now() - before);
  const double gemm_after = engine::native::MeasureGemmGflops(threads, gemm_seconds);
  figures.gemm_gflops = std::max(gemm_before, gemm_after);
  std::sort(figures.rates.begin(), figures.rates.end());
  return figures;
}

}  // namespace

Result<int> Bench(const BenchArgs& args, const Environment& environment) {
  MOTLEY_RETURN_IF_ERROR(CheckArgs(args));
  MOTLEY_ASSIGN_OR_RETURN(graph::Model model, BenchModel(args));
  const data::Batch batch = SyntheticBatch(model.graph, args.batch);
  if (!args.save.empty()) MOTLEY_RETURN_IF_ERROR(SaveStart(args.save, model, batch));
  const int threads = args.threads > 0 ? args.threads : engine::native::UsableCores();
  MOTLEY_ASSIGN_OR_RETURN(const auto device, engine::native::MakeNativeDevice(
                                                 std::make_shared<const graph::Graph>(model.graph),
                                                 {.threads = threads,
                                                  .bn_batch = 0,
                                                  .kernel_choices = {},
                                                  .kernel_cache = KernelCacheFile(environment),
                                                  .profile = args.profile}));
  Stepper stepper(model, *device, batch);
  MOTLEY_ASSIGN_OR_RETURN(const BenchFigures figures, Measure(stepper, threads, args.seconds));
  ReportBench(args, figures, *device);
  return kExitDone;
}

}  // namespace motley::app
