// The reference gradient against central differences of the reference loss: it judges every other
// engine, so it is checked against nothing but its own forward pass.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "motley/base/rng.h"
#include "motley/engine/reference/network.h"
#include "small_graphs.h"

namespace motley::engine::reference {
namespace {

using testing::SmallGraph;

// Small enough that no kink (ReLU, maximum) is crossed for these seeds, large enough that the
// rounding of doubles stays four digits below the tolerance.
constexpr double kStep = 1e-6;
constexpr double kTolerance = 2e-7;
// A few elements of each tensor are enough: all elements of one go through the same loops.
constexpr std::int64_t kElementsPerTensor = 24;

bool Never() { return false; }

class FiniteDifferenceTest : public ::testing::TestWithParam<SmallGraph> {
 protected:
  void Check(std::int64_t samples, const Network::Training& training) {
    const auto graph = testing::Build(GetParam());
    const graph::Model model = testing::RandomModel(*graph, 5);
    const data::Batch batch = testing::RandomBatch(*graph, samples, 11);
    const Values weights(model.weights.begin(), model.weights.end());
    const auto loss_at = [&](std::size_t index, double delta) {
      Values moved = weights;
      moved[index] += delta;
      Network network(*graph, std::move(moved), batch);
      EXPECT_TRUE(network.ForwardTraining(training, Never));
      return network.loss().sum;
    };
    Network network(*graph, weights, batch);
    ASSERT_TRUE(network.ForwardTraining(training, Never));
    ASSERT_TRUE(network.Backward(Never));
    const View gradient = network.gradient();
    double scale = 1e-3;
    for (const double value : gradient) scale = std::max(scale, std::abs(value));

    base::Rng rng(17);
    for (const graph::Tensor& tensor : graph->parameters()) {
      for (std::int64_t i = 0; i < std::min(tensor.size, kElementsPerTensor); ++i) {
        const auto offset =
            tensor.size <= kElementsPerTensor
                ? i
                : static_cast<std::int64_t>(rng.Below(static_cast<std::uint64_t>(tensor.size)));
        const auto index = static_cast<std::size_t>(tensor.offset + offset);
        const double slope = (loss_at(index, kStep) - loss_at(index, -kStep)) / (2.0 * kStep);
        ASSERT_NEAR(gradient[index], slope, kTolerance * scale)
            << tensor.name << "[" << offset << "] with " << samples << " samples";
      }
    }
  }
};

TEST_P(FiniteDifferenceTest, AgreesWithTheGradient) {
  Check(3, {.seed = 9});
  if (testing::Build(GetParam())->has_batch_norm()) {
    Check(5, {.bn_batch = 2, .seed = 9});
    Check(4, {.bn_batch = 4, .seed = 9});
  }
}

INSTANTIATE_TEST_SUITE_P(EveryOperator, FiniteDifferenceTest,
                         ::testing::ValuesIn(testing::SmallGraphs()),
                         [](const auto& instance) { return instance.param.name; });

}  // namespace
}  // namespace motley::engine::reference
