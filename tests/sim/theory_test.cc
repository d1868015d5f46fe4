// What the theory of asynchrony says (docs/asynchrony.md) against the virtual cluster.
#include <gtest/gtest.h>

#include <chrono>
#include <cmath>

#include "motley/data/open.h"
#include "motley/engine/native/native_device.h"
#include "motley/graph/zoo.h"
#include "motley/plan/momentum.h"
#include "motley/plan/staleness.h"
#include "motley/run/loop.h"
#include "motley/sim/virtual_executor.h"

namespace motley::sim {
namespace {

// g groups of one device each, alike, without any latency.
class Groups {
 public:
  Groups(int groups, const std::string& service, std::uint64_t seed)
      : timeline_(
            {.devices = std::vector<TimedDevice>(static_cast<std::size_t>(groups),
                                                 {.curve = {.seconds_per_sample = 1.0},
                                                  .pace = {},
                                                  .service = Service::Parse(service).value()}),
             .seed = seed}) {
    for (int g = 0; g < groups; ++g) Begin(g, 0.0);
  }
  Timeline::Event Next() {
    Timeline::Event event = timeline_.Next().value();
    Begin(event.group, event.end);
    return event;
  }

 private:
  void Begin(int group, double now) {
    const Timeline::Work work{static_cast<std::size_t>(group), 1};
    timeline_.Begin(group, now, {&work, 1}, /*alone=*/false);
  }
  Timeline timeline_;
};

// The mean over many seeds of w(0) = 1, w(1), … on w^2 h / 2, with gradients as stale as they come
// and explicit momentum.
std::vector<double> PathOfManyRuns(int groups, const std::string& service, double a, double h,
                                   std::size_t updates, std::uint64_t runs, double mu_L = 0.0) {
  std::vector<double> mean(updates + 1);
  for (std::uint64_t seed = 1; seed <= runs; ++seed) {
    Groups cluster(groups, service, seed);
    std::vector<double> w = {1.0};
    double velocity = 0.0;
    for (std::size_t t = 0; t < updates; ++t) {
      const auto staleness = static_cast<std::size_t>(cluster.Next().staleness);
      velocity = mu_L * velocity + h * w[t - staleness];
      w.push_back(w.back() - a * velocity);
    }
    for (std::size_t t = 0; t <= updates; ++t) mean[t] += w[t] / static_cast<double>(runs);
  }
  return mean;
}

// mu of d(t+1) = mu d(t) + b w(t), by least squares.
double FittedMomentum(const std::vector<double>& w) {
  double dd = 0.0, dw = 0.0, ww = 0.0, yd = 0.0, yw = 0.0;
  for (std::size_t t = 1; t + 1 < w.size(); ++t) {
    const double d = w[t] - w[t - 1], y = w[t + 1] - w[t];
    dd += d * d, dw += d * w[t], ww += w[t] * w[t];
    yd += y * d, yw += y * w[t];
  }
  return (yd * ww - yw * dw) / (dd * ww - dw * dw);
}

TEST(AsynchronyTheoryTest, ExponentialServiceActsAsTheMomentumOfTheTheorem) {
  constexpr std::uint64_t kRuns = 8000;
  for (const int groups : {2, 4, 8, 16}) {
    const double mu = 1.0 - 1.0 / groups;
    // Long and fast enough that the path turns: otherwise its two terms cannot be told apart.
    const auto path = PathOfManyRuns(groups, "exponential", 0.5, 1.0,
                                     static_cast<std::size_t>(8 * groups), kRuns);
    EXPECT_NEAR(FittedMomentum(path), mu, 0.05 * mu) << groups;
  }
}

// Upper limit of chi-square at level 0.001 (Wilson and Hilferty).
double ChiSquareLimit(double freedom) {
  constexpr double kNormal = 3.0902;
  const double part = 2.0 / (9.0 * freedom);
  return freedom * std::pow(1.0 - part + kNormal * std::sqrt(part), 3.0);
}

// Chi-square of the counts against a geometric distribution of mean groups - 1, over its limit.
double AgainstGeometric(const plan::StalenessHistogram& histogram, int groups) {
  const double mu = 1.0 - 1.0 / groups;
  const auto total = static_cast<double>(histogram.total());
  double chi_square = 0.0, seen_left = total, expected_left = total;
  int bins = 0;
  const auto add = [&](double seen, double expected) {
    chi_square += (seen - expected) * (seen - expected) / expected;
    ++bins;
  };
  for (std::size_t l = 0;; ++l) {
    const double expected = total * (1.0 - mu) * std::pow(mu, static_cast<double>(l));
    if (expected_left - expected < 5.0) break;
    const double seen =
        l < histogram.counts().size() ? static_cast<double>(histogram.counts()[l]) : 0.0;
    add(seen, expected);
    seen_left -= seen;
    expected_left -= expected;
  }
  add(seen_left, expected_left);
  return chi_square / ChiSquareLimit(bins - 1);
}

plan::StalenessHistogram Staleness(int groups, const std::string& service, int updates,
                                   std::uint64_t seed) {
  Groups cluster(groups, service, seed);
  plan::StalenessHistogram histogram;
  // Until nobody has the model of the start.
  for (int i = 0; i < 20 * groups; ++i) (void)cluster.Next();
  for (int i = 0; i < updates; ++i) histogram.Add(cluster.Next().staleness);
  return histogram;
}

TEST(AsynchronyTheoryTest, ExponentialServiceMakesStalenessGeometric) {
  for (const int groups : {2, 4, 8, 16}) {
    const auto histogram = Staleness(groups, "exponential", 4000, 1);
    EXPECT_LT(AgainstGeometric(histogram, groups), 1.0) << groups;
    EXPECT_NEAR(plan::ImpliedMomentum(histogram.mean()), 1.0 - 1.0 / groups, 0.02);
    // The test can tell: other service, and another number of groups, are far beyond the limit.
    EXPECT_GT(AgainstGeometric(Staleness(groups, "lognormal:0.3", 4000, 1), groups), 5.0) << groups;
    EXPECT_GT(AgainstGeometric(histogram, 2 * groups), 1.0) << groups;
  }
}

TEST(AsynchronyTheoryTest, ConstantServiceHasOneStalenessAndThePathOfTheGeneralForm) {
  for (const int groups : {2, 4, 8}) {
    const auto histogram = Staleness(groups, "constant", 4000, 1);
    EXPECT_EQ(histogram.counts().size(), static_cast<std::size_t>(groups));
    EXPECT_EQ(histogram.counts().back(), 4000);
    constexpr double kA = 0.1;
    const auto path = PathOfManyRuns(groups, "constant", kA, 1.0, 60, 1);
    const auto expected = plan::MeanPath(histogram.parts(), 0.0, kA, 1.0, 60);
    for (std::size_t t = 0; t < path.size(); ++t) EXPECT_NEAR(path[t], expected[t], 1e-9) << t;
  }
}

TEST(AsynchronyTheoryTest, TheGeneralFormPredictsTheMeanPathOfAnyService) {
  for (const char* service : {"exponential", "lognormal:0.3", "lognormal:1"}) {
    constexpr int kGroups = 8;
    constexpr double kA = 0.1;
    const auto path = PathOfManyRuns(kGroups, service, kA, 1.0, 60, 4000);
    const auto q = Staleness(kGroups, service, 40000, 1).parts();
    const auto expected = plan::MeanPath(q, 0.0, kA, 1.0, 60);
    for (std::size_t t = 0; t < path.size(); ++t) {
      EXPECT_NEAR(path[t], expected[t], 0.04) << service << " " << t;
    }
  }
}

// How much of the distance to 0 is left after an update, from the middle of the path on.
double FittedRate(const std::vector<double>& w) {
  const std::size_t window = w.size() / 3;
  double first = 0.0, last = 0.0;
  for (std::size_t t = 0; t < window; ++t) {
    first += w[window + t] * w[window + t];
    last += w[2 * window + t] * w[2 * window + t];
  }
  return std::pow(last / first, 0.5 / static_cast<double>(window));
}

TEST(AsynchronyTheoryTest, ExplicitMomentumAddsToThatOfAsynchronyAsTheFormulasSay) {
  for (const double mu_L : {-0.6, -0.3, 0.3}) {
    constexpr int kGroups = 8;
    constexpr double kA = 0.2;
    const auto path = PathOfManyRuns(kGroups, "exponential", kA, 1.0, 96, 8000, mu_L);
    const auto q = Staleness(kGroups, "exponential", 100000, 1).parts();
    const auto expected = plan::MeanPath(q, mu_L, kA, 1.0, 96);
    for (std::size_t t = 0; t < path.size(); ++t) {
      EXPECT_NEAR(path[t], expected[t], 0.05) << mu_L << " " << t;
    }
  }
  // Predicted: 0.935, 0.885 and 0.751.
  for (const double mu_L : {-0.6, 0.0, 0.3}) {
    constexpr double kA = 0.1;
    const std::vector<double> curvature = {1.0};
    const auto path = PathOfManyRuns(2, "exponential", kA, 1.0, 45, 8000, mu_L);
    EXPECT_NEAR(FittedRate(path), plan::QuadraticRate(0.5, mu_L, kA, curvature), 0.03) << mu_L;
  }
}

// Every device its own group.
class Alone final : public plan::Controller {
 public:
  std::optional<plan::Plan> OnEvent(const plan::Event& event) override {
    if (const auto* step = std::get_if<plan::StepDone>(&event)) {
      ++updates_;
      if (updates_ > 20 * static_cast<int>(plan_.shares.size()) && histogram.total() < wanted) {
        histogram.Add(step->staleness);
      }
      return std::nullopt;
    }
    const auto* joined = std::get_if<plan::DeviceJoined>(&event);
    if (joined == nullptr) return std::nullopt;
    const int group = static_cast<int>(plan_.shares.size());
    plan_.shares.push_back({joined->device, kBatch, group});
    return plan_;
  }
  static constexpr std::int64_t kBatch = 1;
  std::int64_t wanted = 4000;
  plan::StalenessHistogram histogram;

 private:
  plan::Plan plan_;
  int updates_ = 0;
};

TEST(AsynchronyTheoryTest, HoldsForLeNet) {
  const data::DataPair data = data::Open("glyphs", "", {}).value();
  const auto graph =
      std::make_shared<const graph::Graph>(graph::BuildZoo("lenet", {1, 28, 28}, 10).value());
  const auto device = engine::native::MakeNativeDevice(graph, {.threads = 1}).value();
  for (const char* service : {"exponential", "constant"}) {
    constexpr int kGroups = 8;
    run::TrainOptions options;
    options.batch = Alone::kBatch;
    options.sgd = {.learning_rate = 0.001F, .momentum = 0.0F};
    run::TrainState state = run::Trainer::Fresh(graph::InitialModel(*graph, 1), *data.train);
    VirtualExecutor::Options cluster{.groups = kGroups};
    for (int i = 0; i < kGroups; ++i) {
      cluster.devices.push_back({.name = "d" + std::to_string(i),
                                 .kind = "virtual",
                                 .curve = {.seconds_per_sample = 0.01},
                                 .pace = {},
                                 .service = Service::Parse(service).value(),
                                 .bytes_per_second = std::numeric_limits<double>::infinity()});
    }
    Alone controller;
    if (std::string(service) == "constant") controller.wanted = 400;
    base::VirtualClock clock;
    VirtualExecutor executor(
        cluster, options, *device, data, clock, state,
        run::Pools(data::Ledger(0, data.train->size()), data.train->size(), {}), controller);
    while (controller.histogram.total() < controller.wanted) {
      const auto update = executor.Step(options.sgd);
      ASSERT_TRUE(update.ok()) << update.status().ToString();
      ASSERT_EQ(update->samples, Alone::kBatch);
      ASSERT_EQ(update->not_finite, "");
    }
    if (std::string(service) == "constant") {
      EXPECT_EQ(controller.histogram.counts().back(), controller.wanted);
      EXPECT_EQ(controller.histogram.mean(), kGroups - 1.0);
    } else {
      EXPECT_LT(AgainstGeometric(controller.histogram, kGroups), 1.0);
    }
  }
}

// 1,000 devices and 100,000 steps within 10 s; a shared machine gets a part of its time only, and
// this is a hundredth of it.
TEST(AsynchronyTheoryTest, AThousandDevicesTakeNoTime) {
  const auto began = std::chrono::steady_clock::now();
  Groups cluster(1000, "exponential", 1);
  for (int i = 0; i < 100000; ++i) (void)cluster.Next();
  EXPECT_LT(std::chrono::steady_clock::now() - began, std::chrono::seconds(10));
}

}  // namespace
}  // namespace motley::sim
