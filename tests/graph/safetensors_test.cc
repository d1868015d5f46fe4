#include "motley/graph/safetensors.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <string>
#include <utility>

#include "motley/base/file.h"
#include "motley/graph/zoo.h"

namespace motley::graph {
namespace {

using std::string_literals::operator""s;

// A file as the format's page describes it: length, header, data.
std::string FileOf(const std::string& header, const std::string& data) {
  std::string length(8, '\0');
  const std::uint64_t size = header.size();
  std::memcpy(length.data(), &size, 8);
  return length + header + data;
}

// One array "x" with this entry and 8 bytes of data.
std::string FileWithEntry(const std::string& entry) {
  return FileOf("{\"x\":" + entry + "}", std::string(8, '\0'));
}

class SafetensorsFileTest : public testing::Test {
 protected:
  SafetensorsFileTest()
      : folder_(std::filesystem::path(testing::TempDir()) /
                fmt::format("safetensors_{}", getpid())) {
    std::filesystem::create_directories(folder_);
  }
  ~SafetensorsFileTest() override { std::filesystem::remove_all(folder_); }

  std::filesystem::path File() const { return folder_ / "weights.safetensors"; }

  const std::filesystem::path folder_;
};

Model SmallModel(std::uint64_t seed) {
  GraphBuilder net("small", {1, 4, 4});
  NodeId x = net.Conv("conv", net.input(), {.out_channels = 3, .kernel_h = 3, .kernel_w = 3});
  x = net.BatchNorm("bn", x);
  x = net.Flatten("flatten", x);
  x = net.FullyConnected("fc", x, {.out_features = 2});
  return InitialModel(std::move(net).Build(x).value(), seed);
}

TEST(SafetensorsTest, ReadsAFileSpelledOutByHand) {
  // 2 arrays: b = [1.0, -2.0], a = [[0.5]]; the header is padded with a space.
  const std::string header =
      R"({"__metadata__":{"k":"v"},"b":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},)"
      R"("a":{"dtype":"F32","shape":[1,1],"data_offsets":[8,12]}} )";
  const std::string data = "\x00\x00\x80\x3f\x00\x00\x00\xc0\x00\x00\x00\x3f"s;
  const auto arrays = ParseSafetensors(FileOf(header, data), "hand");
  ASSERT_TRUE(arrays.ok()) << arrays.status().ToString();
  ASSERT_EQ(arrays->size(), 2U);
  EXPECT_EQ(arrays->at("a").shape, (Shape{1, 1}));
  EXPECT_EQ(arrays->at("a").values, (std::vector<float>{0.5F}));
  EXPECT_EQ(arrays->at("b").shape, (Shape{2}));
  EXPECT_EQ(arrays->at("b").values, (std::vector<float>{1.0F, -2.0F}));
}

TEST_F(SafetensorsFileTest, WritesExactlyTheBytesOfTheFormat) {
  const std::vector<float> values{1.0F, -2.0F};
  const NamedArray array{.name = "b", .shape = {2}, .values = values};
  ASSERT_TRUE(WriteSafetensors(File(), std::span(&array, 1)).ok());
  const std::string expected =
      "\x38\x00\x00\x00\x00\x00\x00\x00"
      R"({"b":{"data_offsets":[0,8],"dtype":"F32","shape":[2]}}  )"
      "\x00\x00\x80\x3f\x00\x00\x00\xc0"s;
  EXPECT_EQ(base::ReadFile(File()).value(), expected);
}

TEST_F(SafetensorsFileTest, ScalarsAndEmptyArraysSurvive) {
  const float one = 1.0F;
  const std::vector<NamedArray> arrays = {{"empty", {0, 3}, {}}, {"scalar", {}, {&one, 1}}};
  ASSERT_TRUE(WriteSafetensors(File(), arrays, {{"note", "ä \"quoted\""}}).ok());
  const auto read = ParseSafetensors(base::ReadFile(File()).value(), "file");
  ASSERT_TRUE(read.ok()) << read.status().ToString();
  EXPECT_EQ(read->at("empty").shape, (Shape{0, 3}));
  EXPECT_EQ(read->at("scalar").values, (std::vector<float>{1.0F}));
}

TEST_F(SafetensorsFileTest, ANameUsedTwiceIsRefused) {
  const float one = 1.0F;
  const std::vector<NamedArray> arrays = {{"x", {1}, {&one, 1}}, {"x", {1}, {&one, 1}}};
  EXPECT_FALSE(WriteSafetensors(File(), arrays).ok());
  EXPECT_FALSE(std::filesystem::exists(File()));
}

TEST_F(SafetensorsFileTest, AModelComesBackBitForBit) {
  Model saved = SmallModel(1);
  saved.buffers[0] = 0.25F;
  ASSERT_TRUE(SaveWeights(File(), saved).ok());
  Model loaded = SmallModel(2);
  ASSERT_NE(loaded.weights, saved.weights);
  const auto status = LoadWeights(File(), loaded);
  ASSERT_TRUE(status.ok()) << status.ToString();
  EXPECT_EQ(loaded.weights, saved.weights);
  EXPECT_EQ(loaded.buffers, saved.buffers);
}

TEST_F(SafetensorsFileTest, TorchsBatchCounterIsIgnored) {
  const Model model = SmallModel(1);
  std::string header = "{";
  std::string data;
  const auto add = [&](const std::vector<Tensor>& tensors, const std::vector<float>& values) {
    for (const Tensor& t : tensors) {
      header += fmt::format(R"("{}":{{"dtype":"F32","shape":[)", t.name);
      for (std::size_t i = 0; i < t.shape.size(); ++i) {
        header += (i > 0 ? "," : "") + std::to_string(t.shape[i]);
      }
      const std::size_t begin = data.size();
      data.append(reinterpret_cast<const char*>(values.data() + t.offset),
                  static_cast<std::size_t>(t.size) * 4);
      header += fmt::format(R"(],"data_offsets":[{},{}]}},)", begin, data.size());
    }
  };
  add(model.graph.parameters(), model.weights);
  add(model.graph.buffers(), model.buffers);
  header += fmt::format(
      R"("bn.num_batches_tracked":{{"dtype":"I64","shape":[],"data_offsets":[{},{}]}}}})",
      data.size(), data.size() + 8);
  data += std::string(8, '\1');
  const std::string bytes = FileOf(header, data);
  const std::string_view part = bytes;
  ASSERT_TRUE(base::WriteFileSynced(File(), std::span(&part, 1)).ok());
  Model loaded = SmallModel(2);
  const auto status = LoadWeights(File(), loaded);
  ASSERT_TRUE(status.ok()) << status.ToString();
  EXPECT_EQ(loaded.weights, model.weights);
}

TEST_F(SafetensorsFileTest, MissingUnknownAndMisshapenArraysAreNamedAndChangeNothing) {
  const Model other = InitialModel(BuildZoo("lenet", {1, 28, 28}, 10).value(), 1);
  ASSERT_TRUE(SaveWeights(File(), other).ok());
  Model model = SmallModel(1);
  const std::vector<float> before = model.weights;
  const auto missing = LoadWeights(File(), model);
  ASSERT_FALSE(missing.ok());
  EXPECT_NE(missing.message().find("'conv.weight'"), std::string::npos) << missing.ToString();
  EXPECT_EQ(model.weights, before);

  Model wide = InitialModel(BuildZoo("lenet", {1, 28, 28}, 11).value(), 1);
  const auto misshapen = LoadWeights(File(), wide);
  ASSERT_FALSE(misshapen.ok());
  EXPECT_NE(misshapen.message().find("'ip2.weight'"), std::string::npos) << misshapen.ToString();

  std::vector<NamedArray> arrays;
  for (const Tensor& t : other.graph.parameters()) {
    arrays.push_back(
        {t.name, t.shape,
         std::span(other.weights)
             .subspan(static_cast<std::size_t>(t.offset), static_cast<std::size_t>(t.size))});
  }
  const float one = 1.0F;
  arrays.push_back({"stranger", {1}, {&one, 1}});
  ASSERT_TRUE(WriteSafetensors(File(), arrays).ok());
  Model same = other;
  const auto unknown = LoadWeights(File(), same);
  ASSERT_FALSE(unknown.ok());
  EXPECT_NE(unknown.message().find("'stranger'"), std::string::npos) << unknown.ToString();
}

TEST(SafetensorsTest, WhatTheBytesDoNotBackIsRefusedWithTheFile) {
  const std::vector<std::string> broken = {
      "",
      "1234567",
      "\xff\xff\xff\xff\xff\xff\xff\xff{}"s,
      "\x03\x00\x00\x00\x00\x00\x00\x00{}"s,
      FileOf("[]", ""),
      FileOf("{", ""),
      FileOf("{} x", ""),
      FileOf("{}", "data of nobody"),
      FileOf(R"({"x":[[[[[[]]]]]]})", ""),
      FileOf(R"({"x":1})", ""),
      FileWithEntry(R"({"dtype":"F32","shape":[2]})"),
      FileWithEntry(R"({"dtype":"F16","shape":[4],"data_offsets":[0,8]})"),
      FileWithEntry(R"({"dtype":"I64","shape":[1],"data_offsets":[0,8]})"),
      FileWithEntry(R"({"dtype":"F32","shape":[3],"data_offsets":[0,8]})"),
      FileWithEntry(R"({"dtype":"F32","shape":[-2],"data_offsets":[0,8]})"),
      FileWithEntry(R"({"dtype":"F32","shape":[2.0],"data_offsets":[0,8]})"),
      FileWithEntry(R"({"dtype":"F32","shape":[1],"data_offsets":[0,4]})"),
      FileWithEntry(R"({"dtype":"F32","shape":[1],"data_offsets":[4,8]})"),
      FileWithEntry(R"({"dtype":"F32","shape":[2],"data_offsets":[8,0]})"),
      FileWithEntry(R"({"dtype":"F32","shape":[3],"data_offsets":[0,12]})"),
      FileWithEntry(R"({"dtype":"F32","shape":[2],"data_offsets":[0,8,8]})"),
      // Products that wrap around to 8 bytes.
      FileWithEntry(R"({"dtype":"F32","shape":[4611686018427387905,2],"data_offsets":[0,8]})"),
      FileWithEntry(R"({"dtype":"F32","shape":[18446744073709551615],"data_offsets":[0,8]})"),
      FileOf(R"({"x":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},)"
             R"("x":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})",
             std::string(8, '\0')),
      FileOf(R"({"x":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},)"
             R"("y":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})",
             std::string(8, '\0')),
  };
  for (const std::string& bytes : broken) {
    const auto arrays = ParseSafetensors(bytes, "some.file");
    ASSERT_FALSE(arrays.ok()) << bytes;
    EXPECT_EQ(arrays.status().code(), base::Code::kInvalidInput);
    EXPECT_EQ(arrays.status().message().rfind("some.file: ", 0), 0U) << arrays.status().ToString();
  }
}

}  // namespace
}  // namespace motley::graph
