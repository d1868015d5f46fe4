#include <sys/resource.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <vector>

#include "apps/motley/commands.h"
#include "apps/motley/prepare.h"
#include "motley/base/clock.h"
#include "motley/base/rng.h"
#include "motley/engine/native/native_device.h"
#include "motley/graph/zoo.h"
#include "motley/optim/sgd.h"

namespace motley::app {
namespace {

using base::InvalidInput;
using base::Result;
using base::Status;

// Enough for a median with a spread, few enough that each holds several steps.
constexpr int kWindows = 5;
constexpr double kWarmUpSeconds = 0.5;

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

// Whole training steps: forward, backward, update.
class Stepper {
 public:
  Stepper(graph::Model& model, engine::Device& device, std::int64_t batch)
      : model_(model),
        device_(device),
        batch_(SyntheticBatch(model.graph, batch)),
        gradient_(model.weights.size()),
        velocity_(model.weights.size()),
        buffer_sums_(model.buffers.size()) {}

  Status Step() {
    engine::StepRequest request;
    request.weights = model_.weights;
    request.batch = &batch_;
    request.gradient = gradient_;
    request.buffer_sums = buffer_sums_;
    MOTLEY_ASSIGN_OR_RETURN(const engine::StepResult result, device_.Step(request));
    // So small that random labels do not drive the weights to infinity, which would be slow.
    optim::SgdUpdate({.learning_rate = 1e-4F, .momentum = 0.9F}, gradient_, result.samples_done,
                     model_.weights, velocity_);
    return {};
  }

  // Images per second over at least `seconds` and one step.
  Result<double> Measure(double seconds) {
    const double start = clock_.Now();
    std::int64_t steps = 0;
    double elapsed = 0.0;
    do {
      MOTLEY_RETURN_IF_ERROR(Step());
      ++steps;
      elapsed = clock_.Now() - start;
    } while (elapsed < seconds);
    return static_cast<double>(steps * batch_.size()) / elapsed;
  }

 private:
  graph::Model& model_;
  engine::Device& device_;
  data::Batch batch_;
  std::vector<float> gradient_, velocity_, buffer_sums_;
  base::RealClock clock_;
};

double PeakRssMb() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  return static_cast<double>(usage.ru_maxrss) / 1024.0;  // Linux counts in KiB
}

using Pass = engine::LayerTime::Pass;

nlohmann::ordered_json ToJson(const Pass& pass) {
  return {{"seconds", pass.seconds}, {"flops", pass.flops}, {"bytes", pass.bytes}};
}

nlohmann::ordered_json ToJson(const std::vector<engine::LayerTime>& times) {
  auto layers = nlohmann::ordered_json::array();
  for (const engine::LayerTime& time : times) {
    layers.push_back({{"layer", time.layer},
                      {"kernel", time.kernel},
                      {"forward", ToJson(time.forward)},
                      {"backward", ToJson(time.backward)}});
  }
  return layers;
}

nlohmann::ordered_json ToJson(const std::vector<engine::KernelReason>& reasons) {
  auto kernels = nlohmann::ordered_json::array();
  for (const engine::KernelReason& reason : reasons) {
    kernels.push_back(
        {{"layer", reason.layer}, {"kernel", reason.kernel}, {"seconds", reason.seconds}});
  }
  return kernels;
}

void PrintReasons(const std::vector<engine::KernelReason>& reasons) {
  fmt::print("\n{:<28} {:<10} milliseconds of a forward and backward pass\n", "layer", "kernel");
  for (const engine::KernelReason& reason : reasons) {
    std::string times;
    for (const auto& [kernel, seconds] : reason.seconds) {
      times += fmt::format("  {} {:.3f}", kernel, 1e3 * seconds);
    }
    fmt::print("{:<28} {:<9} {}\n", reason.layer, reason.kernel, times);
  }
}

// One line per layer and pass. Rates are of one lane, because that is what a kernel runs on.
void PrintProfile(const std::vector<engine::LayerTime>& times) {
  double total = 0.0;
  for (const engine::LayerTime& time : times) total += time.forward.seconds + time.backward.seconds;
  fmt::print("\n{:<28} {:<24} {:<8} {:>7} {:>8} {:>7}\n", "layer", "kernel", "pass", "share",
             "GFLOP/s", "GB/s");
  const auto line = [total](const engine::LayerTime& time, const char* name, const Pass& pass) {
    if (pass.seconds <= 0.0) return;
    fmt::print("{:<28} {:<24} {:<8} {:>5.1f} % {:>8.1f} {:>7.1f}\n", time.layer, time.kernel, name,
               100.0 * pass.seconds / total, pass.flops / pass.seconds / 1e9,
               pass.bytes / pass.seconds / 1e9);
  };
  for (const engine::LayerTime& time : times) {
    line(time, "forward", time.forward);
    line(time, "backward", time.backward);
  }
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

}  // namespace

Result<int> Bench(const BenchArgs& args, const Environment& environment) {
  MOTLEY_RETURN_IF_ERROR(CheckArgs(args));
  MOTLEY_ASSIGN_OR_RETURN(graph::Model model, BenchModel(args));
  const int threads = args.threads > 0 ? args.threads : engine::native::UsableCores();
  MOTLEY_ASSIGN_OR_RETURN(const auto device, engine::native::MakeNativeDevice(
                                                 std::make_shared<const graph::Graph>(model.graph),
                                                 {.threads = threads,
                                                  .bn_batch = 0,
                                                  .kernel_choices = {},
                                                  .kernel_cache = KernelCacheFile(environment),
                                                  .profile = args.profile}));
  Stepper stepper(model, *device, args.batch);
  // The first step compiles the plan and chooses kernels.
  MOTLEY_RETURN_IF_ERROR(stepper.Step());
  MOTLEY_RETURN_IF_ERROR(stepper.Measure(kWarmUpSeconds).status());

  // Before and after, because clocks and neighbours change while we measure.
  const double gemm_seconds = std::clamp(args.seconds / 10.0, 0.2, 2.0);
  double gemm = engine::native::MeasureGemmGflops(threads, gemm_seconds);
  std::vector<double> rates;
  for (int window = 0; window < kWindows; ++window) {
    MOTLEY_ASSIGN_OR_RETURN(const double rate, stepper.Measure(args.seconds / kWindows));
    rates.push_back(rate);
  }
  gemm = std::max(gemm, engine::native::MeasureGemmGflops(threads, gemm_seconds));

  std::sort(rates.begin(), rates.end());
  const double images_per_second = rates[kWindows / 2];
  const double spread = (rates.back() - rates.front()) / images_per_second;
  const auto flops = static_cast<double>(model.graph.ForwardFlops() + model.graph.BackwardFlops());
  const double gflops = images_per_second * flops / 1e9;
  if (args.json) {
    nlohmann::ordered_json answer{{"model", args.model},
                                  {"batch", args.batch},
                                  {"input", graph::ToString(model.graph.input_shape())},
                                  {"classes", model.graph.num_classes()},
                                  {"threads", threads},
                                  {"images_per_second", images_per_second},
                                  {"images_per_second_spread", spread},
                                  {"gflops", gflops},
                                  {"gemm_gflops", gemm},
                                  {"fraction_of_gemm_peak", gflops / gemm},
                                  {"peak_rss_mb", PeakRssMb()}};
    if (args.explain) answer["kernels"] = ToJson(device->kernel_reasons());
    if (args.profile) answer["layers"] = ToJson(device->profile());
    fmt::print("{}\n", Dump(answer));
    return kExitDone;
  }
  fmt::print("{} at {}, {} classes, batch {}, {} threads; whole training steps on made-up images\n",
             args.model, graph::ToString(model.graph.input_shape()), model.graph.num_classes(),
             args.batch, threads);
  fmt::print("images per second      {:.1f} (median of {} windows; they spread over {:.1f} %)\n",
             images_per_second, kWindows, 100.0 * spread);
  fmt::print("training GFLOP/s       {:.1f}\n", gflops);
  fmt::print("GEMM GFLOP/s           {:.1f} (the ceiling, measured in this run)\n", gemm);
  fmt::print("fraction of GEMM peak  {:.1f} %\n", 100.0 * gflops / gemm);
  fmt::print("peak memory            {:.0f} MB\n", PeakRssMb());
  if (args.explain) PrintReasons(device->kernel_reasons());
  if (args.profile) PrintProfile(device->profile());
  return kExitDone;
}

}  // namespace motley::app
