#include "tests/run/linear.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include "motley/base/rng.h"

namespace motley::run {

PatternSet::PatternSet(std::int64_t size, std::uint64_t seed) {
  base::Rng rng(base::Key({seed, 77}));
  for (std::int64_t i = 0; i < size; ++i) {
    const auto label = static_cast<std::int32_t>(rng.Below(kClasses));
    labels_.push_back(label);
    for (int p = 0; p < kPixels; ++p) {
      const std::uint64_t base = p % kClasses == label ? 120 : 40;
      pixels_.push_back(static_cast<std::uint8_t>(base + rng.Below(100)));
    }
  }
}

base::Status PatternSet::Decode(data::SampleId id, std::span<std::uint8_t> pixels) const {
  std::copy_n(pixels_.begin() + static_cast<std::ptrdiff_t>(id) * kPixels, kPixels, pixels.begin());
  return {};
}

graph::Graph LinearGraph(bool batch_norm) {
  graph::GraphBuilder builder("linear", {1, kSide, kSide});
  graph::NodeId node = builder.input();
  if (batch_norm) node = builder.BatchNorm("bn", node, {.epsilon = 1e-5F, .momentum = 0.25F});
  node = builder.Flatten("flat", node);
  node = builder.FullyConnected("fc", node, {.out_features = kClasses, .bias = true});
  return std::move(builder).Build(node).value();
}

graph::Model LinearModel(bool batch_norm) {
  return graph::InitialModel(LinearGraph(batch_norm), /*seed=*/5);
}

LinearDevice::LinearDevice(graph::Graph graph) : graph_(std::move(graph)) {
  for (const graph::Tensor& tensor : graph_.parameters()) {
    if (tensor.name == "fc.weight") weight_ = static_cast<std::size_t>(tensor.offset);
    if (tensor.name == "fc.bias") bias_ = static_cast<std::size_t>(tensor.offset);
  }
}

engine::StepResult LinearDevice::Compute(std::span<const float> weights, const data::Batch& batch,
                                         std::span<float> gradient) const {
  engine::StepResult result;
  result.samples_done = batch.size();
  for (std::size_t s = 0; s < batch.labels.size(); ++s) {
    const float* x = batch.images.data() + s * kPixels;
    const auto label = static_cast<std::size_t>(batch.labels[s]);
    std::array<double, kClasses> p{};
    double sum = 0.0;
    for (std::size_t c = 0; c < kClasses; ++c) {
      double logit = weights[bias_ + c];
      for (std::size_t i = 0; i < kPixels; ++i) {
        logit += static_cast<double>(weights[weight_ + c * kPixels + i]) * x[i];
      }
      p[c] = std::exp(logit);
      sum += p[c];
    }
    const auto best = std::max_element(p.begin(), p.end()) - p.begin();
    result.correct += static_cast<std::size_t>(best) == label ? 1 : 0;
    result.loss_sum -= std::log(p[label] / sum);
    for (std::size_t c = 0; c < kClasses && !gradient.empty(); ++c) {
      const double error = p[c] / sum - (c == label ? 1.0 : 0.0);
      gradient[bias_ + c] += static_cast<float>(error);
      for (std::size_t i = 0; i < kPixels; ++i) {
        gradient[weight_ + c * kPixels + i] += static_cast<float>(error * x[i]);
      }
    }
  }
  return result;
}

base::Result<engine::StepResult> LinearDevice::Step(const engine::StepRequest& request) {
  std::fill(request.gradient.begin(), request.gradient.end(), 0.0F);
  std::fill(request.buffer_sums.begin(), request.buffer_sums.end(), 0.0F);
  engine::StepResult result = Compute(request.weights, *request.batch, request.gradient);
  if (after_step) after_step(request, result);
  if (request.on_final) request.on_final(0, std::ssize(request.gradient));
  return result;
}

base::Result<engine::StepResult> LinearDevice::Forward(const engine::ForwardRequest& request) {
  if (on_forward) on_forward();
  return Compute(request.weights, *request.batch, {});
}

data::DataPair Patterns(std::int64_t train, std::int64_t test) {
  return {std::make_shared<PatternSet>(train, 1), std::make_shared<PatternSet>(test, 2)};
}

TrainOptions LinearOptions(std::int64_t batch) {
  TrainOptions options;
  options.batch = batch;
  options.sgd.learning_rate = 0.1F;
  options.seed = 9;
  options.train_transform.training = true;
  options.train_transform.mean = options.test_transform.mean = {0.4F};
  options.train_transform.stddev = options.test_transform.stddev = {0.2F};
  return options;
}

void ExpectClose(const std::vector<float>& actual, const std::vector<float>& expected) {
  ASSERT_EQ(actual.size(), expected.size());
  float largest = 0.0F;
  for (const float value : expected) largest = std::max(largest, std::abs(value));
  for (std::size_t i = 0; i < actual.size(); ++i) {
    ASSERT_NEAR(actual[i], expected[i], 1e-4F * largest) << i;
  }
}

ScratchFolder::ScratchFolder(const std::string& name)
    : path_(testing::TempDir() + "/" + name + "_" + std::to_string(::getpid())) {
  std::filesystem::remove_all(path_);
  std::filesystem::create_directories(path_);
}

ScratchFolder::~ScratchFolder() {
  std::error_code error;
  std::filesystem::remove_all(path_, error);
}

}  // namespace motley::run
