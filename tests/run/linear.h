#ifndef MOTLEY_TESTS_RUN_LINEAR_H_
#define MOTLEY_TESTS_RUN_LINEAR_H_

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "motley/data/dataset.h"
#include "motley/data/transform.h"
#include "motley/engine/device.h"
#include "motley/graph/graph.h"
#include "motley/run/trainer.h"

namespace motley::run {

inline constexpr int kSide = 3, kPixels = kSide * kSide, kClasses = 3;

// Noisy copies of one pattern per class: a linear model learns it within a few epochs.
class PatternSet final : public data::Dataset {
 public:
  PatternSet(std::int64_t size, std::uint64_t seed);

  std::int64_t size() const override { return static_cast<std::int64_t>(labels_.size()); }
  int channels() const override { return 1; }
  int height() const override { return kSide; }
  int width() const override { return kSide; }
  const std::vector<std::string>& classes() const override { return classes_; }
  std::int32_t label(data::SampleId id) const override { return labels_[id]; }
  base::Status Decode(data::SampleId id, std::span<std::uint8_t> pixels) const override;
  std::string ContentHash() const override { return "patterns"; }

 private:
  std::vector<std::string> classes_ = {"a", "b", "c"};
  std::vector<std::int32_t> labels_;
  std::vector<std::uint8_t> pixels_;
};

// Flatten -> fully connected, with a batch norm in front if asked for.
graph::Graph LinearGraph(bool batch_norm = false);

// Softmax regression behind the Device seam, small enough to be obvious. Batch norm passes values
// through unchanged; its statistics are zero.
class LinearDevice final : public engine::Device {
 public:
  explicit LinearDevice(graph::Graph graph);

  const graph::Graph& graph() const override { return graph_; }
  std::string kind() const override { return "linear"; }
  base::Result<engine::StepResult> Step(const engine::StepRequest& request) override;
  base::Result<engine::StepResult> Forward(const engine::ForwardRequest& request) override;
  std::map<std::string, std::string> kernel_choices() const override { return {{"fc", "plain"}}; }

  // May look at a step, move a clock, or spoil the result.
  std::function<void(const engine::StepRequest&, engine::StepResult&)> after_step;
  std::function<void()> on_forward;

 private:
  engine::StepResult Compute(std::span<const float> weights, const data::Batch& batch,
                             std::span<float> gradient) const;
  graph::Graph graph_;
  std::size_t weight_ = 0, bias_ = 0;  // offsets
};

data::DataPair Patterns(std::int64_t train, std::int64_t test = 40);

// Options that fit Patterns, without checkpoints.
TrainOptions LinearOptions(std::int64_t batch);

graph::Model LinearModel(bool batch_norm = false);

// Every element agrees to 1e-4 of the largest.
void ExpectClose(const std::vector<float>& actual, const std::vector<float>& expected);

// A new, empty folder below the test's temporary folder, removed at the end.
class ScratchFolder {
 public:
  explicit ScratchFolder(const std::string& name);
  ~ScratchFolder();
  ScratchFolder(const ScratchFolder&) = delete;
  ScratchFolder& operator=(const ScratchFolder&) = delete;
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

}  // namespace motley::run

#endif  // MOTLEY_TESTS_RUN_LINEAR_H_
