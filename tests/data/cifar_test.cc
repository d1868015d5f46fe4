#include "motley/data/cifar.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "motley/data/open.h"
#include "tests/data/test_files.h"

namespace motley::data {
namespace {

std::string Record(const std::string& labels, char fill) {
  return labels + std::string(3072, fill);
}

const CifarFormat kThreeClasses{.label_bytes = 1, .classes = {"a", "b", "c"}};

TEST(CifarTest, ReadsRecordsOfAllFilesInOrder) {
  const auto parsed = ParseCifar(
      {{"one", Record("\1", 'x') + Record("\2", 'y')}, {"two", Record(std::string(1, '\0'), 'z')}},
      kThreeClasses);
  ASSERT_TRUE(parsed.ok()) << parsed.status().message();
  const Dataset& dataset = **parsed;
  EXPECT_EQ(dataset.size(), 3);
  EXPECT_EQ(dataset.channels(), 3);
  EXPECT_EQ(dataset.height(), 32);
  EXPECT_EQ(dataset.label(1), 2);
  EXPECT_EQ(DecodeOrDie(dataset, 2), std::vector<std::uint8_t>(3072, 'z'));
}

TEST(CifarTest, TakesTheFineLabelOfTwo) {
  const auto parsed =
      ParseCifar({{"f", Record("\x13\2", 'x')}}, {.label_bytes = 2, .classes = {"a", "b", "c"}});
  ASSERT_TRUE(parsed.ok());
  EXPECT_EQ((*parsed)->label(0), 2);
}

TEST(CifarTest, RefusesACutOffFileWithItsOffset) {
  const std::string two = Record("\1", 'x') + Record("\2", 'y');
  for (const std::size_t length : {1U, 3072U, 3074U, 6145U}) {
    const auto parsed = ParseCifar({{"file", two.substr(0, length)}}, kThreeClasses);
    ASSERT_FALSE(parsed.ok());
    EXPECT_TRUE(parsed.status().message().starts_with("file: byte " + std::to_string(length)))
        << parsed.status().message();
  }
  EXPECT_FALSE(ParseCifar({{"file", ""}}, kThreeClasses).ok());
}

TEST(CifarTest, RefusesALabelBeyondTheClassesWithItsOffset) {
  const auto parsed = ParseCifar({{"file", Record("\1", 'x') + Record("\3", 'y')}}, kThreeClasses);
  ASSERT_FALSE(parsed.ok());
  EXPECT_EQ(parsed.status().message(), "file: byte 3073: label 3, but there are only 3 classes");
}

void WriteCifar10(const TestFolder& folder, const std::string& prefix) {
  for (const char i : {'1', '2', '3', '4', '5'}) {
    folder.Write(prefix + "data_batch_" + i + ".bin",
                 Record(std::string(1, static_cast<char>(i - '0')), i));
  }
  folder.Write(prefix + "test_batch.bin", Record("\x9", 't'));
}

TEST(OpenCifarTest, FindsCifar10InTheFolderOrBelowIt) {
  for (const std::string prefix : {"", "cifar-10-batches-bin/"}) {
    const TestFolder folder;
    WriteCifar10(folder, prefix);
    const auto pair = Open("cifar:" + folder.path().string(), "", {});
    ASSERT_TRUE(pair.ok()) << pair.status().ToString();
    EXPECT_EQ(pair->train->size(), 5);
    EXPECT_EQ(pair->train->classes()[9], "truck");
    EXPECT_EQ(DecodeOrDie(*pair->train, 4)[0], '5');
    EXPECT_EQ(pair->test->label(0), 9);
  }
}

TEST(OpenCifarTest, RefusesAFileThatIsTooLargeWithoutReadingIt) {
  const TestFolder folder;
  WriteCifar10(folder, "");
  // All hole: it takes no space.
  std::filesystem::resize_file(folder.path() / "data_batch_3.bin", 3073ULL << 20);
  const auto pair = Open("cifar:" + folder.path().string(), "", {});
  ASSERT_FALSE(pair.ok());
  EXPECT_NE(pair.status().message().find("data_batch_3.bin: is larger than"), std::string::npos)
      << pair.status().message();
}

TEST(OpenCifarTest, TakesClassNamesFromTheMetaFile) {
  const TestFolder folder;
  WriteCifar10(folder, "");
  folder.Write("batches.meta.txt", "a\nb\nc\nd\r\ne\nf\ng\nh\ni\nj\n\n");
  const auto pair = Open("cifar:" + folder.path().string(), "", {});
  ASSERT_TRUE(pair.ok()) << pair.status().ToString();
  EXPECT_EQ(pair->test->classes()[3], "d");
  folder.Write("batches.meta.txt", "a\nb\n");
  EXPECT_FALSE(Open("cifar:" + folder.path().string(), "", {}).ok());
}

TEST(OpenCifarTest, FindsCifar100) {
  const TestFolder folder;
  folder.Write("train.bin", Record("\1\x63", 'x'));
  folder.Write("test.bin", Record("\1\2", 'y'));
  const auto pair = Open("cifar:" + folder.path().string(), "", {});
  ASSERT_TRUE(pair.ok()) << pair.status().ToString();
  EXPECT_EQ(pair->train->classes().size(), 100U);
  EXPECT_EQ(pair->train->label(0), 99);
}

TEST(OpenCifarTest, NamesWhatIsMissing) {
  const TestFolder folder;
  EXPECT_FALSE(Open("cifar:" + folder.path().string(), "", {}).ok());
  folder.Write("data_batch_1.bin", Record("\1", 'x'));
  const auto pair = Open("cifar:" + folder.path().string(), "", {});
  ASSERT_FALSE(pair.ok());
  EXPECT_NE(pair.status().message().find("data_batch_2.bin"), std::string::npos);
}

}  // namespace
}  // namespace motley::data
