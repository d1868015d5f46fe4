#include <algorithm>
#include <vector>

#include "motley/base/clock.h"
#include "motley/engine/native/aligned.h"
#include "motley/engine/native/gemm.h"
#include "motley/engine/native/lanes.h"
#include "motley/engine/native/native_device.h"

namespace motley::engine::native {

double MeasureGemmGflops(int threads, double seconds) {
  // Large enough to amortise packing, small enough to fit the caches of a small core.
  constexpr int kSize = 768;
  constexpr double kFlops = 2.0 * kSize * kSize * kSize;
  LanePool pool(threads);
  std::vector<double> rates(static_cast<std::size_t>(threads), 0.0);
  pool.Run(threads, LanePool::Wanted::kAll, [&](int lane) {
    AlignedFloats a(kSize * kSize), b(kSize * kSize), c(kSize * kSize);
    const Gemm multiply("");
    const auto gemm = [&] {
      multiply(Use::kPlain, Use::kPlain, kSize, kSize, kSize, a.data(), kSize, b.data(), kSize,
               0.0F, c.data(), kSize);
    };
    gemm();
    const base::RealClock clock;
    const double begin = clock.Now();
    int count = 0;
    do {
      gemm();
      ++count;
    } while (clock.Now() - begin < seconds);
    rates[static_cast<std::size_t>(lane)] = count * kFlops / (clock.Now() - begin) * 1e-9;
  });
  double total = 0.0;
  for (const double rate : rates) total += rate;
  return total;
}

}  // namespace motley::engine::native
