#include "apps/motley/bench_report.h"

#include <algorithm>
#include <string>
#include <vector>

namespace motley::app {
namespace {

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

void Add(Pass& sum, const Pass& pass) {
  sum.seconds += pass.seconds;
  sum.flops += pass.flops;
  sum.bytes += pass.bytes;
}

// All layers of a kernel as one, in the order of their first.
std::vector<engine::LayerTime> ByKernel(const std::vector<engine::LayerTime>& times) {
  std::vector<engine::LayerTime> sums;
  for (const engine::LayerTime& time : times) {
    auto sum = std::find_if(sums.begin(), sums.end(),
                            [&](const auto& known) { return known.kernel == time.kernel; });
    if (sum == sums.end()) sum = sums.insert(sum, {.layer = "all", .kernel = time.kernel});
    Add(sum->forward, time.forward);
    Add(sum->backward, time.backward);
  }
  return sums;
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

// Of whole training steps.
double Gflops(const BenchFigures& figures, const graph::Graph& graph) {
  const auto flops = static_cast<double>(graph.ForwardFlops() + graph.BackwardFlops());
  return figures.images_per_second() * flops / 1e9;
}

void PrintJson(const BenchArgs& args, const BenchFigures& figures, const engine::Device& device) {
  const double gflops = Gflops(figures, device.graph());
  nlohmann::ordered_json answer{{"model", args.model},
                                {"batch", args.batch},
                                {"input", graph::ToString(device.graph().input_shape())},
                                {"classes", device.graph().num_classes()},
                                {"threads", figures.threads},
                                {"learning_rate", figures.update.learning_rate},
                                {"momentum", figures.update.momentum},
                                {"losses", figures.losses},
                                {"images_per_second", figures.images_per_second()},
                                {"images_per_second_spread", figures.spread()},
                                {"busy_cores", figures.busy_cores},
                                {"gflops", gflops},
                                {"gemm_gflops", figures.gemm_gflops},
                                {"fraction_of_gemm_peak", gflops / figures.gemm_gflops},
                                {"peak_rss_mb", figures.peak_rss_mb}};
  if (args.explain) answer["kernels"] = ToJson(device.kernel_reasons());
  if (args.profile) answer["layers"] = ToJson(device.profile());
  fmt::print("{}\n", Dump(answer));
}

void PrintText(const BenchArgs& args, const BenchFigures& figures, const engine::Device& device) {
  const graph::Graph& graph = device.graph();
  const double gflops = Gflops(figures, graph);
  fmt::print("{} at {}, {} classes, batch {}, {} threads; whole training steps on made-up images\n",
             args.model, graph::ToString(graph.input_shape()), graph.num_classes(), args.batch,
             figures.threads);
  fmt::print("images per second      {:.1f} (median of {} windows; they spread over {:.1f} %)\n",
             figures.images_per_second(), figures.rates.size(), 100.0 * figures.spread());
  fmt::print("training GFLOP/s       {:.1f}\n", gflops);
  fmt::print("GEMM GFLOP/s           {:.1f} (the ceiling, measured in this run)\n",
             figures.gemm_gflops);
  fmt::print("fraction of GEMM peak  {:.1f} %\n", 100.0 * gflops / figures.gemm_gflops);
  fmt::print("peak memory            {:.0f} MB\n", figures.peak_rss_mb);
  if (args.explain) PrintReasons(device.kernel_reasons());
  if (!args.profile) return;
  const std::vector<engine::LayerTime> times = device.profile();
  PrintProfile(times);
  PrintProfile(ByKernel(times));
}

}  // namespace

void ReportBench(const BenchArgs& args, const BenchFigures& figures, const engine::Device& device) {
  args.json ? PrintJson(args, figures, device) : PrintText(args, figures, device);
}

}  // namespace motley::app
