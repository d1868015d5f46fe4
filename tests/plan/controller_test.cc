#include "motley/plan/controller.h"

#include <gtest/gtest.h>

namespace motley::plan {
namespace {

TEST(ComputeSpreadTest, IsTheDistanceOfTheFastestToTheSlowest) {
  StepDone step;
  EXPECT_EQ(ComputeSpread(step), 0.0);
  step.parts.push_back({.device = "a", .samples = 10, .compute_seconds = 0.8});
  EXPECT_EQ(ComputeSpread(step), 0.0);
  step.parts.push_back({.device = "b", .samples = 5, .compute_seconds = 1.0});
  step.parts.push_back({.device = "c", .samples = 7, .compute_seconds = 0.9});
  EXPECT_DOUBLE_EQ(ComputeSpread(step), 0.2);
}

TEST(ComputeSpreadTest, PassesOverADeviceThatDidNothing) {
  StepDone step;
  step.parts.push_back({.device = "a", .samples = 10, .compute_seconds = 0.8});
  step.parts.push_back({.device = "b", .samples = 0, .compute_seconds = 0.0});
  EXPECT_EQ(ComputeSpread(step), 0.0);
}

}  // namespace
}  // namespace motley::plan
