#include "motley/graph/zoo.h"

#include <gtest/gtest.h>

#include <map>
#include <set>
#include <string>

namespace motley::graph {
namespace {

struct Published {
  std::string name;
  std::int64_t parameters;
  std::int64_t buffers;
};

class ZooCountTest : public testing::TestWithParam<Published> {};

const ZooEntry& EntryOf(const std::string& name) {
  for (const ZooEntry& entry : Zoo()) {
    if (entry.name == name) return entry;
  }
  ADD_FAILURE() << name << " is not in the zoo";
  return Zoo().front();
}

TEST_P(ZooCountTest, EqualsTheAuthors) {
  const ZooEntry& entry = EntryOf(GetParam().name);
  const auto graph = BuildZoo(entry.name, entry.input, entry.classes);
  ASSERT_TRUE(graph.ok()) << graph.status().ToString();
  EXPECT_EQ(graph->parameter_count(), GetParam().parameters);
  EXPECT_EQ(graph->buffer_count(), GetParam().buffers);
  EXPECT_EQ(graph->num_classes(), entry.classes);
  EXPECT_EQ(graph->input_shape(), entry.input);
}

// Sources: Caffe (lenet, cifar_quick, caffenet), torchvision, Keras (nasnet_mobile: 5,326,716
// parameters, of which 36,738 are running statistics).
INSTANTIATE_TEST_SUITE_P(ParameterCount, ZooCountTest,
                         testing::Values(Published{"lenet", 431'080, 0},
                                         Published{"cifar_quick", 145'578, 0},
                                         Published{"caffenet", 60'965'224, 0},
                                         Published{"alexnet", 61'100'840, 0},
                                         Published{"resnet18", 11'689'512, 9'600},
                                         Published{"resnet18_cifar", 11'173'962, 9'600},
                                         Published{"resnet50", 25'557'032, 53'120},
                                         Published{"mobilenet_v2", 3'504'872, 34'112},
                                         Published{"squeezenet", 1'235'496, 0},
                                         Published{"inception_v3", 23'834'568, 34'432},
                                         Published{"shufflenet_v2", 2'278'604, 16'180},
                                         Published{"nasnet_mobile", 5'289'978, 36'738}),
                         [](const auto& test_case) { return test_case.param.name; });

TEST(ZooTest, EveryNetIsInTheTableOfCounts) { EXPECT_EQ(Zoo().size(), 12U); }

TEST(ZooTest, EveryNetTakesAnotherInputSizeAndClassCount) {
  for (const ZooEntry& entry : Zoo()) {
    SCOPED_TRACE(entry.name);
    // Larger and not square; odd, because exact halves hide mistakes of rounding.
    const Shape input{entry.input[0] + 1, entry.input[1] + 13, entry.input[2] + 6};
    const auto graph = BuildZoo(entry.name, input, 7);
    ASSERT_TRUE(graph.ok()) << graph.status().ToString();
    EXPECT_EQ(graph->input_shape(), input);
    EXPECT_EQ(graph->num_classes(), 7);
  }
}

TEST(ZooTest, SmallImagesFitWhereTheLayersAllow) {
  for (const auto* name : {"resnet18", "resnet50", "mobilenet_v2", "squeezenet", "shufflenet_v2"}) {
    const auto graph = BuildZoo(name, {3, 32, 32}, 10);
    EXPECT_TRUE(graph.ok()) << graph.status().ToString();
  }
  EXPECT_TRUE(BuildZoo("inception_v3", {3, 75, 75}, 10).ok());
  EXPECT_TRUE(BuildZoo("alexnet", {3, 63, 63}, 10).ok());
  EXPECT_TRUE(BuildZoo("nasnet_mobile", {3, 33, 47}, 10).ok());
}

TEST(ZooTest, AnInputThatIsTooSmallNamesTheLayer) {
  const auto graph = BuildZoo("lenet", {1, 8, 8}, 10);
  ASSERT_FALSE(graph.ok());
  EXPECT_EQ(graph.status().code(), base::Code::kInvalidInput);
  EXPECT_NE(graph.status().message().find("conv2"), std::string::npos) << graph.status().ToString();
  EXPECT_FALSE(BuildZoo("inception_v3", {3, 40, 40}, 10).ok());
  EXPECT_FALSE(BuildZoo("caffenet", {3, 32, 32}, 10).ok());
}

TEST(ZooTest, AnUnknownNameSuggestsTheNearest) {
  const std::map<std::string, std::string> cases = {{"resnet-18", "'resnet18'"},
                                                    {"LeNet", "'lenet'"},
                                                    {"mobilenetv2", "'mobilenet_v2'"},
                                                    {"", "'lenet'"}};
  for (const auto& [wrong, nearest] : cases) {
    const auto graph = BuildZoo(wrong, {3, 32, 32}, 10);
    ASSERT_FALSE(graph.ok());
    EXPECT_EQ(graph.status().code(), base::Code::kNotFound);
    EXPECT_NE(graph.status().fix().find(nearest), std::string::npos) << graph.status().ToString();
  }
}

TEST(ZooTest, ImpossibleInputsAndClassCountsAreRefused) {
  EXPECT_FALSE(BuildZoo("lenet", {28, 28}, 10).ok());
  EXPECT_FALSE(BuildZoo("lenet", {1, 28, 0}, 10).ok());
  EXPECT_FALSE(BuildZoo("lenet", {1, 28, std::int64_t{1} << 40}, 10).ok());
  EXPECT_FALSE(BuildZoo("lenet", {1, 28, 28}, 1).ok());
  EXPECT_FALSE(BuildZoo("squeezenet", {3, 224, 224}, std::int64_t{1} << 40).ok());
}

TEST(ZooTest, OnlySqueezenetHasNoHead) {
  for (const ZooEntry& entry : Zoo()) {
    const auto graph = BuildZoo(entry.name, entry.input, entry.classes);
    ASSERT_TRUE(graph.ok()) << graph.status().ToString();
    EXPECT_EQ(graph->BodyHeadCut().ok(), entry.name != "squeezenet") << entry.name;
  }
}

TEST(ZooTest, NamesAreUnique) {
  std::set<std::string_view> names;
  for (const ZooEntry& entry : Zoo()) EXPECT_TRUE(names.insert(entry.name).second) << entry.name;
}

}  // namespace
}  // namespace motley::graph
