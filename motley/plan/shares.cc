#include "motley/plan/shares.h"

#include <algorithm>
#include <numeric>

#include "motley/base/check.h"

namespace motley::plan {

std::vector<std::int64_t> Apportion(std::int64_t total, std::span<const std::int64_t> weights,
                                    std::int64_t multiple) {
  MOTLEY_CHECK(total >= 0 && multiple > 0, "{} samples in multiples of {}", total, multiple);
  const auto negative = [](std::int64_t weight) { return weight < 0; };
  MOTLEY_CHECK(std::none_of(weights.begin(), weights.end(), negative), "a negative weight");
  const std::int64_t sum = std::accumulate(weights.begin(), weights.end(), std::int64_t{0});
  MOTLEY_CHECK(sum > 0, "no weight at all");

  const std::int64_t units = total / multiple;
  std::vector<std::int64_t> shares(weights.size());
  std::vector<std::size_t> order(weights.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  // In 128 bits, because batch times weight may be large.
  const auto exact = [&](std::size_t i) {
    return __extension__ static_cast<__int128>(units) * weights[i];
  };
  std::int64_t left = units;
  for (std::size_t i = 0; i < weights.size(); ++i) {
    shares[i] = static_cast<std::int64_t>(exact(i) / sum);
    left -= shares[i];
  }
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return exact(a) % sum > exact(b) % sum; });
  for (std::size_t k = 0; k < static_cast<std::size_t>(left); ++k) ++shares[order[k]];
  for (std::int64_t& share : shares) share *= multiple;

  // The rest goes to the last that works at all, so that whole multiples stay together.
  const std::int64_t rest = total - units * multiple;
  for (std::size_t i = weights.size(); rest > 0 && i-- > 0;) {
    if (weights[i] == 0) continue;
    shares[i] += rest;
    break;
  }
  return shares;
}

}  // namespace motley::plan
