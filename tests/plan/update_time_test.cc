#include "motley/plan/update_time.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

namespace motley::plan {
namespace {

TEST(UpdateTimeTest, IsARoundOfAllGroupsUntilTheServerIsBusy) {
  // 8 devices: 0.8 s for the batch on one, 5 ms on the server.
  const UpdateCosts costs{.compute_seconds = 0.8, .network_seconds = 0.0, .server_seconds = 0.005};
  EXPECT_DOUBLE_EQ(ClosedFormSeconds(costs, 8, 1), 0.105);
  EXPECT_DOUBLE_EQ(ClosedFormSeconds(costs, 8, 8), 0.805 / 8);
  const UpdateCosts busy{.compute_seconds = 0.8, .network_seconds = 0.0, .server_seconds = 0.3};
  EXPECT_DOUBLE_EQ(ClosedFormSeconds(busy, 8, 8), 0.3);
}

TEST(UpdateTimeTest, TheNetworkOfALargeGroupHoldsItUp) {
  const UpdateCosts costs{.compute_seconds = 0.8, .network_seconds = 0.05, .server_seconds = 0.0};
  // max(0.8 / 8, 0.05 * 8) alone; groups of 4 overlap 0.2 s of network twice.
  EXPECT_DOUBLE_EQ(ClosedFormSeconds(costs, 8, 1), 0.4);
  EXPECT_DOUBLE_EQ(ClosedFormSeconds(costs, 8, 2), 0.1);
}

TEST(UpdateTimeTest, SaturatesWhenTheServerIsBusyAllTheTime) {
  const UpdateCosts costs{.compute_seconds = 1.6, .network_seconds = 0.0, .server_seconds = 0.1};
  // 16 devices: (0.1 g + 0.1) / g <= 0.1 never holds for g groups that share the work …
  EXPECT_EQ(SaturatingGroups(costs, 16), 16);
  // … but the wire of large groups lets a server overtake them.
  const UpdateCosts wire{.compute_seconds = 0.1, .network_seconds = 0.05, .server_seconds = 0.2};
  EXPECT_EQ(SaturatingGroups(wire, 8), 2);
  EXPECT_DOUBLE_EQ(ClosedFormSeconds(wire, 8, 2), 0.2);
}

// AlexNet at batch 256, as in docs/asynchrony.md.
TEST(UpdateTimeTest, AMergedHeadSendsActivationsInsteadOfWeights) {
  const HeadCosts alexnet{.body_seconds = 4.0,
                          .head_seconds = 0.4,
                          .server_head_seconds = 0.3,
                          .body_bytes = 10e6,
                          .head_bytes = 234e6,
                          .activation_bytes = 9.4e6,
                          .bytes_per_second = 125e6,
                          .update_seconds_per_byte = 1e-10};
  const UpdateCosts apart = WithHeadOnDevices(alexnet), merged = WithMergedHead(alexnet, 4);
  EXPECT_NEAR(apart.network_seconds, 2 * 244.0 / 125.0, 1e-9);
  EXPECT_NEAR(merged.network_seconds, 2 * (10.0 + 9.4 / 4) / 125.0, 1e-9);
  EXPECT_LT(ClosedFormSeconds(merged, 16, 4), ClosedFormSeconds(apart, 16, 4));
}

TEST(UpdateTimeTest, QueueingOfEqualGroupsIsTheExactRecursion) {
  // One station and exponential service: the machine repairman, in closed form.
  const auto repairman = [](int n, double away, double service) {
    std::vector<double> state = {1.0};  // by customers at the station
    for (int k = 1; k <= n; ++k) state.push_back(state.back() * (n - k + 1) * service / away);
    double sum = 0.0;
    for (const double one : state) sum += one;
    return service / (1.0 - state[0] / sum);
  };
  for (const int n : {1, 2, 5, 12}) {
    for (const double service : {0.01, 0.3, 2.0}) {
      const std::vector<double> away(static_cast<std::size_t>(n), 1.0);
      EXPECT_NEAR(QueueingSeconds(away, std::vector<double>{service}), repairman(n, 1.0, service),
                  1e-9);
    }
  }
}

TEST(UpdateTimeTest, QueueingOfUnequalGroupsLiesNearTheExactOne) {
  // Hardly unequal, so that the approximation answers: within 8 % of the exact recursion.
  for (const int n : {2, 5, 12}) {
    for (const double service : {0.01, 0.1, 0.5, 2.0}) {
      std::vector<double> away(static_cast<std::size_t>(n), 1.0);
      const std::vector<double> stations = {service, 0.5 * service};
      const double exact = QueueingSeconds(away, stations);
      away.back() = 1.0 + 1e-9;
      EXPECT_NEAR(QueueingSeconds(away, stations) / exact, 1.0, 0.08) << n << " " << service;
    }
  }
}

TEST(UpdateTimeTest, WithoutQueuesGroupsAddUp) {
  EXPECT_NEAR(QueueingSeconds(std::vector<double>{0.5, 0.25, 1.0}, {}), 1.0 / 7.0, 1e-12);
  // The stations never make it faster, and bound it from below.
  EXPECT_GT(QueueingSeconds(std::vector<double>{0.5, 0.25, 1.0}, std::vector<double>{0.1}),
            1.0 / (1 / 0.6 + 1 / 0.35 + 1 / 1.1));
  EXPECT_GE(QueueingSeconds(std::vector<double>{0.01, 0.02, 0.03}, std::vector<double>{0.2}), 0.2);
}

}  // namespace
}  // namespace motley::plan
