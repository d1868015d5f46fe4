#include "motley/data/resize.h"

#include <algorithm>
#include <cmath>

#include "motley/base/check.h"

namespace motley::data {
namespace {

// The source pixels [first, first + weights.size()) that make one target pixel; weights sum to 1.
struct Tap {
  int first;
  std::vector<float> weights;
};

std::vector<Tap> Taps(int from, int to) {
  const double scale = static_cast<double>(from) / to;
  const double radius = std::max(1.0, scale);
  std::vector<Tap> taps;
  for (int i = 0; i < to; ++i) {
    const double centre = (i + 0.5) * scale;  // in source pixels, whose centres are at k + 0.5
    const int first = std::max(0, static_cast<int>(std::floor(centre - radius - 0.5)));
    const int last = std::min(from - 1, static_cast<int>(std::ceil(centre + radius - 0.5)));
    Tap tap{first, {}};
    double sum = 0.0;
    for (int k = first; k <= last; ++k) {
      const double weight = std::max(0.0, 1.0 - std::abs(k + 0.5 - centre) / radius);
      tap.weights.push_back(static_cast<float>(weight));
      sum += weight;
    }
    for (float& weight : tap.weights) weight = static_cast<float>(weight / sum);
    taps.push_back(std::move(tap));
  }
  return taps;
}

// One row of the source, shrunk or stretched to the target's width.
void ResizeRow(const std::uint8_t* row, const std::vector<Tap>& columns, int channels, float* out) {
  for (const Tap& tap : columns) {
    for (int c = 0; c < channels; ++c) {
      const std::uint8_t* from = row + tap.first * channels + c;
      float sum = 0.0F;
      for (std::size_t k = 0; k < tap.weights.size(); ++k) {
        sum += tap.weights[k] * static_cast<float>(from[k * static_cast<std::size_t>(channels)]);
      }
      *out++ = sum;
    }
  }
}

}  // namespace

Image Resize(const Image& image, int height, int width) {
  MOTLEY_CHECK(image.height > 0 && image.width > 0 && height > 0 && width > 0,
               "resize {}x{} to {}x{}", image.height, image.width, height, width);
  if (image.height == height && image.width == width) return image;
  const auto columns = Taps(image.width, width);
  const auto rows = Taps(image.height, height);
  const auto from_stride = static_cast<std::size_t>(image.width * image.channels);
  const auto to_stride = static_cast<std::size_t>(width * image.channels);
  // Rows of the right width; only those under the current target row are needed, but all are kept:
  // it is never more than the picture itself.
  std::vector<float> narrow(to_stride * static_cast<std::size_t>(image.height));
  for (std::size_t y = 0; y < static_cast<std::size_t>(image.height); ++y) {
    ResizeRow(image.pixels.data() + y * from_stride, columns, image.channels,
              narrow.data() + y * to_stride);
  }
  Image out{.channels = image.channels, .height = height, .width = width};
  out.pixels.reserve(to_stride * static_cast<std::size_t>(height));
  std::vector<float> sums(to_stride);
  for (const Tap& tap : rows) {
    std::fill(sums.begin(), sums.end(), 0.0F);
    for (std::size_t k = 0; k < tap.weights.size(); ++k) {
      const float* from = narrow.data() + (static_cast<std::size_t>(tap.first) + k) * to_stride;
      for (std::size_t x = 0; x < to_stride; ++x) sums[x] += tap.weights[k] * from[x];
    }
    for (const float sum : sums) {
      out.pixels.push_back(static_cast<std::uint8_t>(std::clamp(sum + 0.5F, 0.0F, 255.0F)));
    }
  }
  return out;
}

}  // namespace motley::data
