#include "motley/optim/schedule.h"

#include <gtest/gtest.h>

namespace motley::optim {
namespace {

Schedule Parsed(const std::string& text, std::int64_t warmup_steps = 0) {
  auto schedule = Schedule::Parse(text, warmup_steps);
  EXPECT_TRUE(schedule.ok()) << schedule.status().ToString();
  return schedule.ok() ? *schedule : Schedule();
}

TEST(ScheduleTest, ConstantStaysAtOne) {
  EXPECT_EQ(Schedule().Factor(0, 0.0), 1.0);
  EXPECT_EQ(Parsed("constant").Factor(1'000'000, 500.0), 1.0);
}

TEST(ScheduleTest, StepFallsAtEachEpochNamed) {
  const Schedule schedule = Parsed("step:30,60.5");
  EXPECT_DOUBLE_EQ(schedule.Factor(0, 29.999), 1.0);
  EXPECT_DOUBLE_EQ(schedule.Factor(0, 30.0), 0.1);
  EXPECT_DOUBLE_EQ(schedule.Factor(0, 60.4), 0.1);
  EXPECT_NEAR(schedule.Factor(0, 60.5), 0.01, 1e-15);
  EXPECT_DOUBLE_EQ(Parsed("step:2:0.5").Factor(0, 3.0), 0.5);
}

TEST(ScheduleTest, CosineGoesFromOneToZeroAndStaysThere) {
  const Schedule schedule = Parsed("cosine:10");
  EXPECT_DOUBLE_EQ(schedule.Factor(0, 0.0), 1.0);
  EXPECT_NEAR(schedule.Factor(0, 5.0), 0.5, 1e-12);
  EXPECT_NEAR(schedule.Factor(0, 10.0), 0.0, 1e-12);
  EXPECT_NEAR(schedule.Factor(0, 99.0), 0.0, 1e-12);
}

TEST(ScheduleTest, WarmUpRisesInALineAndMultipliesTheRest) {
  const Schedule schedule = Parsed("step:1", 4);
  EXPECT_DOUBLE_EQ(schedule.Factor(0, 0.0), 0.25);
  EXPECT_DOUBLE_EQ(schedule.Factor(2, 0.5), 0.75);
  EXPECT_DOUBLE_EQ(schedule.Factor(2, 1.5), 0.075);
  EXPECT_DOUBLE_EQ(schedule.Factor(3, 0.5), 1.0);
  EXPECT_DOUBLE_EQ(schedule.Factor(100, 0.5), 1.0);
}

TEST(ScheduleTest, RefusalsQuoteTheTextAndListTheAcceptedForms) {
  for (const std::string text :
       {"",           "linear",    "constant:1",   "constant:", "step",          "step:",
        "step:a",     "step:10,",  "step:,10",     "step:10,5", "step:10,10",    "step:0",
        "step:-1",    "step:10:",  "step:10:0",    "step:10:x", "step:10:0.1:2", "step: 10",
        "step:inf",   "step:nan",  "cosine",       "cosine:",   "cosine:0",      "cosine:-3",
        "cosine:5,6", "cosine:5 ", "cosine:1e999", "COSINE:5"}) {
    const auto schedule = Schedule::Parse(text);
    ASSERT_FALSE(schedule.ok()) << text;
    EXPECT_EQ(schedule.status().code(), base::Code::kInvalidInput);
    const std::string message = schedule.status().ToString();
    EXPECT_NE(message.find("'" + text + "'"), std::string::npos) << message;
    for (const char* form : {"constant", "step:E1,E2,…[:FACTOR]", "cosine:E"}) {
      EXPECT_NE(message.find(form), std::string::npos) << message;
    }
  }
}

TEST(ScheduleTest, RefusesANegativeWarmUp) {
  const auto schedule = Schedule::Parse("constant", -1);
  ASSERT_FALSE(schedule.ok());
  EXPECT_NE(schedule.status().message().find("warmup_steps"), std::string::npos);
}

}  // namespace
}  // namespace motley::optim
