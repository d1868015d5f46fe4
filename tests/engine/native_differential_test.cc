// The native engine against its plain twin, for every little net of the table.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "differential.h"
#include "motley/engine/native/kernels/kernels.h"
#include "motley/engine/native/native_device.h"
#include "motley/engine/reference/reference_device.h"
#include "small_graphs.h"

namespace motley::engine {
namespace {

using testing::SmallGraph;

struct Setting {
  std::int64_t samples;
  int threads;
  std::int64_t bn_batch = 0;
};

// Batches smaller than, equal to, larger than and not a multiple of the lanes; and one that a lane
// takes in several chunks.
constexpr Setting kSettings[] = {{1, 1}, {1, 3}, {2, 2}, {2, 5}, {3, 2},
                                 {5, 3}, {3, 5}, {8, 1}, {8, 5}, {70, 1}};
// Groups that end in the middle of a lane's part, groups larger than the batch, a last group that
// is smaller than the others.
constexpr Setting kGroupedSettings[] = {{5, 2, 2}, {8, 3, 2}, {3, 1, 2},
                                        {8, 5, 4}, {3, 2, 8}, {7, 3, 3}};

// The kernels between which the engine chooses by measurement; here each has its turn.
constexpr const char* kWinograd = "winograd";
constexpr const char* kConvolutionKernels[] = {"dnnl", kWinograd, "lowered"};

std::map<std::string, std::string> Choose(const graph::Graph& graph, const std::string& kernel) {
  std::map<std::string, std::string> choices;
  for (const graph::Node& node : graph.nodes()) {
    if (node.op == graph::Op::kConv) choices[node.name] = kernel;
  }
  return choices;
}

class NativeDifferentialTest : public ::testing::TestWithParam<SmallGraph> {
 protected:
  void Check(const Setting& setting) {
    for (const char* kernel : kConvolutionKernels) {
      if (Has(kernel)) CheckKernel(setting, kernel);
    }
  }

  // Nets without a layer for Winograd's kernel are what they were without it.
  static bool Has(const std::string& kernel) {
    if (kernel != kWinograd) return true;
    const auto graph = testing::Build(GetParam());
    return std::any_of(graph->nodes().begin(), graph->nodes().end(), [](const graph::Node& node) {
      return node.op == graph::Op::kConv && native::CanWinograd(node);
    });
  }

  void CheckKernel(const Setting& setting, const std::string& kernel) {
    SCOPED_TRACE(::testing::Message()
                 << setting.samples << " samples, " << setting.threads << " threads, bn_batch "
                 << setting.bn_batch << ", convolutions by " << kernel);
    const auto graph = testing::Build(GetParam());
    const DeviceOptions options{.threads = setting.threads,
                                .bn_batch = setting.bn_batch,
                                .kernel_choices = Choose(*graph, kernel)};
    auto native = native::MakeNativeDevice(graph, options);
    ASSERT_TRUE(native.ok()) << native.status().ToString();
    const auto reference = reference::MakeReferenceDevice(graph, options);

    const auto seed = static_cast<std::uint64_t>(setting.samples);
    const graph::Model model = testing::RandomModel(*graph, seed);
    const data::Batch batch = testing::RandomBatch(*graph, setting.samples, seed);
    const auto expected = testing::Observe(*reference, model, batch);
    testing::ExpectClose(*graph, expected, testing::Observe(**native, model, batch));
  }
};

TEST_P(NativeDifferentialTest, AgreesWithTheReference) {
  for (const Setting& setting : kSettings) Check(setting);
}

class NativeVirtualBatchTest : public NativeDifferentialTest {};

TEST_P(NativeVirtualBatchTest, AgreesWithTheReference) {
  for (const Setting& setting : kGroupedSettings) Check(setting);
}

// A device is planned for a batch size; another size, larger or smaller, must not disturb it.
TEST_P(NativeDifferentialTest, FollowsABatchThatChangesItsSize) {
  const auto graph = testing::Build(GetParam());
  auto native = native::MakeNativeDevice(graph, {.threads = 2});
  ASSERT_TRUE(native.ok()) << native.status().ToString();
  const auto reference = reference::MakeReferenceDevice(graph, {});
  const graph::Model model = testing::RandomModel(*graph, 3);
  for (const std::int64_t samples : {5, 2, 8, 5}) {
    SCOPED_TRACE(samples);
    const auto batch =
        testing::RandomBatch(*graph, samples, static_cast<std::uint64_t>(30 + samples));
    testing::ExpectClose(*graph, testing::Observe(*reference, model, batch),
                         testing::Observe(**native, model, batch));
  }
}

std::vector<SmallGraph> WithBatchNorm() {
  std::vector<SmallGraph> some;
  for (const SmallGraph& small : testing::SmallGraphs()) {
    if (testing::Build(small)->has_batch_norm()) some.push_back(small);
  }
  return some;
}

std::string NameOf(const ::testing::TestParamInfo<SmallGraph>& info) { return info.param.name; }

INSTANTIATE_TEST_SUITE_P(EveryBatchNorm, NativeVirtualBatchTest,
                         ::testing::ValuesIn(WithBatchNorm()), NameOf);
INSTANTIATE_TEST_SUITE_P(EveryOperator, NativeDifferentialTest,
                         ::testing::ValuesIn(testing::SmallGraphs()), NameOf);

}  // namespace
}  // namespace motley::engine
