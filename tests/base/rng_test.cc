#include "motley/base/rng.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>

namespace motley::base {
namespace {

TEST(RngTest, TheSameKeyGivesTheSameNumbers) {
  static_assert(Extend(Key({1, 2}), 3) == Key({1, 2, 3}));
  Rng a(Key({1, 2, 3}));
  Rng b(Key({1, 2, 3}));
  Rng c(Key({1, 3, 2}));
  EXPECT_EQ(a.Next(), b.Next());
  EXPECT_NE(a.Next(), c.Next());
}

TEST(RngTest, BelowIsUniform) {
  Rng rng(Key({7}));
  std::array<int, 5> counts{};
  for (int i = 0; i < 50000; ++i) ++counts[rng.Below(5)];
  for (const int count : counts) EXPECT_NEAR(count, 10000, 500);
}

TEST(RngTest, NormalHasMeanZeroAndVarianceOne) {
  Rng rng(Key({8}));
  double sum = 0.0, squares = 0.0;
  constexpr int kDraws = 100000;
  for (int i = 0; i < kDraws; ++i) {
    const double x = rng.Normal();
    ASSERT_TRUE(std::isfinite(x));
    sum += x;
    squares += x * x;
  }
  EXPECT_NEAR(sum / kDraws, 0.0, 0.02);
  EXPECT_NEAR(squares / kDraws, 1.0, 0.02);
}

}  // namespace
}  // namespace motley::base
