// Every operator of the reference device against PyTorch's operator of that name, in float64
// (tests/golden/golden_operators.py). Finite differences show that a gradient fits its forward
// pass; this shows that the forward pass is the right one.
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <variant>
#include <vector>

#include "differential.h"
#include "motley/base/file.h"
#include "motley/engine/reference/kernels.h"
#include "motley/engine/reference/reference_device.h"
#include "motley/graph/safetensors.h"
#include "small_graphs.h"

namespace motley::engine {
namespace {

using nlohmann::json;
using testing::SmallGraph;

constexpr std::int64_t kSamples = 5, kBnBatch = 3;
// Of testing::Observe.
constexpr std::uint64_t kSeed = 9;

std::vector<int> Sides(const graph::Padding& pad) {
  return {pad.top, pad.left, pad.bottom, pad.right};
}

struct ToJson {
  json operator()(std::monostate) const { return json::object(); }
  json operator()(const graph::ConvAttrs& a) const {
    return {{"stride", {a.stride_h, a.stride_w}},
            {"pad", Sides(a.pad)},
            {"dilation", {a.dilation_h, a.dilation_w}},
            {"groups", a.groups}};
  }
  json operator()(const graph::BatchNormAttrs& a) const { return {{"epsilon", a.epsilon}}; }
  json operator()(const graph::PoolAttrs& a) const {
    return {{"kernel", {a.kernel_h, a.kernel_w}},
            {"stride", {a.stride_h, a.stride_w}},
            {"pad", Sides(a.pad)},
            {"ceil_mode", a.ceil_mode},
            {"count_include_pad", a.count_include_pad}};
  }
  json operator()(const graph::FullyConnectedAttrs&) const { return json::object(); }
  json operator()(const graph::SliceAttrs& a) const { return {{"begin", a.begin}, {"end", a.end}}; }
  json operator()(const graph::ShuffleAttrs& a) const { return {{"groups", a.groups}}; }
  json operator()(const graph::PadAttrs& a) const { return {{"pad", Sides(a.pad)}}; }
  json operator()(const graph::DropoutAttrs&) const { return json::object(); }
  json operator()(const graph::LrnAttrs& a) const {
    return {{"size", a.size}, {"alpha", a.alpha}, {"beta", a.beta}, {"k", a.k}};
  }
};

// Without the loss, which PyTorch computes from the last node.
std::string Describe(const graph::Graph& graph) {
  json nodes = json::array();
  for (graph::NodeId id = 0; id < graph.loss(); ++id) {
    const graph::Node& node = graph.node(id);
    nodes.push_back({{"name", node.name},
                     {"op", std::string(graph::OpName(node.op))},
                     {"inputs", node.inputs},
                     {"attrs", std::visit(ToJson(), node.attrs)}});
  }
  return json{{"bn_batch", kBnBatch}, {"nodes", nodes}}.dump();
}

graph::Shape WithSamples(graph::Shape shape) {
  shape.insert(shape.begin(), kSamples);
  return shape;
}

// Writes what the PyTorch program reads.
class Question {
 public:
  Question(const graph::Graph& graph, const graph::Model& model, const data::Batch& batch) {
    Add("images", WithSamples(graph.input_shape()), batch.images);
    Add("labels", {kSamples}, {batch.labels.begin(), batch.labels.end()});
    AddTensors("weights/", graph.parameters(), model.weights);
    AddTensors("buffers/", graph.buffers(), model.buffers);
    for (graph::NodeId id = 0; id < graph.size(); ++id) {
      const graph::Node& node = graph.node(id);
      if (node.op != graph::Op::kDropout) continue;
      const auto factors = reference::DropoutFactors(
          node.dropout().probability, reference::DimsOf(kSamples, node.shape), batch, kSeed, id);
      Add("dropout/" + node.name, WithSamples(node.shape), {factors.begin(), factors.end()});
    }
  }

  base::Status Write(const std::filesystem::path& file) const {
    std::vector<graph::NamedArray> named;
    for (const auto& [name, array] : arrays_) named.push_back({name, array.shape, array.values});
    return graph::WriteSafetensors(file, named);
  }

 private:
  void Add(const std::string& name, graph::Shape shape, std::vector<float> values) {
    arrays_[name] = {std::move(shape), std::move(values)};
  }
  void AddTensors(const std::string& prefix, const std::vector<graph::Tensor>& tensors,
                  const std::vector<float>& all) {
    for (const graph::Tensor& tensor : tensors) {
      const auto begin = all.begin() + tensor.offset;
      Add(prefix + tensor.name, tensor.shape, {begin, begin + tensor.size});
    }
  }

  std::map<std::string, graph::StoredArray> arrays_;
};

// PyTorch's answer in the form of a device's. Its program counts nothing, so counts are copied.
testing::Observed Answer(const std::filesystem::path& file, const graph::Graph& graph,
                         const testing::Observed& counts) {
  testing::Observed golden;
  golden.step = counts.step;
  golden.forward = counts.forward;
  const auto bytes = base::ReadFile(file);
  EXPECT_TRUE(bytes.ok()) << bytes.status().ToString();
  if (!bytes.ok()) return golden;
  const auto arrays = graph::ParseSafetensors(*bytes, file.string());
  EXPECT_TRUE(arrays.ok()) << arrays.status().ToString();
  if (!arrays.ok()) return golden;
  const auto gather = [&](const std::string& prefix, const auto& tensors, auto& flat) {
    for (const graph::Tensor& tensor : tensors) {
      const auto& part = arrays->at(prefix + tensor.name).values;
      flat.insert(flat.end(), part.begin(), part.end());
    }
  };
  const auto& loss = arrays->at("loss").values;
  golden.step.loss_sum = double{loss[0]} + double{loss[1]};
  golden.logits = arrays->at("logits").values;
  gather("gradient/", graph.parameters(), golden.gradient);
  // A branch that nothing reads has statistics too; the program evaluates it like any other.
  gather("buffer_sums/", graph.buffers(), golden.buffer_sums);
  return golden;
}

TEST(OperatorGoldenTest, EveryOperatorOfTheReferenceIsPyTorchs) {
  const std::filesystem::path folder = std::filesystem::path(MOTLEY_GOLDEN_FOLDER) / "operators";
  std::filesystem::remove_all(folder);
  std::filesystem::create_directories(folder);
  const auto model_of = [](const graph::Graph& graph) { return testing::RandomModel(graph, 21); };
  const auto batch_of = [](const graph::Graph& graph) {
    return testing::RandomBatch(graph, kSamples, 22);
  };
  for (const SmallGraph& small : testing::SmallGraphs()) {
    const auto graph = testing::Build(small);
    const Question question(*graph, model_of(*graph), batch_of(*graph));
    ASSERT_TRUE(question.Write(folder / (small.name + ".safetensors")).ok());
    ASSERT_TRUE(base::ReplaceFile(folder / (small.name + ".json"), Describe(*graph)).ok());
  }
  const std::string command = std::string("\"") + MOTLEY_PYTHON + "\" -B \"" +
                              MOTLEY_GOLDEN_OPERATORS + "\" \"" + folder.string() + "\"";
  ASSERT_EQ(std::system(command.c_str()), 0);  // NOLINT(cert-env33-c)

  // PyTorch's numbers and ours were both rounded to float32, once.
  const testing::Tolerance tolerance{
      .loss = 1e-9, .gradient = 3e-7, .buffers = 3e-7, .logits = 3e-7};
  for (const SmallGraph& small : testing::SmallGraphs()) {
    SCOPED_TRACE(small.name);
    const auto graph = testing::Build(small);
    const auto device = reference::MakeReferenceDevice(graph, {.bn_batch = kBnBatch});
    const auto seen = testing::Observe(*device, model_of(*graph), batch_of(*graph));
    const auto golden = Answer(folder / (small.name + ".golden.safetensors"), *graph, seen);
    testing::ExpectClose(*graph, golden, seen, tolerance);
  }
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace motley::engine
