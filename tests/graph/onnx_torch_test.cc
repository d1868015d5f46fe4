// Files that PyTorch exported in training form: logits, loss and every gradient against PyTorch's
// own in float64 (tests/golden/export_onnx.py).
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "motley/base/file.h"
#include "motley/engine/native/native_device.h"
#include "motley/graph/onnx.h"
#include "motley/graph/safetensors.h"

namespace motley::graph {
namespace {

using Arrays = std::map<std::string, StoredArray>;

class OnnxTorchTest : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    folder_ = std::filesystem::path(testing::TempDir()) /
              fmt::format("onnx_torch_{}_{}", GetParam(), getpid());
    const std::string command = fmt::format("\"{}\" \"{}\" {} \"{}\"", MOTLEY_PYTHON,
                                            MOTLEY_EXPORT_SCRIPT, GetParam(), folder_.string());
    ASSERT_EQ(std::system(command.c_str()), 0) << command;
    const auto bytes = base::ReadFile(File(".safetensors"));
    ASSERT_TRUE(bytes.ok()) << bytes.status().ToString();
    auto arrays = ParseSafetensors(*bytes, "golden");
    ASSERT_TRUE(arrays.ok()) << arrays.status().ToString();
    golden_ = std::move(arrays).value();
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  std::filesystem::path File(const std::string& ending) const {
    return folder_ / (GetParam() + ending);
  }

  // At most four times PyTorch's own float32 error, or 1e-5 of the largest element.
  void ExpectClose(const std::string& name, std::span<const float> actual,
                   std::span<const float> expected) const {
    ASSERT_EQ(actual.size(), expected.size()) << name;
    double error = 0.0, largest = 0.0;
    for (std::size_t i = 0; i < actual.size(); ++i) {
      error = std::max(error, std::fabs(double{actual[i]} - double{expected[i]}));
      largest = std::max(largest, std::fabs(double{expected[i]}));
    }
    const double torch_error = golden_.at("torch_error/" + name).values[0];
    EXPECT_LE(error, std::max(4.0 * torch_error, 1e-5 * largest))
        << name << ": PyTorch's error is " << torch_error << ", the largest element " << largest;
  }

  data::Batch Batch() const {
    data::Batch batch;
    batch.images = golden_.at("images").values;
    for (const float label : golden_.at("labels").values) {
      batch.labels.push_back(static_cast<std::int32_t>(label));
      batch.ids.push_back(batch.ids.size());
    }
    return batch;
  }

  std::filesystem::path folder_;
  Arrays golden_;
};

// The statistics of one batch as running statistics: with them, the forward pass of a trained net
// gives the logits of the training step.
std::vector<float> BatchStatistics(const std::vector<float>& sums, std::int64_t samples,
                                   const Graph& graph, std::int64_t batch) {
  std::vector<float> statistics(sums.size());
  for (const Tensor& buffer : graph.buffers()) {
    const Shape& shape = graph.node(buffer.node).shape;
    const double count = static_cast<double>(batch * shape[1] * shape[2]);
    // Running variances are kept unbiased, the batch itself is normalised by the biased one.
    const double scale = buffer.name.ends_with("running_var") ? (count - 1.0) / count : 1.0;
    for (std::int64_t i = buffer.offset; i < buffer.offset + buffer.size; ++i) {
      const auto at = static_cast<std::size_t>(i);
      statistics[at] = static_cast<float>(double{sums[at]} / static_cast<double>(samples) * scale);
    }
  }
  return statistics;
}

// The file with a free batch and a newer opset gives the same net.
void ExpectSameNet(const base::Result<Model>& free, const Model& fixed) {
  ASSERT_TRUE(free.ok()) << free.status().ToString();
  ASSERT_EQ(free->graph.size(), fixed.graph.size());
  for (NodeId id = 0; id < fixed.graph.size(); ++id) {
    EXPECT_EQ(free->graph.node(id).op, fixed.graph.node(id).op);
    EXPECT_EQ(free->graph.node(id).shape, fixed.graph.node(id).shape);
    EXPECT_EQ(free->graph.node(id).inputs, fixed.graph.node(id).inputs);
  }
  EXPECT_TRUE(free->weights == fixed.weights);
}

TEST_P(OnnxTorchTest, LogitsLossAndEveryGradientEqualPyTorchs) {
  auto model = ReadOnnx(File(".onnx"));
  ASSERT_TRUE(model.ok()) << model.status().ToString();
  ExpectSameNet(ReadOnnx(File("-14.onnx")), *model);
  const auto graph = std::make_shared<const Graph>(model->graph);
  auto device = engine::native::MakeNativeDevice(graph, {.threads = 2});
  ASSERT_TRUE(device.ok()) << device.status().ToString();
  const data::Batch batch = Batch();
  std::vector<float> gradient(model->weights.size()), sums(model->buffers.size());
  const auto step = (*device)->Step(
      {.weights = model->weights, .batch = &batch, .gradient = gradient, .buffer_sums = sums});
  ASSERT_TRUE(step.ok()) << step.status().ToString();
  const auto& loss = golden_.at("loss").values;
  const double expected = double{loss[0]} + double{loss[1]};
  EXPECT_NEAR(step->loss_sum, expected, 1e-5 * expected);
  for (const Tensor& tensor : graph->parameters()) {
    const auto found = golden_.find("gradient/" + tensor.name);
    ASSERT_NE(found, golden_.end()) << tensor.name << " is not PyTorch's name";
    EXPECT_EQ(found->second.shape, tensor.shape) << tensor.name;
    ExpectClose(tensor.name,
                std::span(gradient).subspan(static_cast<std::size_t>(tensor.offset),
                                            static_cast<std::size_t>(tensor.size)),
                found->second.values);
  }

  const std::vector<float> statistics =
      BatchStatistics(sums, step->samples_done, *graph, batch.size());
  std::vector<float> logits(golden_.at("logits").values.size());
  const auto forward = (*device)->Forward(
      {.weights = model->weights, .buffers = statistics, .batch = &batch, .logits = logits});
  ASSERT_TRUE(forward.ok()) << forward.status().ToString();
  EXPECT_NEAR(forward->loss_sum, expected, 1e-5 * expected);
  ExpectClose("logits", logits, golden_.at("logits").values);
}

INSTANTIATE_TEST_SUITE_P(Torchvision, OnnxTorchTest,
                         testing::Values("resnet18", "mobilenet_v2", "squeezenet1_1", "googlenet",
                                         "shufflenet_v2_x1_0"),
                         [](const auto& test_case) { return std::string(test_case.param); });

}  // namespace
}  // namespace motley::graph
