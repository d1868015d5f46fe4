#include "differential.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <span>
#include <string>

namespace motley::engine::testing {
namespace {

using Floats = std::span<const float>;

Floats Part(const std::vector<float>& all, const graph::Tensor& tensor) {
  return Floats(all).subspan(static_cast<std::size_t>(tensor.offset),
                             static_cast<std::size_t>(tensor.size));
}

double Largest(Floats values) {
  double largest = 0.0;
  for (const float value : values) largest = std::max(largest, std::abs(double{value}));
  return largest;
}

// NaN counts as infinitely far: it must not slip through a comparison.
double LargestDifference(Floats a, Floats b) {
  double largest = 0.0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    const double difference = std::abs(double{a[i]} - double{b[i]});
    if (std::isnan(difference)) return std::numeric_limits<double>::infinity();
    largest = std::max(largest, difference);
  }
  return largest;
}

void ExpectTensorsClose(const std::vector<graph::Tensor>& tensors,
                        const std::vector<float>& expected, const std::vector<float>& actual,
                        double tolerance) {
  ASSERT_EQ(expected.size(), actual.size());
  const double overall = Largest(expected);
  for (const graph::Tensor& tensor : tensors) {
    const Floats want = Part(expected, tensor);
    // A tensor whose true value is 0 (the gradient of a bias before batch norm) has only rounding
    // to show: it is what is left of a sum of large terms.
    const bool vanishes = Largest(want) <= 1e-9 * overall;
    const double scale = vanishes ? 0.1 * overall : std::max(Largest(want), 1e-2 * overall);
    const double limit = tolerance * std::max(scale, 1e-6);
    EXPECT_LE(LargestDifference(want, Part(actual, tensor)), limit)
        << tensor.name << " of shape " << graph::ToString(tensor.shape) << ", largest value "
        << Largest(want);
  }
}

void ExpectResultsClose(const StepResult& expected, const StepResult& actual, double tolerance) {
  EXPECT_NEAR(actual.loss_sum, expected.loss_sum, tolerance * std::abs(expected.loss_sum));
  EXPECT_EQ(actual.correct, expected.correct);
  EXPECT_EQ(actual.samples_done, expected.samples_done);
  EXPECT_EQ(actual.done, expected.done);
}

}  // namespace

Observed Observe(Device& device, const graph::Model& model, const data::Batch& batch) {
  const graph::Graph& graph = device.graph();
  // What the device does not write stays NaN and is noticed.
  constexpr float kUnwritten = std::numeric_limits<float>::quiet_NaN();
  Observed seen;
  seen.gradient.assign(static_cast<std::size_t>(graph.parameter_count()), kUnwritten);
  seen.buffer_sums.assign(static_cast<std::size_t>(graph.buffer_count()), kUnwritten);
  seen.logits.assign(static_cast<std::size_t>(batch.size() * graph.num_classes()), kUnwritten);
  const auto step = device.Step({.weights = model.weights,
                                 .batch = &batch,
                                 .seed = 9,
                                 .gradient = seen.gradient,
                                 .buffer_sums = seen.buffer_sums});
  EXPECT_TRUE(step.ok()) << step.status().ToString();
  if (step.ok()) seen.step = *step;
  const auto forward = device.Forward(
      {.weights = model.weights, .buffers = model.buffers, .batch = &batch, .logits = seen.logits});
  EXPECT_TRUE(forward.ok()) << forward.status().ToString();
  if (forward.ok()) seen.forward = *forward;
  return seen;
}

void ExpectClose(const graph::Graph& graph, const Observed& expected, const Observed& actual,
                 const Tolerance& tolerance) {
  ExpectResultsClose(expected.step, actual.step, tolerance.loss);
  ExpectResultsClose(expected.forward, actual.forward, tolerance.loss);
  ExpectTensorsClose(graph.parameters(), expected.gradient, actual.gradient, tolerance.gradient);
  ExpectTensorsClose(graph.buffers(), expected.buffer_sums, actual.buffer_sums, tolerance.buffers);
  ASSERT_EQ(expected.logits.size(), actual.logits.size());
  EXPECT_LE(LargestDifference(expected.logits, actual.logits),
            tolerance.logits * Largest(expected.logits))
      << "logits";
}

double RelativeDistance(const std::vector<float>& a, const std::vector<float>& b) {
  double difference = 0.0, norm = 0.0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    difference += (double{a[i]} - double{b[i]}) * (double{a[i]} - double{b[i]});
    norm += double{b[i]} * double{b[i]};
  }
  return std::sqrt(difference / norm);
}

}  // namespace motley::engine::testing
