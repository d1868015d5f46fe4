#ifndef MOTLEY_TESTS_ENGINE_DIFFERENTIAL_H_
#define MOTLEY_TESTS_ENGINE_DIFFERENTIAL_H_

#include <cstdint>
#include <vector>

#include "motley/data/batch.h"
#include "motley/engine/device.h"
#include "motley/graph/graph.h"

namespace motley::engine::testing {

// Everything that a device says about one batch.
struct Observed {
  StepResult step, forward;
  std::vector<float> gradient, buffer_sums, logits;
};

// A training step and a forward pass with the same weights. Failures are reported to GoogleTest.
Observed Observe(Device& device, const graph::Model& model, const data::Batch& batch);

struct Tolerance {
  double loss = 1e-5;      // relative
  double gradient = 1e-4;  // of each tensor: largest difference / largest value
  double buffers = 1e-4;   // likewise
  double logits = 1e-4;    // likewise
};

// Reports every array in which `actual` is too far from `expected`, by name.
void ExpectClose(const graph::Graph& graph, const Observed& expected, const Observed& actual,
                 const Tolerance& tolerance = {});

// |a - b| / |b|.
double RelativeDistance(const std::vector<float>& a, const std::vector<float>& b);

}  // namespace motley::engine::testing

#endif  // MOTLEY_TESTS_ENGINE_DIFFERENTIAL_H_
