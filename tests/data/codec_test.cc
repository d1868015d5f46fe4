#include "motley/data/codec.h"

#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "motley/data/resize.h"
#include "tests/data/test_files.h"

namespace motley::data {
namespace {

// A smooth picture, so that JPEG keeps it closely.
std::vector<std::uint8_t> Gradient(int width, int height, int channels) {
  std::vector<std::uint8_t> pixels;
  for (int y = 0; y < height; ++y) {
    for (int x = 0; x < width; ++x) {
      for (int c = 0; c < channels; ++c) {
        pixels.push_back(static_cast<std::uint8_t>(40 + x * 2 + y + c * 30));
      }
    }
  }
  return pixels;
}

int LargestDifference(const std::vector<std::uint8_t>& a, const std::vector<std::uint8_t>& b) {
  EXPECT_EQ(a.size(), b.size());
  int largest = 0;
  for (std::size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
    largest = std::max(largest, std::abs(static_cast<int>(a[i]) - static_cast<int>(b[i])));
  }
  return largest;
}

TEST(CodecTest, ReadsPngExactly) {
  for (const int channels : {1, 3}) {
    const auto pixels = Gradient(17, 9, channels);
    const auto image = DecodeImage(Png(17, 9, channels, pixels), "x.png", {});
    ASSERT_TRUE(image.ok()) << image.status().message();
    EXPECT_EQ(image->channels, channels);
    EXPECT_EQ(image->height, 9);
    EXPECT_EQ(image->pixels, pixels);
  }
}

TEST(CodecTest, ReadsJpegClosely) {
  for (const int channels : {1, 3}) {
    const auto pixels = Gradient(33, 20, channels);
    const auto image = DecodeImage(Jpeg(33, 20, channels, pixels), "x.jpg", {});
    ASSERT_TRUE(image.ok()) << image.status().message();
    EXPECT_EQ(image->channels, channels);
    EXPECT_EQ(image->width, 33);
    EXPECT_LE(LargestDifference(image->pixels, pixels), 8);
  }
}

TEST(CodecTest, ConvertsToTheWantedChannels) {
  const std::vector<std::uint8_t> grey(16 * 16, 77);
  for (const auto& bytes : {Png(16, 16, 1, grey), Jpeg(16, 16, 1, grey)}) {
    const auto image = DecodeImage(bytes, "x", {.channels = 3});
    ASSERT_TRUE(image.ok()) << image.status().message();
    EXPECT_LE(LargestDifference(image->pixels, std::vector<std::uint8_t>(16 * 16 * 3, 77)), 1);
  }
  const std::vector<std::uint8_t> colour(16 * 16 * 3, 90);
  for (const auto& bytes : {Png(16, 16, 3, colour), Jpeg(16, 16, 3, colour)}) {
    const auto image = DecodeImage(bytes, "x", {.channels = 1});
    ASSERT_TRUE(image.ok()) << image.status().message();
    EXPECT_LE(LargestDifference(image->pixels, std::vector<std::uint8_t>(16 * 16, 90)), 1);
  }
}

TEST(CodecTest, TurnsInksIntoColours) {
  std::vector<std::uint8_t> inks;
  for (int i = 0; i < 16 * 16; ++i) inks.insert(inks.end(), {200, 100, 50, 128});
  const auto bytes = Jpeg(16, 16, 4, inks);
  const auto colour = DecodeImage(bytes, "x", {});
  ASSERT_TRUE(colour.ok()) << colour.status().message();
  ASSERT_EQ(colour->pixels.size(), 16U * 16 * 3);
  EXPECT_NEAR(colour->pixels[0], 100, 2);
  EXPECT_NEAR(colour->pixels[1], 50, 2);
  EXPECT_NEAR(colour->pixels[2], 25, 2);
  const auto grey = DecodeImage(bytes, "x", {.channels = 1});
  ASSERT_TRUE(grey.ok());
  EXPECT_EQ(grey->pixels.size(), 16U * 16);
  EXPECT_NEAR(grey->pixels[0], 62, 2);
}

TEST(CodecTest, RefusesImagesCutOffAnywhere) {
  const auto pixels = Gradient(24, 24, 3);
  for (const auto& bytes : {Png(24, 24, 3, pixels), Jpeg(24, 24, 3, pixels)}) {
    // The last bytes of a PNG are an end chunk that no pixel needs.
    for (std::size_t length = 0; length + 12 < bytes.size(); ++length) {
      const auto image = DecodeImage(std::string_view(bytes).substr(0, length), "broken", {});
      ASSERT_FALSE(image.ok()) << length << " of " << bytes.size();
      EXPECT_TRUE(image.status().message().starts_with("broken: "));
    }
  }
}

TEST(CodecTest, RefusesHugeDimensionsBeforeAllocating) {
  std::string jpeg = Jpeg(8, 8, 1, std::vector<std::uint8_t>(64, 1));
  const auto frame = jpeg.find("\xff\xc0");
  ASSERT_NE(frame, std::string::npos);
  jpeg.replace(frame + 5, 4, "\xff\xff\xff\xff");
  const auto image = DecodeImage(jpeg, "huge.jpg", {});
  ASSERT_FALSE(image.ok());
  EXPECT_TRUE(CheckDimensions(16384, 4096, "x").ok());
  EXPECT_FALSE(CheckDimensions(16384, 4097, "x").ok());
  EXPECT_FALSE(CheckDimensions(16385, 1, "x").ok());
  EXPECT_FALSE(CheckDimensions(0, 1, "x").ok());
}

TEST(CodecTest, RefusesAPromiseThatSoFewBytesCannotKeep) {
  std::string jpeg = Jpeg(8, 8, 1, std::vector<std::uint8_t>(64, 1));
  jpeg.replace(jpeg.find("\xff\xc0") + 5, 4, std::string("\x20\x00\x20\x00", 4));
  const auto big_jpeg = DecodeImage(jpeg, "big.jpg", {});
  ASSERT_FALSE(big_jpeg.ok());
  EXPECT_NE(big_jpeg.status().message().find("promises 8192x8192 pixels"), std::string::npos)
      << big_jpeg.status().message();
  // A row of a PNG may be a run of one colour: this is the largest promise that can be kept.
  EXPECT_TRUE(CheckPromise(8192, 8192, 8192 * 8192 / (8 * 1032), "x").ok());
  EXPECT_FALSE(CheckPromise(8192, 8192, 8192 * 8192 / (8 * 1032) - 1, "x").ok());
  const std::string black = Png(4096, 4096, 1, std::vector<std::uint8_t>(4096 * 4096));
  EXPECT_TRUE(DecodeImage(black, "black.png", {}).ok());
}

TEST(CodecTest, RefusesOtherFormats) {
  EXPECT_FALSE(DecodeImage("", "x", {}).ok());
  EXPECT_FALSE(DecodeImage("GIF89a", "x", {}).ok());
}

TEST(CodecTest, ReducesAJpegNoFurtherThanIsEnough) {
  const auto bytes = Jpeg(160, 120, 3, std::vector<std::uint8_t>(160 * 120 * 3, 50));
  const auto image = DecodeImage(bytes, "x", {.enough_height = 30, .enough_width = 32});
  ASSERT_TRUE(image.ok());
  EXPECT_EQ(image->width, 40);
  EXPECT_EQ(image->height, 30);
  EXPECT_LE(LargestDifference(image->pixels, std::vector<std::uint8_t>(40 * 30 * 3, 50)), 1);
}

TEST(ResizeTest, LeavesTheSameSizeAloneAndKeepsConstants) {
  const Image image{.channels = 3, .height = 9, .width = 17, .pixels = Gradient(17, 9, 3)};
  EXPECT_EQ(Resize(image, 9, 17).pixels, image.pixels);
  const Image flat{
      .channels = 1, .height = 5, .width = 7, .pixels = std::vector<std::uint8_t>(35, 201)};
  for (const auto& [height, width] : std::vector<std::pair<int, int>>{{1, 1}, {3, 20}, {50, 2}}) {
    const auto out = Resize(flat, height, width);
    EXPECT_EQ(out.pixels, std::vector<std::uint8_t>(static_cast<std::size_t>(height * width), 201));
  }
}

TEST(ResizeTest, InterpolatesBetweenCentres) {
  const Image image{.channels = 1, .height = 1, .width = 2, .pixels = {0, 100}};
  EXPECT_EQ(Resize(image, 1, 4).pixels, (std::vector<std::uint8_t>{0, 25, 75, 100}));
}

TEST(ResizeTest, CountsEveryPixelWhenShrinking) {
  Image stripes{.channels = 1, .height = 1, .width = 64};
  for (int x = 0; x < 64; ++x) stripes.pixels.push_back(x % 2 == 0 ? 0 : 200);
  const auto out = Resize(stripes, 1, 8);
  for (const int pixel : out.pixels) EXPECT_NEAR(pixel, 100, 8) << "aliasing";
}

}  // namespace
}  // namespace motley::data
