#include "motley/data/transform.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "motley/base/rng.h"
#include "motley/data/memory_dataset.h"

namespace motley::data {
namespace {

MemoryDataset RandomImages(ImageShape shape, std::size_t count) {
  base::Rng rng(11);
  std::string bytes(count * shape.size(), '\0');
  for (char& byte : bytes) byte = static_cast<char>(rng.Below(256));
  return MemoryDataset({.shape = shape,
                        .classes = {"only"},
                        .labels = std::vector<std::int32_t>(count),
                        .bytes = std::move(bytes)});
}

std::vector<float> ApplyTo(const Transform& transform, const Dataset& dataset, std::uint64_t seed,
                           std::uint64_t epoch, SampleId id) {
  std::vector<std::uint8_t> pixels(static_cast<std::size_t>(dataset.pixels_per_sample()));
  EXPECT_TRUE(dataset.Decode(id, pixels).ok());
  std::size_t floats = 1;
  for (const auto side : transform.OutputShape(dataset)) floats *= static_cast<std::size_t>(side);
  std::vector<float> out(floats, -77.0F);
  transform.Apply(dataset, pixels, seed, epoch, id, out);
  return out;
}

// The obvious twin: pad, normalise, cut and mirror pixel by pixel.
std::vector<float> Reference(const Transform& t, const Dataset& dataset, SampleId id, int top,
                             int left, bool flipped) {
  std::vector<std::uint8_t> pixels(static_cast<std::size_t>(dataset.pixels_per_sample()));
  EXPECT_TRUE(dataset.Decode(id, pixels).ok());
  const auto shape = t.OutputShape(dataset);
  std::vector<float> out;
  for (int c = 0; c < shape[0]; ++c) {
    for (int y = 0; y < shape[1]; ++y) {
      for (int x = 0; x < shape[2]; ++x) {
        const int column = flipped ? static_cast<int>(shape[2]) - 1 - x : x;
        const int sy = y + top - t.pad;
        const int sx = column + left - t.pad;
        const bool inside = sy >= 0 && sy < dataset.height() && sx >= 0 && sx < dataset.width();
        const auto at =
            static_cast<std::size_t>((c * dataset.height() + sy) * dataset.width() + sx);
        const auto channel = static_cast<std::size_t>(c);
        out.push_back(inside ? (static_cast<float>(pixels[at]) / 255.0F - t.mean[channel]) /
                                   t.stddev[channel]
                             : 0.0F);
      }
    }
  }
  return out;
}

bool Near(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::equal(a.begin(), a.end(), b.begin(), [](float x, float y) {
           return std::abs(x - y) < 1e-5F;
         });
}

TEST(TransformTest, CutsTheCentreWhenEvaluating) {
  const auto images = RandomImages({3, 7, 9}, 2);
  for (const auto& [pad, height, width] : std::vector<std::tuple<int, int, int>>{
           {0, 0, 0}, {2, 0, 0}, {0, 5, 4}, {1, 8, 3}, {4, 2, 17}}) {
    const Transform transform{.pad = pad,
                              .crop_height = height,
                              .crop_width = width,
                              .flip = true,
                              .mean = {0.1F, 0.5F, 0.9F},
                              .stddev = {0.2F, 0.3F, 0.4F}};
    ASSERT_TRUE(transform.Check(images).ok());
    const auto shape = transform.OutputShape(images);
    const int top = (7 + 2 * pad - static_cast<int>(shape[1])) / 2;
    const int left = (9 + 2 * pad - static_cast<int>(shape[2])) / 2;
    EXPECT_TRUE(Near(ApplyTo(transform, images, 1, 1, 1),
                     Reference(transform, images, 1, top, left, false)))
        << pad << " " << height << " " << width;
  }
}

TEST(TransformTest, EveryTrainingViewIsOneCropOfThePaddedImageAndAllOccur) {
  const auto images = RandomImages({2, 4, 5}, 1);
  const Transform transform{.pad = 2,
                            .crop_height = 6,
                            .crop_width = 7,
                            .flip = true,
                            .mean = {0.3F, 0.6F},
                            .stddev = {0.5F, 0.25F},
                            .training = true};
  std::set<std::tuple<int, int, bool>> seen;
  for (std::uint64_t epoch = 0; epoch < 300; ++epoch) {
    const auto view = ApplyTo(transform, images, 5, epoch, 0);
    int matches = 0;
    for (int choice = 0; choice < 3 * 3 * 2; ++choice) {
      const int top = choice / 6;
      const int left = choice / 2 % 3;
      if (Near(view, Reference(transform, images, 0, top, left, choice % 2 == 1))) {
        seen.emplace(top, left, choice % 2 == 1);
        ++matches;
      }
    }
    ASSERT_EQ(matches, 1);
  }
  EXPECT_EQ(seen.size(), 18U);
}

TEST(TransformTest, ChoicesAreKeyedBySeedEpochAndSample) {
  const auto images = RandomImages({1, 32, 32}, 3);
  const Transform transform{
      .pad = 8, .crop_height = 32, .crop_width = 32, .flip = true, .training = true};
  const auto view = ApplyTo(transform, images, 1, 2, 1);
  EXPECT_EQ(view, ApplyTo(transform, images, 1, 2, 1));
  EXPECT_NE(view, ApplyTo(transform, images, 1, 3, 1));
  EXPECT_NE(view, ApplyTo(transform, images, 2, 2, 1));
}

TEST(TransformTest, RefusesWhatDoesNotFit) {
  const auto images = RandomImages({3, 8, 8}, 1);
  EXPECT_TRUE(Transform{}.Check(images).ok());
  EXPECT_FALSE((Transform{.crop_height = 9, .crop_width = 8}).Check(images).ok());
  EXPECT_TRUE((Transform{.pad = 1, .crop_height = 9, .crop_width = 8}).Check(images).ok());
  EXPECT_FALSE((Transform{.pad = -1}).Check(images).ok());
  EXPECT_FALSE((Transform{.crop_width = -1}).Check(images).ok());
  EXPECT_FALSE((Transform{.mean = {0, 0}, .stddev = {1, 1}}).Check(images).ok());
  EXPECT_FALSE((Transform{.mean = {0, 0, 0}}).Check(images).ok());
  EXPECT_FALSE((Transform{.mean = {0, 0, 0}, .stddev = {1, 0, 1}}).Check(images).ok());
}

TEST(MeasureChannelsTest, GivesOutputsOfMeanZeroAndDeviationOne) {
  const auto images = RandomImages({2, 16, 16}, 50);
  const auto statistics = MeasureChannels(images);
  ASSERT_TRUE(statistics.ok());
  const Transform transform{.mean = statistics->mean, .stddev = statistics->stddev};
  double sum = 0.0;
  double squares = 0.0;
  for (SampleId id = 0; id < 50; ++id) {
    for (const float value : ApplyTo(transform, images, 0, 0, id)) {
      sum += value;
      squares += static_cast<double>(value) * value;
    }
  }
  const double n = 50 * 2 * 16 * 16;
  EXPECT_NEAR(sum / n, 0.0, 1e-4);
  EXPECT_NEAR(squares / n, 1.0, 1e-4);
}

TEST(MeasureChannelsTest, SurvivesAConstantChannelAndRefusesAnEmptySet) {
  const MemoryDataset black(
      {.shape = {1, 2, 2}, .classes = {"only"}, .labels = {0}, .bytes = std::string(4, '\x7f')});
  const auto statistics = MeasureChannels(black);
  ASSERT_TRUE(statistics.ok());
  EXPECT_FLOAT_EQ(statistics->stddev[0], 1.0F);
  EXPECT_FALSE(MeasureChannels(RandomImages({1, 2, 2}, 0)).ok());
}

TEST(TransformTest, KeepsUpWithADeviceOnDigits) {
  const auto images = RandomImages({1, 28, 28}, 64);
  const Transform transform{.pad = 2,
                            .crop_height = 28,
                            .crop_width = 28,
                            .flip = true,
                            .mean = {0.13F},
                            .stddev = {0.31F},
                            .training = true};
  std::vector<std::uint8_t> pixels(28 * 28);
  std::vector<float> out(28 * 28);
  const auto start = std::chrono::steady_clock::now();
  constexpr int kSamples = 20000;
  for (int i = 0; i < kSamples; ++i) {
    const SampleId id = static_cast<SampleId>(i) % 64;
    ASSERT_TRUE(images.Decode(id, pixels).ok());
    transform.Apply(images, pixels, 1, static_cast<std::uint64_t>(i), id, out);
  }
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  RecordProperty("samples_per_second", static_cast<int>(kSamples / seconds.count()));
  // The wanted 50,000 per core and second, with room for a busy machine and sanitizers.
  EXPECT_LT(seconds.count(), kSamples / 5000.0);
}

}  // namespace
}  // namespace motley::data
