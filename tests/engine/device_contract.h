#ifndef MOTLEY_TESTS_ENGINE_DEVICE_CONTRACT_H_
#define MOTLEY_TESTS_ENGINE_DEVICE_CONTRACT_H_

#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include "motley/engine/device.h"
#include "small_graphs.h"

namespace motley::engine::testing {

using SharedGraph = std::shared_ptr<const graph::Graph>;

// A kind of device under test.
struct Kind {
  std::string name;
  std::function<std::unique_ptr<Device>(SharedGraph, std::int64_t bn_batch)> make;
};

inline void PrintTo(const Kind& kind, std::ostream* out) { *out << kind.name; }

// One of SmallGraphs().
SharedGraph GraphNamed(const std::string& name);

inline constexpr const char* kWithBatchNorm = "ShuffleUnit";
inline constexpr const char* kWithoutBatchNorm = "FireModule";
inline constexpr const char* kWithUnusedParameters = "BranchThatNothingReads";

// A device with a batch, and room for what it computes.
class Bench {
 public:
  Bench(std::unique_ptr<Device> device, std::int64_t samples)
      : device_(std::move(device)),
        model_(RandomModel(device_->graph(), 1)),
        batch_(RandomBatch(device_->graph(), samples, 33)),
        gradient_(model_.weights.size(), std::numeric_limits<float>::quiet_NaN()),
        buffer_sums_(model_.buffers.size(), std::numeric_limits<float>::quiet_NaN()) {}

  StepRequest Request() {
    return {.weights = model_.weights,
            .batch = &batch_,
            .seed = 3,
            .gradient = gradient_,
            .buffer_sums = buffer_sums_};
  }
  Device& device() { return *device_; }
  data::Batch& batch() { return batch_; }
  const graph::Model& model() const { return model_; }
  const std::vector<float>& gradient() const { return gradient_; }
  const std::vector<float>& buffer_sums() const { return buffer_sums_; }

 private:
  std::unique_ptr<Device> device_;
  graph::Model model_;
  data::Batch batch_;
  std::vector<float> gradient_, buffer_sums_;
};

// What device.h promises besides numbers. A program that instantiates it for its devices lists
// device_contract.cc among its sources.
class DeviceContractTest : public ::testing::TestWithParam<Kind> {
 protected:
  static Bench Make(const char* graph, std::int64_t samples, std::int64_t bn_batch = 0) {
    return Bench(GetParam().make(GraphNamed(graph), bn_batch), samples);
  }
};

}  // namespace motley::engine::testing

#endif  // MOTLEY_TESTS_ENGINE_DEVICE_CONTRACT_H_
