// Training steps against those of an independent PyTorch program (tests/golden/make_golden.py).
#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "motley/base/file.h"
#include "motley/engine/native/native_device.h"
#include "motley/engine/reference/reference_device.h"
#include "motley/graph/safetensors.h"
#include "motley/graph/zoo.h"
#include "motley/optim/sgd.h"

namespace motley::engine {
namespace {

using Arrays = std::map<std::string, graph::StoredArray>;

// What make_golden.py trains with.
constexpr optim::SgdOptions kSgd{.learning_rate = 0.01F, .momentum = 0.9F, .weight_decay = 1e-4F};
constexpr int kSteps = 10;
constexpr std::int64_t kClasses = 10;

// Runs the generator and hands out its steps one by one. Each file is deleted once it is read,
// which is the sign for the generator to go on.
class GoldenSteps {
 public:
  // Tests of the same net may run beside each other.
  GoldenSteps(const std::string& net, int steps)
      : folder_(std::filesystem::path(MOTLEY_GOLDEN_FOLDER) /
                (net + "-" + std::to_string(getpid()))) {
    const std::string command = std::string("\"") + MOTLEY_PYTHON + "\" -B \"" +
                                MOTLEY_GOLDEN_SCRIPT + "\" " + net + " \"" + folder_.string() +
                                "\" --steps " + std::to_string(steps);
    pipe_.reset(popen(command.c_str(), "r"));
  }
  ~GoldenSteps() {
    std::filesystem::remove_all(folder_);  // the generator waits for its file to be gone
    pipe_.reset();
    std::filesystem::remove_all(folder_);
  }
  GoldenSteps(const GoldenSteps&) = delete;
  GoldenSteps& operator=(const GoldenSteps&) = delete;

  // Empty, with a test failure, when the generator ended early or wrote something unreadable.
  std::optional<Arrays> Next() {
    std::array<char, 4096> line{};
    if (pipe_ == nullptr || std::fgets(line.data(), line.size(), pipe_.get()) == nullptr) {
      ADD_FAILURE() << "the golden program ended early; it needs python3-torch and "
                       "python3-torchvision";
      return std::nullopt;
    }
    std::string path = line.data();
    path.erase(path.find_last_not_of('\n') + 1);
    const auto bytes = base::ReadFile(path);
    std::filesystem::remove(path);
    if (!bytes.ok()) {
      ADD_FAILURE() << bytes.status().ToString();
      return std::nullopt;
    }
    auto arrays = graph::ParseSafetensors(*bytes, path);
    if (!arrays.ok()) {
      ADD_FAILURE() << arrays.status().ToString();
      return std::nullopt;
    }
    return std::move(arrays).value();
  }

 private:
  struct Close {
    void operator()(FILE* file) const { pclose(file); }
  };
  const std::filesystem::path folder_;
  std::unique_ptr<FILE, Close> pipe_;
};

std::vector<float> Gather(const Arrays& arrays, const std::string& prefix,
                          const std::vector<graph::Tensor>& tensors) {
  std::vector<float> flat;
  for (const graph::Tensor& tensor : tensors) {
    const auto found = arrays.find(prefix + tensor.name);
    if (found == arrays.end()) {
      ADD_FAILURE() << "the golden program knows no " << prefix << tensor.name;
      flat.resize(flat.size() + static_cast<std::size_t>(tensor.size));
      continue;
    }
    EXPECT_EQ(found->second.shape, tensor.shape) << tensor.name;
    flat.insert(flat.end(), found->second.values.begin(), found->second.values.end());
  }
  return flat;
}

data::Batch BatchOf(const Arrays& arrays) {
  data::Batch batch;
  batch.images = arrays.at("images").values;
  for (const float label : arrays.at("labels").values) {
    batch.labels.push_back(static_cast<std::int32_t>(label));
    batch.ids.push_back(batch.ids.size());
  }
  return batch;
}

double Norm(std::span<const float> a) {
  double squares = 0.0;
  for (const float value : a) squares += double{value} * double{value};
  return std::sqrt(squares);
}

double Distance(std::span<const float> a, std::span<const float> b) {
  double squares = 0.0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    squares += (double{a[i]} - double{b[i]}) * (double{a[i]} - double{b[i]});
  }
  return std::sqrt(squares);
}

struct Subject {
  std::string name;
  std::string net;
  graph::Shape input;
  int threads = 0;  // 0: the reference device
  // How many times PyTorch's own float32 error the gradient may be wrong by.
  double error_factor = 4.0;
  std::string kernel = {};  // of all convolutions that it can do; empty: as measured
  int steps = kSteps;
};

void PrintTo(const Subject& subject, std::ostream* out) { *out << subject.name; }

class GoldenTest : public ::testing::TestWithParam<Subject> {
 protected:
  void SetUp() override {
    auto zoo = graph::BuildZoo(GetParam().net, GetParam().input, kClasses);
    ASSERT_TRUE(zoo.ok()) << zoo.status().ToString();
    graph_ = std::make_shared<const graph::Graph>(graph::WithoutDropout(*zoo));
    if (GetParam().threads == 0) {
      device_ = reference::MakeReferenceDevice(graph_, {});
    } else {
      DeviceOptions options{.threads = GetParam().threads};
      for (const graph::Node& node : graph_->nodes()) {
        if (!GetParam().kernel.empty()) options.kernel_choices[node.name] = GetParam().kernel;
      }
      auto native = native::MakeNativeDevice(graph_, options);
      ASSERT_TRUE(native.ok()) << native.status().ToString();
      device_ = std::move(native).value();
    }
    gradient_.resize(static_cast<std::size_t>(graph_->parameter_count()));
    buffer_sums_.resize(static_cast<std::size_t>(graph_->buffer_count()));
  }

  double Step(std::span<const float> weights, const data::Batch& batch) {
    const auto result = device_->Step(
        {.weights = weights, .batch = &batch, .gradient = gradient_, .buffer_sums = buffer_sums_});
    EXPECT_TRUE(result.ok()) << result.status().ToString();
    return result.ok() ? result->loss_sum / static_cast<double>(batch.size()) : 0.0;
  }

  void CheckStep(const Arrays& golden) {
    const data::Batch batch = BatchOf(golden);
    if (weights_.empty() || golden.at("continues").values[0] == 0.0F) {
      Load(golden);
    } else {
      ExpectTheUpdateLedHere(golden);
    }
    const auto& loss = golden.at("loss").values;
    const double expected = double{loss[0]} + double{loss[1]};
    EXPECT_NEAR(Step(weights_, batch), expected, 1e-5 * expected);
    CheckGradient(golden, static_cast<float>(batch.size()));
    CheckRunningStatistics(golden, static_cast<float>(batch.size()));
    optim::SgdUpdate(kSgd, gradient_, batch.size(), weights_, velocity_);
  }

  void Load(const Arrays& golden) {
    weights_ = Gather(golden, "weights/", graph_->parameters());
    velocity_ = Gather(golden, "velocity/", graph_->parameters());
  }

  // Our update of the previous golden weights, against what PyTorch's update made of them. Then
  // goes on from PyTorch's.
  void ExpectTheUpdateLedHere(const Arrays& golden) {
    const auto weights = std::exchange(weights_, {}), velocity = std::exchange(velocity_, {});
    Load(golden);
    EXPECT_LE(Distance(weights, weights_), 1e-6 * Norm(weights_));
    EXPECT_LE(Distance(velocity, velocity_), 1e-4 * Norm(velocity_));
  }

  void CheckGradient(const Arrays& golden, float samples) {
    double squares = 0.0, torch_squares = 0.0, golden_squares = 0.0, worst = 0.0;
    std::string worst_name;
    for (const graph::Tensor& tensor : graph_->parameters()) {
      const std::vector<float> expected = Gather(golden, "gradient/", {tensor});
      std::vector<float> actual(gradient_.begin() + tensor.offset,
                                gradient_.begin() + tensor.offset + tensor.size);
      for (float& value : actual) value /= samples;
      const double error = Distance(expected, actual);
      const double torch_error = golden.at("torch_error/" + tensor.name).values[0];
      squares += error * error;
      torch_squares += torch_error * torch_error;
      golden_squares += Norm(expected) * Norm(expected);
      if (error > worst * torch_error) {
        worst = error / torch_error;
        worst_name = tensor.name;
      }
    }
    const double error = std::sqrt(squares), torch_error = std::sqrt(torch_squares);
    EXPECT_LE(error, GetParam().error_factor * torch_error)
        << "the worst tensor is " << worst_name << ", off by " << worst << " times PyTorch's error";
    const double norm = std::sqrt(golden_squares);
    std::printf("  relative gradient error %.2e, PyTorch's own %.2e; worst tensor %s: %.2f times\n",
                error / norm, torch_error / norm, worst_name.c_str(), worst);
  }

  void CheckRunningStatistics(const Arrays& golden, float samples) {
    for (const graph::Tensor& tensor : graph_->buffers()) {
      const float momentum = graph_->node(tensor.node).batch_norm().momentum;
      std::vector<float> running = Gather(golden, "buffers/", {tensor});
      for (std::size_t i = 0; i < running.size(); ++i) {
        const float batch = buffer_sums_[static_cast<std::size_t>(tensor.offset) + i] / samples;
        running[i] = (1.0F - momentum) * running[i] + momentum * batch;
      }
      const std::vector<float> expected = Gather(golden, "buffers_after/", {tensor});
      EXPECT_LE(Distance(running, expected), 1e-5 * Norm(expected)) << tensor.name;
    }
  }

  std::shared_ptr<const graph::Graph> graph_;
  std::unique_ptr<Device> device_;
  std::vector<float> weights_, velocity_, gradient_, buffer_sums_;
};

TEST_P(GoldenTest, EachStepAgreesWithPyTorch) {
  GoldenSteps steps(GetParam().net, GetParam().steps);
  for (int step = 0; step < GetParam().steps; ++step) {
    SCOPED_TRACE(::testing::Message() << "step " << step);
    const auto golden = steps.Next();
    ASSERT_TRUE(golden.has_value());
    CheckStep(*golden);
  }
}

class FreeRunningGoldenTest : public GoldenTest {};

TEST_P(FreeRunningGoldenTest, EndsWithTheWeightsOfPyTorch) {
  // The weights before the step after the last are those at the end.
  GoldenSteps steps(GetParam().net, kSteps + 1);
  for (int step = 0; step < kSteps; ++step) {
    const auto golden = steps.Next();
    ASSERT_TRUE(golden.has_value());
    if (step == 0) Load(*golden);
    const data::Batch batch = BatchOf(*golden);
    Step(weights_, batch);
    optim::SgdUpdate(kSgd, gradient_, batch.size(), weights_, velocity_);
  }
  const auto end = steps.Next();
  ASSERT_TRUE(end.has_value());
  const auto expected = Gather(*end, "weights/", graph_->parameters());
  EXPECT_LE(Distance(weights_, expected), 1e-4 * Norm(expected));
}

std::string NameOf(const ::testing::TestParamInfo<Subject>& info) { return info.param.name; }

// The reference works in double precision: it must beat PyTorch's float32, not only come near it.
const Subject kReferenceLenet{
    .name = "ReferenceLenet", .net = "lenet", .input = {1, 28, 28}, .error_factor = 1.0};
const Subject kNativeLenet{
    .name = "NativeLenet", .net = "lenet", .input = {1, 28, 28}, .threads = 2};

// Winograd's algorithm wherever it can be used: oneDNN's kernel, or ours where it has none. What
// many steps lead to is seen with the kernels as measured.
const Subject kSubjects[] = {
    kReferenceLenet, kNativeLenet, Subject{"NativeResnet18", "resnet18", {3, 32, 32}, 2},
    Subject{"NativeMobilenetV2", "mobilenet_v2", {3, 32, 32}, 2},
    Subject{"WinogradResnet18", "resnet18", {3, 32, 32}, 2, 4.0, "winograd", 4}};

INSTANTIATE_TEST_SUITE_P(Nets, GoldenTest, ::testing::ValuesIn(kSubjects), NameOf);
INSTANTIATE_TEST_SUITE_P(Nets, FreeRunningGoldenTest,
                         ::testing::Values(kReferenceLenet, kNativeLenet), NameOf);

}  // namespace
}  // namespace motley::engine
