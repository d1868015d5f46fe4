#include "motley/base/rng.h"

#include <cmath>
#include <numbers>

#include "motley/base/check.h"

namespace motley::base {

std::uint64_t Rng::Below(std::uint64_t bound) {
  MOTLEY_CHECK(bound > 0, "an empty range has no element");
  // 128-bit integers are an extension that both compilers have.
  __extension__ using Wide = unsigned __int128;
  Wide product = static_cast<Wide>(Next()) * bound;
  const std::uint64_t threshold = (0 - bound) % bound;
  while (static_cast<std::uint64_t>(product) < threshold) {
    product = static_cast<Wide>(Next()) * bound;
  }
  return static_cast<std::uint64_t>(product >> 64);
}

double Rng::Normal() {
  const double radius = std::sqrt(-2.0 * std::log(1.0 - Uniform()));
  return radius * std::cos(2.0 * std::numbers::pi * Uniform());
}

}  // namespace motley::base
