#include "motley/data/transform.h"

#include <algorithm>
#include <cmath>

#include "motley/base/check.h"
#include "motley/base/rng.h"

namespace motley::data {
namespace {

// pixel * scale + shift is (pixel / 255 - mean) / stddev with one multiplication.
struct Affine {
  float scale, shift;
};

Affine ChannelAffine(const Transform& transform, std::size_t channel) {
  const float mean = transform.mean.empty() ? 0.0F : transform.mean[channel];
  const float stddev = transform.stddev.empty() ? 1.0F : transform.stddev[channel];
  return {1.0F / (255.0F * stddev), -mean / stddev};
}

// Plain loops over restrict pointers: the compiler turns both into vector code.
void ConvertForward(const std::uint8_t* __restrict from, float* __restrict to, int count,
                    Affine affine) {
  for (int x = 0; x < count; ++x) {
    to[x] = static_cast<float>(from[x]) * affine.scale + affine.shift;
  }
}

void ConvertBackward(const std::uint8_t* __restrict from, float* __restrict to, int count,
                     Affine affine) {
  for (int x = 0; x < count; ++x) {
    to[x] = static_cast<float>(from[count - 1 - x]) * affine.scale + affine.shift;
  }
}

// The window that is cut out, in coordinates of the unpadded image.
struct Window {
  int top, left, height, width;
  bool flipped;
};

Window ChooseWindow(const Transform& transform, const Dataset& dataset, std::uint64_t key) {
  const int padded_height = dataset.height() + 2 * transform.pad;
  const int padded_width = dataset.width() + 2 * transform.pad;
  Window window{};
  window.height = transform.crop_height > 0 ? transform.crop_height : padded_height;
  window.width = transform.crop_width > 0 ? transform.crop_width : padded_width;
  const int spare_y = padded_height - window.height;
  const int spare_x = padded_width - window.width;
  window.top = spare_y / 2 - transform.pad;
  window.left = spare_x / 2 - transform.pad;
  if (transform.training) {
    base::Rng rng(key);
    window.top = static_cast<int>(rng.Below(static_cast<std::uint64_t>(spare_y) + 1));
    window.left = static_cast<int>(rng.Below(static_cast<std::uint64_t>(spare_x) + 1));
    window.top -= transform.pad;
    window.left -= transform.pad;
    window.flipped = transform.flip && (rng.Next() >> 63) != 0;
  }
  return window;
}

// One row of the window; `row` is the image's row, or null when the window is above or below it.
void CopyRow(const std::uint8_t* row, int row_width, const Window& window, Affine affine,
             float* out) {
  const int begin = std::clamp(-window.left, 0, window.width);
  const int end = std::clamp(row_width - window.left, begin, window.width);
  if (row == nullptr || begin == end) {
    std::fill_n(out, window.width, 0.0F);
    return;
  }
  const std::uint8_t* from = row + window.left + begin;
  const int before = window.flipped ? window.width - end : begin;
  const int count = end - begin;
  std::fill_n(out, before, 0.0F);
  if (window.flipped) {
    ConvertBackward(from, out + before, count, affine);
  } else {
    ConvertForward(from, out + before, count, affine);
  }
  std::fill(out + before + count, out + window.width, 0.0F);
}

base::Status CheckStatistics(const std::vector<float>& mean, const std::vector<float>& stddev,
                             int channels) {
  const auto expected = static_cast<std::size_t>(channels);
  if (!(mean.empty() && stddev.empty()) && (mean.size() != expected || stddev.size() != expected)) {
    return base::InvalidInput("normalisation has {} means and {} deviations for {} channels",
                              mean.size(), stddev.size(), channels)
        .WithFix("give one mean and one deviation per channel, or none at all");
  }
  for (const float value : mean) {
    if (!std::isfinite(value)) return base::InvalidInput("normalisation: mean is {}", value);
  }
  for (const float value : stddev) {
    if (!std::isfinite(value) || value <= 0.0F) {
      return base::InvalidInput("normalisation: deviation is {}, must be above 0", value);
    }
  }
  return {};
}

}  // namespace

std::vector<std::int64_t> Transform::OutputShape(const Dataset& dataset) const {
  return {dataset.channels(), crop_height > 0 ? crop_height : dataset.height() + 2 * pad,
          crop_width > 0 ? crop_width : dataset.width() + 2 * pad};
}

base::Status Transform::Check(const Dataset& dataset) const {
  // Far above any use, and low enough that the sums below cannot overflow.
  constexpr int kMaxSide = 1 << 20;
  if (pad < 0 || pad > kMaxSide) return base::InvalidInput("padding is {}", pad);
  const int height = dataset.height() + 2 * pad;
  const int width = dataset.width() + 2 * pad;
  if (crop_height < 0 || crop_width < 0 || crop_height > height || crop_width > width) {
    return base::InvalidInput("crop {}x{} does not fit into the padded image {}x{}", crop_height,
                              crop_width, height, width)
        .WithFix("crop less or pad more");
  }
  return CheckStatistics(mean, stddev, dataset.channels());
}

void Transform::Apply(const Dataset& dataset, std::span<const std::uint8_t> pixels,
                      std::uint64_t seed, std::uint64_t epoch, SampleId id,
                      std::span<float> out) const {
  const Window window = ChooseWindow(*this, dataset, base::Key({seed, epoch, id}));
  const int height = dataset.height();
  const int width = dataset.width();
  const auto channels = static_cast<std::size_t>(dataset.channels());
  const auto plane = static_cast<std::size_t>(height) * static_cast<std::size_t>(width);
  MOTLEY_CHECK(pixels.size() == channels * plane, "{} pixels for {} channels of {}x{}",
               pixels.size(), channels, height, width);
  MOTLEY_CHECK(out.size() == channels * static_cast<std::size_t>(window.height) *
                                 static_cast<std::size_t>(window.width),
               "{} floats for {} channels of {}x{}", out.size(), channels, window.height,
               window.width);
  float* to = out.data();
  for (std::size_t c = 0; c < channels; ++c) {
    const Affine affine = ChannelAffine(*this, c);
    for (int y = window.top; y < window.top + window.height; ++y, to += window.width) {
      const bool inside = y >= 0 && y < height;
      const std::uint8_t* row =
          inside ? pixels.data() + c * plane + static_cast<std::ptrdiff_t>(y) * width : nullptr;
      CopyRow(row, width, window, affine, to);
    }
  }
}

base::Result<ChannelStatistics> MeasureChannels(const Dataset& dataset, std::int64_t limit) {
  const std::int64_t count = std::min(limit, dataset.size());
  if (count <= 0) return base::InvalidInput("cannot measure the channels of an empty dataset");
  const auto channels = static_cast<std::size_t>(dataset.channels());
  std::vector<std::uint8_t> pixels(static_cast<std::size_t>(dataset.pixels_per_sample()));
  const std::size_t plane = pixels.size() / channels;
  // Whole numbers: exact, so the result cannot depend on the order.
  std::vector<std::uint64_t> sums(channels);
  std::vector<std::uint64_t> squares(channels);
  for (std::int64_t i = 0; i < count; ++i) {
    // Spacing first, so that i * size cannot overflow.
    const std::int64_t id = i * (dataset.size() / count) + i * (dataset.size() % count) / count;
    MOTLEY_RETURN_IF_ERROR(dataset.Decode(static_cast<SampleId>(id), pixels));
    for (std::size_t p = 0; p < pixels.size(); ++p) {
      const std::uint64_t value = pixels[p];
      sums[p / plane] += value;
      squares[p / plane] += value * value;
    }
  }
  ChannelStatistics statistics;
  const double n = static_cast<double>(count) * static_cast<double>(plane);
  for (std::size_t c = 0; c < channels; ++c) {
    const double mean = static_cast<double>(sums[c]) / n;
    const double variance = static_cast<double>(squares[c]) / n - mean * mean;
    statistics.mean.push_back(static_cast<float>(mean / 255.0));
    statistics.stddev.push_back(variance > 0.0 ? static_cast<float>(std::sqrt(variance) / 255.0)
                                               : 1.0F);
  }
  return statistics;
}

}  // namespace motley::data
