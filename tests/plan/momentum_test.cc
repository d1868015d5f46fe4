#include "motley/plan/momentum.h"

#include <gtest/gtest.h>

#include <cmath>

#include "motley/base/rng.h"

namespace motley::plan {
namespace {

std::vector<double> Geometric(int groups, std::size_t size) {
  const double mu = 1.0 - 1.0 / groups;
  std::vector<double> q(size);
  for (std::size_t l = 0; l < size; ++l) q[l] = (1.0 - mu) * std::pow(mu, static_cast<double>(l));
  return q;
}

TEST(MomentumTest, OfGeometricStalenessIsThatOfTheTheorem) {
  for (const int g : {1, 2, 4, 16}) EXPECT_NEAR(ImpliedMomentum(g - 1.0), 1.0 - 1.0 / g, 1e-15);
}

TEST(MomentumTest, AddsUpToTheTargetAndMayBeNegative) {
  EXPECT_NEAR(CompensateAdditive(0.9, 0.0), 0.9, 1e-15);
  EXPECT_NEAR(CompensateAdditive(0.9, 3.0), 0.15, 1e-15);
  EXPECT_NEAR(CompensateAdditive(0.9, 15.0), -0.0375, 1e-15);
  EXPECT_NEAR(CompensateAdditive(0.3, 15.0), -0.6375, 1e-15);
  EXPECT_EQ(CompensateAdditive(-0.5, 15.0), kLeastMomentum);
}

TEST(MomentumTest, AddsLagsUpToTheTarget) {
  EXPECT_NEAR(CompensateMeanLag(0.9, 0.0), 0.9, 1e-12);
  // 9 updates of lag in all, 3 of them by asynchrony.
  EXPECT_NEAR(CompensateMeanLag(0.9, 3.0), 6.0 / 7.0, 1e-12);
  EXPECT_NEAR(CompensateMeanLag(0.9, 9.2), -0.25, 1e-12);
  EXPECT_EQ(CompensateMeanLag(0.9, 9.6), kLeastMomentum);
  EXPECT_EQ(CompensateMeanLag(0.9, 15.0), kLeastMomentum);
}

// The recursion that QuadraticRate is the rate of, step by step.
double SimulatedRate(double mu_S, double mu_L, double a, double h) {
  constexpr int kSettle = 4000, kSteps = 4000;
  double w[3] = {1.0, 0.7, 0.4};  // no multiple of an eigenvector
  double log_scale = 0.0, at_settled = 0.0;
  for (int t = 0; t < kSettle + kSteps; ++t) {
    const double next = (1.0 + mu_S + mu_L - a * (1.0 - mu_S) * h) * w[2] -
                        (mu_S + mu_L + mu_S * mu_L) * w[1] + mu_S * mu_L * w[0];
    w[0] = w[1], w[1] = w[2], w[2] = next;
    const double size = std::abs(w[0]) + std::abs(w[1]) + std::abs(w[2]);
    log_scale += std::log(size);
    for (double& one : w) one /= size;
    if (t == kSettle - 1) at_settled = log_scale;
  }
  return std::exp((log_scale - at_settled) / kSteps);
}

TEST(MomentumTest, RateOfAQuadraticIsThatOfItsRecursion) {
  base::Rng rng(17);
  for (int trial = 0; trial < 60; ++trial) {
    const double mu_S = 1.0 - 1.0 / static_cast<double>(1 + rng.Below(16));
    const double mu_L = -0.9 + 1.8 * rng.Uniform();
    const double a = 0.01 + 1.5 * rng.Uniform();
    std::vector<double> eigenvalues;
    double slowest = 0.0;
    for (int i = 0; i < 3; ++i) {
      eigenvalues.push_back(0.05 + 1.5 * rng.Uniform());
      slowest = std::max(slowest, SimulatedRate(mu_S, mu_L, a, eigenvalues.back()));
    }
    EXPECT_NEAR(QuadraticRate(mu_S, mu_L, a, eigenvalues), slowest, 3e-3)
        << mu_S << " " << mu_L << " " << a;
  }
}

TEST(MomentumTest, RateOfPlainDescentIsTheSlowestMode) {
  EXPECT_NEAR(QuadraticRate(0.0, 0.0, 0.5, std::vector<double>{1.0, 0.1, 3.0}), 0.95, 1e-9);
  // Beyond 2/h it diverges.
  EXPECT_NEAR(QuadraticRate(0.0, 0.0, 1.0, std::vector<double>{2.5}), 1.5, 1e-9);
  // The best momentum for one curvature: all roots are sqrt(mu).
  EXPECT_NEAR(QuadraticRate(0.0, 0.25, 2.25, std::vector<double>{1.0}), 0.5, 1e-6);
}

TEST(MomentumTest, MoreGroupsWantLessExplicitMomentum) {
  const std::vector<double> eigenvalues = {0.02, 0.1, 1.0};
  double last = 1.0;
  for (const int g : {1, 2, 4, 8, 16}) {
    double best = 0.0, least = 2.0;
    for (double mu = -0.9; mu < 0.99; mu += 0.01) {
      double rate = 2.0;
      for (double a = 0.01; a < 8.0; a *= 1.1) {
        rate = std::min(rate, QuadraticRate(1.0 - 1.0 / g, mu, a, eigenvalues));
      }
      if (rate < least) least = rate, best = mu;
    }
    EXPECT_LT(best, last) << g;
    last = best;
  }
  EXPECT_LT(last, 0.0);
}

TEST(MomentumTest, MeanPathOfGeometricStalenessIsTheTheoremsRecursion) {
  constexpr double kA = 0.2, kH = 0.7, kMuL = 0.3;
  for (const int g : {1, 2, 8}) {
    const double mu_S = 1.0 - 1.0 / g;
    const auto w = MeanPath(Geometric(g, 3000), kMuL, kA, kH, 80);
    ASSERT_EQ(w.size(), 81U);
    // From the third update on: before, there is no w(t-2).
    for (std::size_t t = 2; t < 80; ++t) {
      const double expected = (1.0 + mu_S + kMuL - kA * (1.0 - mu_S) * kH) * w[t] -
                              (mu_S + kMuL + mu_S * kMuL) * w[t - 1] + mu_S * kMuL * w[t - 2];
      ASSERT_NEAR(w[t + 1], expected, 1e-10) << g << " " << t;
    }
  }
}

TEST(MomentumTest, SlowModesSeeOnlyTheMeanOfTheStaleness) {
  // Constant staleness 3, and geometric with the same mean: the slower the mode, the more alike.
  const std::vector<double> constant = {0.0, 0.0, 0.0, 1.0};
  const auto geometric = Geometric(4, 500);
  const auto differ = [&](double ah) {
    const auto steps = static_cast<std::int64_t>(2.0 / ah);
    const auto one = MeanPath(constant, 0.0, 1.0, ah, steps);
    const auto other = MeanPath(geometric, 0.0, 1.0, ah, steps);
    return std::abs(one.back() / other.back() - 1.0);
  };
  EXPECT_LT(differ(0.002), 0.002);
  EXPECT_GT(differ(0.05), 10.0 * differ(0.002));
}

}  // namespace
}  // namespace motley::plan
