#ifndef MOTLEY_APPS_MOTLEY_BENCH_REPORT_H_
#define MOTLEY_APPS_MOTLEY_BENCH_REPORT_H_

#include <vector>

#include "apps/motley/commands.h"
#include "motley/engine/device.h"
#include "motley/graph/graph.h"
#include "motley/optim/sgd.h"

namespace motley::app {

// What `motley bench` measured.
struct BenchFigures {
  int threads = 0;
  optim::SgdOptions update;
  std::vector<double> losses;  // means over the batch in the first steps
  std::vector<double> rates;   // images per second of each window, ascending
  double busy_cores = 0.0;     // processor seconds per second, meanwhile
  double gemm_gflops = 0.0;
  double peak_rss_mb = 0.0;  // of training; the buffers of the GEMM come later

  double images_per_second() const { return rates[rates.size() / 2]; }
  double spread() const { return (rates.back() - rates.front()) / images_per_second(); }
};

// Writes the answer to standard output, as text or as JSON.
void ReportBench(const BenchArgs& args, const BenchFigures& figures, const engine::Device& device);

}  // namespace motley::app

#endif  // MOTLEY_APPS_MOTLEY_BENCH_REPORT_H_
