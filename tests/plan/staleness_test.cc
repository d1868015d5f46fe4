#include "motley/plan/staleness.h"

#include <gtest/gtest.h>

namespace motley::plan {
namespace {

using Counts = std::vector<std::int64_t>;

TEST(StalenessTest, CountsHowStaleUpdatesWere) {
  StalenessHistogram histogram;
  EXPECT_EQ(histogram.mean(), 0.0);
  EXPECT_TRUE(histogram.parts().empty());
  for (const std::int64_t staleness : {3, 0, 3, 1}) histogram.Add(staleness);
  EXPECT_EQ(histogram.counts(), (Counts{1, 1, 0, 2}));
  EXPECT_EQ(histogram.total(), 4);
  EXPECT_DOUBLE_EQ(histogram.mean(), 7.0 / 4.0);
  EXPECT_EQ(histogram.parts(), (std::vector<double>{0.25, 0.25, 0.0, 0.5}));
}

TEST(StalenessTest, ForgetsTheOldByHalves) {
  StalenessHistogram histogram;
  for (int i = 0; i < 40; ++i) histogram.Add(3);
  histogram.Add(9);
  histogram.Fade();
  EXPECT_EQ(histogram.counts(), (Counts{0, 0, 0, 20}));
  for (int i = 0; i < 20; ++i) histogram.Add(1);
  EXPECT_DOUBLE_EQ(histogram.mean(), 2.0);
  for (int i = 0; i < 10; ++i) histogram.Fade();
  EXPECT_EQ(histogram.total(), 0);
  EXPECT_TRUE(histogram.counts().empty());
}

}  // namespace
}  // namespace motley::plan
