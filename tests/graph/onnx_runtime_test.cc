// Nets that Motley wrote, run by onnxruntime under Node (tests/golden/run_onnx.mjs).
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "motley/base/file.h"
#include "motley/base/rng.h"
#include "motley/engine/native/native_device.h"
#include "motley/graph/onnx.h"
#include "motley/graph/zoo.h"

namespace motley::graph {
namespace {

constexpr std::int64_t kBatch = 3;

// The script with its packages, as the lock file names them, in a folder of the build.
class OnnxRuntimeTest : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = MOTLEY_NODE_FOLDER;
    std::filesystem::create_directories(folder_);
    for (const char* name : {"package.json", "package-lock.json", "run_onnx.mjs"}) {
      std::filesystem::copy_file(std::filesystem::path(MOTLEY_GOLDEN_SOURCES) / name,
                                 folder_ / name, std::filesystem::copy_options::overwrite_existing);
    }
    const std::string command = fmt::format(
        "cd \"{}\" && npm ci --ignore-scripts --no-audit --no-fund --prefer-offline >npm.log 2>&1",
        folder_.string());
    ASSERT_EQ(std::system(command.c_str()), 0) << "see " << folder_ / "npm.log";
  }

  std::vector<float> Run(const Model& model, const std::vector<float>& images) const {
    const auto net = folder_ / "net.onnx", input = folder_ / "input", output = folder_ / "output";
    EXPECT_TRUE(WriteOnnx(net, model).ok());
    const std::string_view part(reinterpret_cast<const char*>(images.data()),
                                images.size() * sizeof(float));
    EXPECT_TRUE(base::WriteFileSynced(input, std::span(&part, 1)).ok());
    const std::string command =
        fmt::format("cd \"{}\" && node run_onnx.mjs {} net.onnx input output", folder_.string(),
                    ToString(model.graph.input_shape()));
    EXPECT_EQ(std::system(command.c_str()), 0);
    const auto bytes = base::ReadFile(output);
    EXPECT_TRUE(bytes.ok()) << bytes.status().ToString();
    std::vector<float> scores(bytes.ok() ? bytes->size() / sizeof(float) : 0);
    if (!scores.empty()) std::memcpy(scores.data(), bytes->data(), bytes->size());
    for (const auto& file : {net, input, output}) std::filesystem::remove(file);
    return scores;
  }

  std::filesystem::path folder_;
};

Shape SmallInput(const ZooEntry& entry) {
  if (entry.input[1] <= 32) return entry.input;
  return entry.name == "inception_v3" ? Shape{3, 79, 79} : Shape{3, 67, 71};
}

// Initial weights, and running statistics that are not those of a fresh net.
Model ModelOf(const ZooEntry& entry) {
  auto graph = BuildZoo(entry.name, SmallInput(entry), 10);
  Model model = InitialModel(std::move(graph).value(), 5);
  base::Rng rng(6);
  for (const Tensor& buffer : model.graph.buffers()) {
    const bool variance = buffer.name.ends_with("running_var");
    for (std::int64_t i = buffer.offset; i < buffer.offset + buffer.size; ++i) {
      model.buffers[static_cast<std::size_t>(i)] =
          static_cast<float>(variance ? 0.5 + rng.Uniform() : 0.2 * rng.Normal());
    }
  }
  return model;
}

data::Batch RandomBatch(const Shape& input) {
  data::Batch batch;
  base::Rng rng(7);
  for (std::int64_t i = 0; i < kBatch * Count(input); ++i) {
    batch.images.push_back(static_cast<float>(rng.Normal()));
  }
  for (std::int64_t i = 0; i < kBatch; ++i) {
    batch.labels.push_back(0);
    batch.ids.push_back(static_cast<data::SampleId>(i));
  }
  return batch;
}

TEST_F(OnnxRuntimeTest, GivesTheSameScoresForEveryNetOfTheZoo) {
  for (const ZooEntry& entry : Zoo()) {
    SCOPED_TRACE(entry.name);
    const Model model = ModelOf(entry);
    const data::Batch batch = RandomBatch(model.graph.input_shape());
    auto device = engine::native::MakeNativeDevice(std::make_shared<const Graph>(model.graph),
                                                   {.threads = 2});
    ASSERT_TRUE(device.ok()) << device.status().ToString();
    std::vector<float> ours(static_cast<std::size_t>(kBatch * model.graph.num_classes()));
    const auto forward = (*device)->Forward(
        {.weights = model.weights, .buffers = model.buffers, .batch = &batch, .logits = ours});
    ASSERT_TRUE(forward.ok()) << forward.status().ToString();
    const std::vector<float> theirs = Run(model, batch.images);
    ASSERT_EQ(theirs.size(), ours.size());
    float largest = 0.0F, error = 0.0F;
    for (std::size_t i = 0; i < ours.size(); ++i) {
      largest = std::max(largest, std::fabs(ours[i]));
      error = std::max(error, std::fabs(ours[i] - theirs[i]));
    }
    EXPECT_GT(largest, 0.0F);
    EXPECT_LE(error, 1e-4F * largest) << "largest score " << largest;
  }
}

}  // namespace
}  // namespace motley::graph
