#ifndef MOTLEY_PLAN_MOMENTUM_H_
#define MOTLEY_PLAN_MOMENTUM_H_

#include <cstdint>
#include <span>
#include <vector>

namespace motley::plan {

// Asynchrony is momentum: what stale updates do to the path of the weights, and what explicit
// momentum makes up for it (Mitliagkas et al., "Asynchrony begets Momentum").
//
// Letters in this file: q_l, the part of the updates with staleness l; m = sum l q_l, their mean;
// mu_S, the momentum that q implies; mu_L, the explicit one of the update rule; a, the learning
// rate; h, a curvature (an eigenvalue of the Hessian).

// mu_S of a mean staleness: m / (1 + m).
//
// In expectation an update is w(t+1) - w(t) = -a sum_l q_l grad(w(t-l)): asynchrony is a filter
// over past gradients, whose weights sum to 1. Momentum mu (its step scaled by 1 - mu) is the
// filter (1 - mu) mu^l, with the mean lag mu / (1 - mu). We take the momentum of the same mean lag.
// For geometric q (exponential service, g groups: m = g - 1) the two filters are the same, and
// mu_S = 1 - 1/g. For any other q they agree to first order at low frequencies: with z = 1 - e,
// sum q_l z^-l = 1 + m e + O(e^2) depends on q by m alone, and a mode with a * h * m << 1 moves so
// slowly that nothing else of q matters. Where that does not hold, MeanPath is exact.
//
// Requires m >= 0.
double ImpliedMomentum(double mean_staleness);

// Explicit momentum below this does not converge well for any staleness, and -1 not at all; the
// rules stop here. A rule that does asks for fewer groups.
inline constexpr double kLeastMomentum = -0.9;

// The explicit momentum with which the total is `target`, to first order: mu_L = target - mu_S. May
// be negative.
double CompensateAdditive(double target, double mean_staleness);

// The same by mean lags, which add up exactly when filters follow each other:
// mu_L / (1 - mu_L) = target / (1 - target) - m. A negative mu_L can take back half an update of
// lag at most, so the rule reaches kLeastMomentum soon. Requires target < 1.
double CompensateMeanLag(double target, double mean_staleness);

// How much of the distance to the optimum of a quadratic is left after an update, in the long run:
// the largest magnitude, over the eigenvalues h, of a root of the expected recursion
//   w(t+1) = (1 + mu_S + mu_L - a (1 - mu_S) h) w(t) - (mu_S + mu_L + mu_S mu_L) w(t-1)
//            + mu_S mu_L w(t-2).
// 1 or more: it does not converge. Requires eigenvalues.
double QuadraticRate(double mu_S, double mu_L, double a, std::span<const double> eigenvalues);

// The expected path on a quadratic with curvature h, for any distribution of staleness that does
// not depend on the weights: w(0) = 1, then `updates` values. Before the first update everybody has
// read w(0).
std::vector<double> MeanPath(std::span<const double> q, double mu_L, double a, double h,
                             std::int64_t updates);

}  // namespace motley::plan

#endif  // MOTLEY_PLAN_MOMENTUM_H_
