#include "motley/cluster/conduct.h"

#include <gtest/gtest.h>

namespace motley::cluster {
namespace {

TEST(ConductTest, TheThirdTimeCostsAWhileAndEveryOtherOneTwiceAsLong) {
  Conduct conduct;
  EXPECT_EQ(conduct.Strike(0.0, "a"), 0.0);
  EXPECT_EQ(conduct.Strike(1.0, "a"), 0.0);
  EXPECT_FALSE(conduct.Barred(1.0, "a"));
  EXPECT_EQ(conduct.Strike(2.0, "a"), 10.0);
  EXPECT_TRUE(conduct.Barred(11.9, "a"));
  EXPECT_FALSE(conduct.Barred(12.0, "a"));
  EXPECT_EQ(conduct.Strike(12.0, "a"), 20.0);
  EXPECT_TRUE(conduct.Barred(31.9, "a"));
}

TEST(ConductTest, NobodyWaitsForLongerThanItIsRemembered) {
  Conduct conduct;
  for (int i = 0; i < 5000; ++i) EXPECT_LE(conduct.Strike(0.1 * i, "a"), Conduct::kWindowSeconds);
  EXPECT_TRUE(conduct.Barred(1000.0, "a"));
  EXPECT_FALSE(conduct.Barred(500.0 + Conduct::kWindowSeconds, "a"));
}

TEST(ConductTest, WhatWasLongAgoOrWasAnotherIsNotCounted) {
  Conduct conduct;
  for (const char* name : {"a", "b", "a", "b"}) EXPECT_EQ(conduct.Strike(0.0, name), 0.0);
  EXPECT_EQ(conduct.Strike(Conduct::kWindowSeconds + 1.0, "a"), 0.0);
  EXPECT_FALSE(conduct.Barred(Conduct::kWindowSeconds + 1.0, "a"));
  EXPECT_FALSE(conduct.Barred(0.0, "stranger"));
}

}  // namespace
}  // namespace motley::cluster
