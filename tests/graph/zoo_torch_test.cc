// Names and shapes of the zoo's parameters against torchvision's state_dict, and written ONNX files
// against the format's own checker.
#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>

#include "motley/graph/onnx.h"
#include "motley/graph/zoo.h"

namespace motley::graph {
namespace {

// What a program prints. Fails the test when it cannot be run.
std::string OutputOf(const std::string& command) {
  struct Close {
    void operator()(FILE* file) const { EXPECT_EQ(pclose(file), 0); }
  };
  const std::unique_ptr<FILE, Close> pipe(popen(command.c_str(), "r"));
  std::string output;
  std::array<char, 4096> part{};
  while (pipe != nullptr && std::fgets(part.data(), part.size(), pipe.get()) != nullptr) {
    output += part.data();
  }
  return output;
}

struct Twin {
  std::string zoo;
  std::string torchvision;  // an expression below torchvision.models
};

class ZooTorchTest : public testing::TestWithParam<Twin> {};

TEST_P(ZooTorchTest, NamesAndShapesAreTorchvisions) {
  const std::string program =
      "import torchvision.models as m\n"
      "for k, v in m." +
      GetParam().torchvision +
      ".state_dict().items():\n"
      "    if not k.endswith('num_batches_tracked'):\n"
      "        print(k, 'x'.join(map(str, v.shape)))\n";
  const std::string expected = OutputOf(fmt::format("\"{}\" -c \"{}\"", MOTLEY_PYTHON, program));
  ASSERT_FALSE(expected.empty());
  const Shape input = GetParam().zoo == "inception_v3" ? Shape{3, 299, 299} : Shape{3, 224, 224};
  const auto graph = BuildZoo(GetParam().zoo, input, 1000);
  ASSERT_TRUE(graph.ok()) << graph.status().ToString();
  // Ours are two lists, torchvision's is one in which each batch norm has all four together.
  std::string actual;
  for (NodeId id = 0; id < graph->size(); ++id) {
    for (const int i : graph->parameters_of(id)) {
      const Tensor& tensor = graph->parameters()[static_cast<std::size_t>(i)];
      actual += fmt::format("{} {}\n", tensor.name, ToString(tensor.shape));
    }
    for (const int i : graph->buffers_of(id)) {
      const Tensor& tensor = graph->buffers()[static_cast<std::size_t>(i)];
      actual += fmt::format("{} {}\n", tensor.name, ToString(tensor.shape));
    }
  }
  EXPECT_EQ(actual, expected);
}

INSTANTIATE_TEST_SUITE_P(
    Torchvision, ZooTorchTest,
    testing::Values(Twin{"alexnet", "alexnet()"}, Twin{"resnet18", "resnet18()"},
                    Twin{"resnet50", "resnet50()"}, Twin{"mobilenet_v2", "mobilenet_v2()"},
                    Twin{"squeezenet", "squeezenet1_1()"},
                    Twin{"inception_v3", "inception_v3(aux_logits=False, init_weights=False)"},
                    Twin{"shufflenet_v2", "shufflenet_v2_x1_0()"}),
    [](const auto& test_case) { return test_case.param.zoo; });

TEST(OnnxCheckerTest, AcceptsEveryNetOfTheZoo) {
  const auto folder =
      std::filesystem::path(testing::TempDir()) / fmt::format("onnx_checker_{}", getpid());
  std::filesystem::create_directories(folder);
  std::string files;
  for (const ZooEntry& entry : Zoo()) {
    Shape input = entry.input;
    if (input[1] > 75) input = {3, 75, 75};
    auto graph = BuildZoo(entry.name, input, 5);
    ASSERT_TRUE(graph.ok()) << graph.status().ToString();
    std::vector<float> weights(static_cast<std::size_t>(graph->parameter_count()), 0.5F);
    std::vector<float> buffers(static_cast<std::size_t>(graph->buffer_count()), 0.5F);
    const auto file = folder / fmt::format("{}.onnx", entry.name);
    const auto written =
        WriteOnnx(file, {std::move(graph).value(), std::move(weights), std::move(buffers)});
    ASSERT_TRUE(written.ok()) << written.ToString();
    files += fmt::format(" \"{}\"", file.string());
  }
  const std::string program =
      "import onnx, sys\n"
      "for path in sys.argv[1:]: onnx.checker.check_model(path, full_check=True)\n";
  const std::string command = fmt::format("\"{}\" -c \"{}\"{}", MOTLEY_PYTHON, program, files);
  EXPECT_EQ(std::system(command.c_str()), 0);
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace motley::graph
