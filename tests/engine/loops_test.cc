// The vector loops of every level that this processor has, against plain ones in double.
#include "motley/engine/native/kernels/simd/loops.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "motley/base/rng.h"
#include "motley/engine/dropout_hash.h"
#include "motley/engine/native/kernels/simd/levels.h"

namespace motley::engine::native::simd {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

struct Level {
  std::string name;
  const Loops* loops;
};

void PrintTo(const Level& level, std::ostream* out) { *out << level.name; }

std::vector<Level> Levels() {
  std::vector<Level> levels = {{"Baseline", &BaselineLoops()}};
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
    levels.push_back({"Avx2", &Avx2Loops()});
  }
  if (__builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
      __builtin_cpu_supports("avx512vl")) {
    levels.push_back({"Avx512", &Avx512Loops()});
  }
#endif
  return levels;
}

std::vector<float> Random(std::int64_t count, std::uint64_t seed) {
  base::Rng rng(base::Key({seed}));
  std::vector<float> values(static_cast<std::size_t>(count));
  for (float& value : values) value = static_cast<float>(rng.Normal());
  return values;
}

class LoopsTest : public ::testing::TestWithParam<Level> {
 protected:
  const Loops& loops_ = *GetParam().loops;
};

TEST_P(LoopsTest, SumsAndRelusOfAnyLength) {
  for (const std::int64_t count : {0, 1, 3, 15, 16, 17, 40, 64, 65}) {
    const auto a = Random(count, 1), b = Random(count, 2);
    std::vector<float> y(a.size()), added = a, clipped = a, dx = b, dx_added = b;
    loops_.add(a.data(), b.data(), y.data(), count);
    loops_.add_to(added.data(), b.data(), count);
    loops_.relu(clipped.data(), clipped.data(), count, 0.75F);
    loops_.relu_backward(clipped.data(), b.data(), dx.data(), count, 0.75F, false);
    loops_.relu_backward(clipped.data(), b.data(), dx_added.data(), count, 0.75F, true);
    for (std::size_t i = 0; i < a.size(); ++i) {
      EXPECT_EQ(y[i], a[i] + b[i]);
      EXPECT_EQ(added[i], a[i] + b[i]);
      EXPECT_EQ(clipped[i], std::clamp(a[i], 0.0F, 0.75F));
      const float g = a[i] > 0.0F && a[i] < 0.75F ? b[i] : 0.0F;
      EXPECT_EQ(dx[i], g);
      EXPECT_EQ(dx_added[i], b[i] + g);
    }
  }
}

TEST_P(LoopsTest, WhatIsNoNumberStaysNoNumber) {
  std::vector<float> x(17, std::numeric_limits<float>::quiet_NaN());
  loops_.relu(x.data(), x.data(), 17, kInfinity);
  for (const float value : x) EXPECT_TRUE(std::isnan(value));
}

// Batch norm, forward and backward, over strips of all widths, near and far apart.
TEST_P(LoopsTest, BatchNormOverAnyStrip) {
  for (const Strip& strip :
       {Strip{.steps = 1}, Strip{.steps = 300}, Strip{.steps = 5, .stride = 20},
        Strip{.steps = 4, .stride = 20, .width = 4},
        Strip{.steps = 1, .stride = 16, .width = 15}}) {
    SCOPED_TRACE(::testing::Message() << strip.steps << " of " << strip.width);
    const std::int64_t size = strip.steps * strip.stride + kWidth;
    const auto x = Random(size, 1), other = Random(size, 2), dy = Random(size, 3);
    const auto centre = Random(kWidth, 4), scale = Random(kWidth, 5), shift = Random(kWidth, 6);
    const auto slope = Random(kWidth, 7);
    std::vector<double> sums(kWidth), squares(kWidth), g_sums(kWidth), products(kWidth);
    std::vector<float> y(x.size(), 9.0F), dx = Random(size, 8), d_other = Random(size, 9);
    const std::vector<float> old_dx = dx, old_other = d_other;
    const NormaliseBackward backward{.centre = centre.data(),
                                     .scale = scale.data(),
                                     .slope = slope.data(),
                                     .shift = shift.data(),
                                     .floor = 0.0F,
                                     .ceiling = 1.0F,
                                     .add_to_dx = true,
                                     .add_to_other = false};
    loops_.moments(x.data(), strip, centre.data(), sums.data(), squares.data());
    loops_.normalise(x.data(), other.data(), y.data(), strip,
                     {.centre = centre.data(),
                      .scale = scale.data(),
                      .shift = shift.data(),
                      .floor = 0.0F,
                      .ceiling = 1.0F});
    loops_.reduce_gradient(x.data(), y.data(), dy.data(), strip, backward, g_sums.data(),
                           products.data());
    loops_.normalise_backward(x.data(), y.data(), dy.data(), dx.data(), d_other.data(), strip,
                              backward);

    std::vector<bool> touched(x.size(), false);
    for (int i = 0; i < strip.width; ++i) {
      const auto c = static_cast<std::size_t>(i);
      double sum = 0.0, square = 0.0, g_sum = 0.0, product = 0.0;
      for (std::int64_t s = 0; s < strip.steps; ++s) {
        const auto at = static_cast<std::size_t>(s * strip.stride + i);
        touched[at] = true;
        const double d = double{x[at]} - double{centre[c]};
        sum += d;
        square += d * d;
        const double value = d * double{scale[c]} + double{shift[c]} + double{other[at]};
        EXPECT_NEAR(y[at], std::clamp(value, 0.0, 1.0), 1e-5);
        const double g = y[at] > 0.0F && y[at] < 1.0F ? double{dy[at]} : 0.0;
        g_sum += g;
        product += g * d;
        EXPECT_EQ(d_other[at], static_cast<float>(g));
        EXPECT_NEAR(
            dx[at],
            double{old_dx[at]} + double{scale[c]} * g + double{slope[c]} * d + double{shift[c]},
            1e-5);
      }
      EXPECT_NEAR(sums[c], sum, 1e-3);
      EXPECT_NEAR(squares[c], square, 1e-3);
      EXPECT_NEAR(g_sums[c], g_sum, 1e-3);
      EXPECT_NEAR(products[c], product, 1e-3);
    }
    for (std::size_t at = 0; at < x.size(); ++at) {
      if (touched[at]) continue;
      EXPECT_EQ(y[at], 9.0F);
      EXPECT_EQ(dx[at], old_dx[at]);
      EXPECT_EQ(d_other[at], old_other[at]);
    }
  }
}

TEST_P(LoopsTest, MaxPoolingRemembersTheFirstOfEquals) {
  for (const int width : {1, 5, kWidth}) {
    // Windows of three pixels, one apart, kWidth channels to a pixel.
    const std::vector<std::int64_t> taps = {0, kWidth, 2 * kWidth};
    const std::vector<std::uint8_t> ids = {7, 0, 200};
    constexpr std::int64_t kOutputs = 4;
    const PoolRun run{.count = kOutputs,
                      .in_step = kWidth,
                      .out_step = kWidth,
                      .taps = taps.data(),
                      .ids = ids.data(),
                      .places = 3,
                      .width = width};
    std::vector<float> x = Random((kOutputs + 2) * kWidth, 1);
    for (float& value : x) value = std::round(value);  // ties
    const auto dy = Random(kOutputs * kWidth, 2);
    std::vector<float> y(dy.size()), dx(x.size()), expected_dx(x.size());
    std::vector<std::uint8_t> where(dy.size());
    loops_.max_pool(x.data(), y.data(), where.data(), run);
    loops_.max_pool_backward(dy.data(), where.data(), dx.data(), run);
    for (std::int64_t o = 0; o < kOutputs; ++o) {
      for (int i = 0; i < width; ++i) {
        std::size_t best = 0;
        const auto value = [&](std::size_t t) {
          return x[static_cast<std::size_t>(o * kWidth + taps[t] + i)];
        };
        for (std::size_t t = 1; t < taps.size(); ++t) best = value(best) < value(t) ? t : best;
        const auto out = static_cast<std::size_t>(o * kWidth + i);
        EXPECT_EQ(y[out], value(best));
        EXPECT_EQ(where[out], ids[best]);
        expected_dx[static_cast<std::size_t>(o * kWidth + taps[best] + i)] += dy[out];
      }
    }
    EXPECT_EQ(dx, expected_dx);
  }
}

TEST_P(LoopsTest, DropoutKeepsWhatTheHashSays) {
  const DropoutRun run{.key = 0x123456789abcdefULL,
                       .first = 5,
                       .step = 3,
                       .threshold = 0x60000000U,
                       .scale = 1.6F,
                       .count = 101};
  const auto x = Random(run.count, 1), before = Random(run.count, 2);
  std::vector<float> y = x, added = before;
  loops_.dropout(y.data(), y.data(), run, false);
  loops_.dropout(x.data(), added.data(), run, true);
  int kept = 0;
  for (std::uint32_t i = 0; i < run.count; ++i) {
    const bool keep = DropoutKeep(run.key, run.first + i * run.step, run.threshold);
    const float expected = keep ? x[i] * run.scale : 0.0F;
    kept += keep ? 1 : 0;
    EXPECT_EQ(y[i], expected);
    EXPECT_FLOAT_EQ(added[i], before[i] + expected);
  }
  EXPECT_GT(kept, 40);
  EXPECT_LT(kept, 90);
}

// Eight channels, each convolved on its own: by the transforms, and as the definition says.
TEST_P(LoopsTest, WinogradsTransformsConvolve) {
  const Winograd& transforms = loops_.winograd;
  const auto x = Random(6 * 6 * 8, 1), w = Random(3 * 3 * 8, 2), before = Random(4 * 4 * 8, 3);
  std::vector<float> tx(x.size()), tw(x.size()), product(x.size()), y = before;
  transforms.data({x.data(), 6 * 8}, {tx.data(), 6 * 8}, false);
  transforms.weights({w.data(), 3 * 8}, {tw.data(), 6 * 8}, false);
  for (std::size_t i = 0; i < product.size(); ++i) product[i] = tx[i] * tw[i];
  transforms.output({product.data(), 6 * 8}, {y.data(), 4 * 8}, true);
  const auto at = [](int row, int column, int width, int channel) {
    return static_cast<std::size_t>((row * width + column) * 8 + channel);
  };
  for (int i = 0; i < 4 * 4 * 8; ++i) {
    const int channel = i % 8, column = i / 8 % 4, row = i / 32;
    double sum = double{before[static_cast<std::size_t>(i)]};
    for (int k = 0; k < 9; ++k) {
      sum += double{x[at(row + k / 3, column + k % 3, 6, channel)]} *
             double{w[at(k / 3, k % 3, 3, channel)]};
    }
    EXPECT_NEAR(y[static_cast<std::size_t>(i)], sum, 1e-5);
  }
}

// <transform(a), b> = <a, transpose(b)>: what the backward pass relies on.
TEST_P(LoopsTest, WinogradsBackwardTransformsAreTransposes) {
  const auto expect_transposes = [](Winograd::Transform transform, int from, int to,
                                    Winograd::Transform transpose) {
    const auto a = Random(from * from * 8, 1), b = Random(to * to * 8, 2);
    std::vector<float> forth(b.size()), back(a.size());
    transform({a.data(), from * 8}, {forth.data(), to * 8}, false);
    transpose({b.data(), to * 8}, {back.data(), from * 8}, false);
    for (std::size_t channel = 0; channel < 8; ++channel) {
      double left = 0.0, right = 0.0;
      for (std::size_t i = channel; i < b.size(); i += 8) left += double{forth[i]} * double{b[i]};
      for (std::size_t i = channel; i < a.size(); i += 8) right += double{a[i]} * double{back[i]};
      EXPECT_NEAR(left, right, 1e-3);
    }
  };
  const Winograd& transforms = loops_.winograd;
  expect_transposes(transforms.output, 6, 4, transforms.gradient);
  expect_transposes(transforms.weights, 3, 6, transforms.weights_gradient);
}

INSTANTIATE_TEST_SUITE_P(Levels, LoopsTest, ::testing::ValuesIn(Levels()),
                         [](const auto& instance) { return instance.param.name; });

}  // namespace
}  // namespace motley::engine::native::simd
