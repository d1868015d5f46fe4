#include "motley/data/images.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "motley/data/image_layout.h"
#include "motley/data/open.h"
#include "tests/data/test_files.h"

namespace motley::data {
namespace {

std::string Flat(int width, int height, int channels, std::uint8_t value) {
  return Png(width, height, channels,
             std::vector<std::uint8_t>(static_cast<std::size_t>(width * height * channels), value));
}

// Not in order, so that the order must come from the names.
std::vector<TarEntry> SplitSet() {
  return {{"train/dog/2.png", Flat(4, 4, 3, 20)}, {"test/dog/1.png", Flat(4, 4, 3, 30)},
          {"train/cat/b.png", Flat(4, 4, 3, 12)}, {"train/cat/a.png", Flat(4, 4, 3, 11)},
          {"train/README.txt", "no image"},       {"train/cat/._a.png", "a Mac was here"},
          {"test/cat/1.png", Flat(4, 4, 3, 31)}};
}

std::filesystem::path WriteFolder(const TestFolder& folder, const std::vector<TarEntry>& entries) {
  for (const auto& [name, bytes] : entries) folder.Write("set/" + name, bytes);
  return folder.path() / "set";
}

base::Result<DataPair> OpenTar(const std::vector<TarEntry>& entries,
                               const OpenOptions& options = {}) {
  const TestFolder folder;
  return Open("images:" + folder.Write("set.tar", Tar(entries)).string(), "", options);
}

std::vector<int> FirstPixels(const Dataset& dataset) {
  std::vector<int> pixels;
  for (SampleId id = 0; id < static_cast<SampleId>(dataset.size()); ++id) {
    pixels.push_back(DecodeOrDie(dataset, id)[0]);
  }
  return pixels;
}

TEST(ImagesTest, OrdersSamplesByPathAndClassesByName) {
  const auto pair = OpenTar(SplitSet());
  ASSERT_TRUE(pair.ok()) << pair.status().ToString();
  EXPECT_EQ(pair->train->classes(), (std::vector<std::string>{"cat", "dog"}));
  EXPECT_EQ(FirstPixels(*pair->train), (std::vector<int>{11, 12, 20}));
  EXPECT_EQ(FirstPixels(*pair->test), (std::vector<int>{31, 30}));
  EXPECT_EQ(pair->train->label(2), 1);
  EXPECT_EQ(pair->train->channels(), 3);
}

TEST(ImagesTest, AFolderATarAndAGzippedTarAreTheSameSet) {
  const TestFolder folder;
  const auto gz = folder.Write("set.tar.gz", Gzip(Tar(SplitSet())));
  const auto from_folder = Open("images:" + WriteFolder(folder, SplitSet()).string(), "", {});
  const auto from_gz = Open("images:" + gz.string(), "", {});
  const auto from_tar = OpenTar(SplitSet());
  ASSERT_TRUE(from_folder.ok()) << from_folder.status().ToString();
  ASSERT_TRUE(from_gz.ok()) << from_gz.status().ToString();
  EXPECT_EQ(from_folder->train->ContentHash(), from_gz->train->ContentHash());
  EXPECT_EQ(from_folder->test->ContentHash(), from_tar->test->ContentHash());
  EXPECT_NE(from_folder->train->ContentHash(), from_folder->test->ContentHash());
  EXPECT_EQ(FirstPixels(*from_folder->train), FirstPixels(*from_gz->train));
}

TEST(ImagesTest, ClassFoldersAtTheTopNeedATestSetOfTheirOwn) {
  const TestFolder folder;
  const auto one =
      folder.Write("one.tar", Tar({{"a/1.png", Flat(2, 2, 1, 5)}, {"b/1.png", Flat(2, 2, 1, 6)}}));
  const auto two = folder.Write("two.tar", Tar({{"b/1.png", Flat(2, 2, 1, 7)}}));
  const auto alone = Open("images:" + one.string(), "", {});
  ASSERT_FALSE(alone.ok());
  EXPECT_NE(alone.status().fix().find("data.test"), std::string::npos) << alone.status().ToString();
  const auto pair = Open("images:" + one.string(), "images:" + two.string(), {});
  ASSERT_TRUE(pair.ok()) << pair.status().ToString();
  EXPECT_EQ(pair->train->channels(), 1) << "the first image is grey";
  EXPECT_EQ(pair->test->label(0), 1);
  EXPECT_FALSE(Open("images:" + two.string(), "images:" + one.string(), {}).ok())
      << "class a is unknown in training";
}

TEST(ImagesTest, ResizesEveryImageOrRefusesAnOddOne) {
  const std::vector<TarEntry> entries = {{"train/a/1.png", Flat(4, 4, 3, 1)},
                                         {"train/a/2.png", Flat(9, 5, 3, 2)},
                                         {"test/a/1.png", Flat(40, 40, 1, 3)}};
  const auto resized = OpenTar(entries, {.resize_height = 6, .resize_width = 8});
  ASSERT_TRUE(resized.ok()) << resized.status().ToString();
  EXPECT_EQ(resized->train->height(), 6);
  EXPECT_EQ(DecodeOrDie(*resized->train, 1), std::vector<std::uint8_t>(6 * 8 * 3, 2));
  EXPECT_EQ(DecodeOrDie(*resized->test, 0), std::vector<std::uint8_t>(6 * 8 * 3, 3));
  const auto refused = OpenTar(entries);
  ASSERT_FALSE(refused.ok()) << "the first test image does not fit";
  EXPECT_NE(refused.status().message().find("test/a/1.png"), std::string::npos);
  EXPECT_FALSE(OpenTar(entries, {.resize_height = 6}).ok());
}

TEST(ImagesTest, NamesTheBrokenImageWhenItIsDecoded) {
  const TestFolder folder;
  auto entries = SplitSet();
  entries[0].bytes.resize(40);  // train/dog/2.png
  const auto pair = Open("images:" + WriteFolder(folder, entries).string(), "", {});
  ASSERT_TRUE(pair.ok()) << pair.status().ToString();
  std::vector<std::uint8_t> pixels(48);
  const auto status = pair->train->Decode(2, pixels);
  EXPECT_EQ(status.code(), base::Code::kInvalidInput);
  EXPECT_NE(status.message().find("train/dog/2.png: PNG"), std::string::npos) << status.message();
}

TEST(ImagesTest, RefusesABrokenFirstImageAtOnce) {
  auto entries = SplitSet();
  entries[3].bytes = "not an image";
  const auto pair = OpenTar(entries);
  ASSERT_FALSE(pair.ok());
  EXPECT_NE(pair.status().message().find("set.tar: train/cat/a.png"), std::string::npos);
}

TEST(ImagesTest, RefusesAnEntryThatIsNoImageBeforeKeepingIt) {
  auto entries = SplitSet();
  entries[1].bytes = std::string(1000, '\0');  // neither the first image nor a training one
  const auto pair = OpenTar(entries);
  ASSERT_FALSE(pair.ok());
  EXPECT_NE(pair.status().message().find("set.tar: test/dog/1.png: byte 0: neither"),
            std::string::npos)
      << pair.status().message();
}

TEST(ImagesTest, RefusesAnArchiveThatExpandsBeyondReason) {
  std::string padded = Flat(4, 4, 3, 20);
  padded.resize(std::size_t{40} << 20);
  const std::string gz = Gzip(Tar({{"a/1.png", padded}, {"a/2.png", padded}}));
  const auto source = ImagesInTar(gz, "bomb", {});
  ASSERT_FALSE(source.ok());
  EXPECT_NE(source.status().message().find("bomb: entry 'a/2.png': beyond the"), std::string::npos)
      << source.status().message();
}

TEST(ImagesTest, RefusesHostileAndBrokenArchives) {
  EXPECT_FALSE(OpenTar({{"../a/1.png", Flat(2, 2, 1, 5)}}).ok());
  EXPECT_FALSE(OpenTar({{"/a/1.png", Flat(2, 2, 1, 5)}}).ok());
  EXPECT_FALSE(OpenTar({{"a/1.png", Flat(2, 2, 1, 5)}, {"a/1.png", Flat(2, 2, 1, 5)}}).ok());
  EXPECT_FALSE(OpenTar({{"a/1.txt", "text"}}).ok());
  EXPECT_FALSE(ImagesInTar("not a tar", "x", {}).ok());
  const std::string tar = Tar(SplitSet());
  for (std::size_t length = 0; length + 512 < tar.size(); length += 64) {
    EXPECT_FALSE(ImagesInTar(tar.substr(0, length), "x", {}).ok()) << length;
  }
  EXPECT_TRUE(ImagesInTar(tar, "x", {}).ok());
  const std::string gz = Gzip(tar);
  EXPECT_FALSE(ImagesInTar(gz.substr(0, gz.size() / 2), "x", {}).ok());
}

TEST(ImagesTest, RefusesLinksThatWouldLoseSamples) {
  auto tar = Tar({{"a/1.png", ""}, {"a/2.png", Flat(2, 2, 1, 5)}});
  tar[156] = '2';  // a symbolic link
  unsigned sum = 8 * ' ';
  for (std::size_t i = 0; i < 512; ++i) {
    if (i < 148 || i >= 156) sum += static_cast<unsigned char>(tar[i]);
  }
  tar.replace(148, 6, fmt::format("{:06o}", sum));
  const auto source = ImagesInTar(tar, "x.tar", {});
  ASSERT_FALSE(source.ok());
  EXPECT_NE(source.status().message().find("link"), std::string::npos) << source.status().message();
}

TEST(ImagesTest, KeepsNamesThatAreNotAscii) {
  const auto pair =
      OpenTar({{"train/größe/1.png", Flat(2, 2, 1, 5)}, {"test/größe/1.png", Flat(2, 2, 1, 6)}});
  ASSERT_TRUE(pair.ok()) << pair.status().ToString();
  EXPECT_EQ(pair->train->classes()[0], "größe");
}

TEST(ImageLayoutTest, LooksIntoOneEnclosingFolder) {
  const auto split = UnderstandLayout({"set/test/a/1.jpg", "set/train/a/1.jpg"});
  ASSERT_TRUE(split.ok());
  EXPECT_TRUE(split->split);
  EXPECT_EQ(split->test.size(), 1U);
  const auto flat = UnderstandLayout({"set/a/1.jpg", "set/b/1.jpg"});
  ASSERT_TRUE(flat.ok());
  EXPECT_FALSE(flat->split);
  EXPECT_EQ(flat->train[1].label, "b");
}

TEST(ImageLayoutTest, AClassMayBeCalledTrain) {
  const auto layout = UnderstandLayout({"bus/1.jpg", "train/1.jpg"});
  ASSERT_TRUE(layout.ok());
  EXPECT_FALSE(layout->split);
  EXPECT_EQ(layout->train[1].label, "train");
}

TEST(ImageLayoutTest, NamesAnImageWithoutAClass) {
  const auto layout = UnderstandLayout({"1.jpg", "a/1.jpg"});
  ASSERT_FALSE(layout.ok());
  EXPECT_EQ(layout.status().message(), "image '1.jpg' lies in no class folder");
}

}  // namespace
}  // namespace motley::data
