#include "motley/plan/momentum.h"

#include <algorithm>
#include <cmath>

#include "motley/base/check.h"

namespace motley::plan {
namespace {

// The largest magnitude of a root of z^3 + b z^2 + c z + d.
double LargestRoot(double b, double c, double d) {
  // A cubic has a real root, within Cauchy's bound; the other two follow from what is left.
  const double bound = 1.0 + std::max({std::abs(b), std::abs(c), std::abs(d)});
  const auto value = [&](double z) { return ((z + b) * z + c) * z + d; };
  double low = -bound, high = bound;
  for (int i = 0; i < 200 && low < high; ++i) {
    const double middle = 0.5 * (low + high);
    if (middle == low || middle == high) break;
    (value(middle) < 0.0 ? low : high) = middle;
  }
  const double real = 0.5 * (low + high);
  // z^2 + p z + r
  const double p = b + real, r = c + real * p;
  const double discriminant = p * p / 4.0 - r;
  const double others = discriminant < 0.0 ? std::sqrt(std::max(0.0, r))
                                           : std::abs(p) / 2.0 + std::sqrt(discriminant);
  return std::max(std::abs(real), others);
}

}  // namespace

double ImpliedMomentum(double mean_staleness) {
  MOTLEY_CHECK(mean_staleness >= 0.0, "a mean staleness of {}", mean_staleness);
  return mean_staleness / (1.0 + mean_staleness);
}

double CompensateAdditive(double target, double mean_staleness) {
  return std::max(kLeastMomentum, target - ImpliedMomentum(mean_staleness));
}

double CompensateMeanLag(double target, double mean_staleness) {
  MOTLEY_CHECK(target < 1.0, "a momentum of {}", target);
  const double lag = target / (1.0 - target) - mean_staleness;
  constexpr double kLeastLag = kLeastMomentum / (1.0 - kLeastMomentum);
  return lag <= kLeastLag ? kLeastMomentum : lag / (1.0 + lag);
}

double QuadraticRate(double mu_S, double mu_L, double a, std::span<const double> eigenvalues) {
  MOTLEY_CHECK(!eigenvalues.empty(), "a quadratic without curvature");
  double rate = 0.0;
  for (const double h : eigenvalues) {
    const double first = 1.0 + mu_S + mu_L - a * (1.0 - mu_S) * h;
    rate = std::max(rate, LargestRoot(-first, mu_S + mu_L + mu_S * mu_L, -mu_S * mu_L));
  }
  return rate;
}

std::vector<double> MeanPath(std::span<const double> q, double mu_L, double a, double h,
                             std::int64_t updates) {
  std::vector<double> w = {1.0};
  double velocity = 0.0;
  for (std::int64_t t = 0; t < updates; ++t) {
    double read = 0.0;
    for (std::size_t l = 0; l < q.size(); ++l) {
      const std::int64_t at = std::max<std::int64_t>(0, t - static_cast<std::int64_t>(l));
      read += q[l] * w[static_cast<std::size_t>(at)];
    }
    velocity = mu_L * velocity + h * read;
    w.push_back(w.back() - a * velocity);
  }
  return w;
}

}  // namespace motley::plan
