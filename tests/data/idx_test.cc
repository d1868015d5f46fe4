#include "motley/data/idx.h"

#include <gtest/gtest.h>

#include <numeric>
#include <string>
#include <vector>

#include "motley/data/open.h"
#include "tests/data/test_files.h"

namespace motley::data {
namespace {

std::string Counting(std::size_t count) {
  std::string bytes(count, '\0');
  std::iota(bytes.begin(), bytes.end(), '\0');
  return bytes;
}

base::Result<std::shared_ptr<const Dataset>> Parse(const std::string& images,
                                                   const std::string& labels,
                                                   std::optional<int> classes = {}) {
  MOTLEY_ASSIGN_OR_RETURN(auto expanded, ExpandIdx({"images", images}));
  MOTLEY_ASSIGN_OR_RETURN(const auto expanded_labels, ExpandIdx({"labels", labels}));
  return ParseIdx(std::move(expanded), expanded_labels, classes);
}

void ExpectRefused(const std::string& images, const std::string& labels,
                   const std::string& message) {
  const auto result = Parse(images, labels);
  ASSERT_FALSE(result.ok()) << message;
  EXPECT_EQ(result.status().code(), base::Code::kInvalidInput);
  EXPECT_NE(result.status().message().find(message), std::string::npos)
      << result.status().message();
}

const std::string kLabels = Idx({3}, std::string("\0\1\2", 3));
const std::string kImages = Idx({3, 2, 2}, Counting(12));

TEST(IdxTest, ReadsImagesAndLabels) {
  const auto parsed = Parse(kImages, kLabels);
  ASSERT_TRUE(parsed.ok()) << parsed.status().message();
  const Dataset& dataset = **parsed;
  EXPECT_EQ(dataset.size(), 3);
  EXPECT_EQ(dataset.channels(), 1);
  EXPECT_EQ(dataset.classes(), (std::vector<std::string>{"0", "1", "2"}));
  EXPECT_EQ(dataset.label(2), 2);
  EXPECT_EQ(DecodeOrDie(dataset, 1), (std::vector<std::uint8_t>{4, 5, 6, 7}));
}

TEST(IdxTest, ReadsImagesWithChannels) {
  const auto parsed = Parse(Idx({3, 3, 1, 2}, Counting(18)), kLabels);
  ASSERT_TRUE(parsed.ok());
  EXPECT_EQ((*parsed)->channels(), 3);
  EXPECT_EQ(DecodeOrDie(**parsed, 2), (std::vector<std::uint8_t>{12, 13, 14, 15, 16, 17}));
}

TEST(IdxTest, ReadsTheSameFromGzip) {
  const auto parsed = Parse(Gzip(kImages), Gzip(kLabels));
  ASSERT_TRUE(parsed.ok()) << parsed.status().message();
  EXPECT_EQ((*parsed)->ContentHash(), (*Parse(kImages, kLabels))->ContentHash());
}

TEST(IdxTest, RefusesAFileCutOffAnywhere) {
  for (std::size_t length = 0; length < kImages.size(); ++length) {
    ExpectRefused(kImages.substr(0, length), kLabels,
                  "images: byte " + std::to_string(length) + ": the file ends");
  }
  for (std::size_t length = 0; length < kLabels.size(); ++length) {
    ExpectRefused(kImages, kLabels.substr(0, length), "labels: byte " + std::to_string(length));
  }
}

TEST(IdxTest, NeverGetsOtherDataFromAGzipStreamCutOffOrFlippedAnywhere) {
  const std::string hash = (*Parse(kImages, kLabels))->ContentHash();
  const std::string packed = Gzip(kImages);
  for (std::size_t length = 2; length < packed.size(); ++length) {
    EXPECT_FALSE(Parse(packed.substr(0, length), kLabels).ok()) << length;
  }
  for (std::size_t at = 2; at < packed.size(); ++at) {
    std::string flipped = packed;
    flipped[at] = static_cast<char>(flipped[at] ^ 0x10);
    // The time stamp and the bits that fill the last byte carry no data.
    const auto parsed = Parse(flipped, kLabels);
    if (parsed.ok()) {
      EXPECT_EQ((*parsed)->ContentHash(), hash) << at;
    }
  }
}

TEST(IdxTest, RefusesDataBeyondTheHeadersPromise) {
  ExpectRefused(kImages + "x", kLabels, "images: byte 28: more data");
  ExpectRefused(Gzip(kImages + "x"), kLabels, "images (expanded): byte 28: more data");
  // 64 MiB that must never be expanded: the header promises 12.
  std::string bomb = kImages;
  bomb.resize(std::size_t{64} << 20);
  ExpectRefused(Gzip(bomb), kLabels, "byte 28: more data");
}

TEST(IdxTest, RefusesAHugeHeaderWithoutAllocating) {
  ExpectRefused(Idx({0xffffffffU, 0xffffffffU, 0xffffffffU}, ""), kLabels, "images: byte 8");
  ExpectRefused(Idx({0x3fffffffU, 1, 1}, ""), kLabels, "images: byte 16: the file ends here");
  ExpectRefused(Gzip(Idx({0x3fffffffU, 1, 1}, "")), kLabels,
                "byte 4: the header promises 1073741839 bytes");
  ExpectRefused(Idx({3, 1, 20000}, ""), kLabels, "images: byte 12: dimension 2 is 20000");
  ExpectRefused(kImages, Idx({0xffffffffU}, ""), "labels: byte 4: 4294967295 labels for 3 images");
}

TEST(IdxTest, RefusesOtherKindsOfFile) {
  ExpectRefused("<html>not found</html>", kLabels, "images: byte 0: not an IDX file");
  ExpectRefused(kLabels, kLabels, "images: byte 3: 1 dimensions");
  ExpectRefused(kImages, kImages, "labels: byte 3: 3 dimensions");
  ExpectRefused(Idx({0, 2, 2}, ""), Idx({0}, ""), "images: byte 4: dimension 0 is 0");
}

TEST(IdxTest, RefusesCountsThatDiffer) {
  ExpectRefused(kImages, Idx({2}, std::string("\0\1", 2)), "labels: byte 4: 2 labels for 3 images");
}

TEST(IdxTest, RefusesALabelBeyondTheClasses) {
  const auto result = Parse(kImages, kLabels, 2);
  ASSERT_FALSE(result.ok());
  EXPECT_EQ(result.status().message(), "labels: byte 10: label 2, but there are only 2 classes");
  ExpectRefused(kImages, Idx({3}, std::string("\0\xc8\1", 3)), "labels: byte 9: label 200");
}

void WriteSet(const TestFolder& folder, const std::string& test_labels) {
  folder.Write("train-images-idx3-ubyte", kImages);
  folder.Write("train-labels-idx1-ubyte.gz", Gzip(kLabels));
  folder.Write("t10k-images.idx3-ubyte.gz", Gzip(kImages));
  folder.Write("t10k-labels-idx1-ubyte", test_labels);
}

TEST(OpenIdxTest, FindsPlainAndCompressedFiles) {
  const TestFolder folder;
  WriteSet(folder, Idx({3}, std::string("\0\0\1", 3)));
  const auto pair = Open("idx:" + folder.path().string(), "", {});
  ASSERT_TRUE(pair.ok()) << pair.status().ToString();
  EXPECT_EQ(pair->train->size(), 3);
  EXPECT_EQ(pair->test->label(2), 1);
  EXPECT_EQ(pair->test->classes().size(), 3U) << "a test part need not show every class";
}

TEST(OpenIdxTest, RefusesATestLabelThatTrainingDoesNotKnow) {
  const TestFolder folder;
  WriteSet(folder, Idx({3}, std::string("\0\3\1", 3)));
  const auto pair = Open("idx:" + folder.path().string(), "", {});
  ASSERT_FALSE(pair.ok());
  EXPECT_NE(pair.status().message().find("t10k-labels-idx1-ubyte: byte 9: label 3"),
            std::string::npos)
      << pair.status().message();
}

TEST(OpenIdxTest, NamesTheMissingFileAndTheFix) {
  const TestFolder folder;
  const auto pair = Open("idx:" + folder.path().string(), "", {});
  ASSERT_FALSE(pair.ok());
  EXPECT_NE(pair.status().message().find("train-images-idx3-ubyte"), std::string::npos);
  EXPECT_FALSE(pair.status().fix().empty());
}

}  // namespace
}  // namespace motley::data
