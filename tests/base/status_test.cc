#include "motley/base/status.h"

#include <gtest/gtest.h>

#include <memory>

namespace motley::base {
namespace {

Result<int> Half(int x) {
  if (x % 2 != 0) return InvalidInput("{} is odd", x).WithFix("give an even number");
  return x / 2;
}

Result<int> Quarter(int x) {
  MOTLEY_ASSIGN_OR_RETURN(const int half, Half(x));
  return Half(half);
}

Status Explain(int x) {
  auto quarter = Quarter(x);
  if (!quarter.ok()) return std::move(quarter).status().In("quarter");
  return {};
}

TEST(StatusTest, CarriesTheValueThroughAChain) { EXPECT_EQ(*Quarter(12), 3); }

TEST(StatusTest, KeepsMessageFixAndContext) {
  const Status status = Explain(6);
  EXPECT_EQ(status.code(), Code::kInvalidInput);
  EXPECT_EQ(status.ToString(), "quarter: 3 is odd\n  fix: give an even number");
}

TEST(StatusTest, MovesValuesThatCannotBeCopied) {
  Result<std::unique_ptr<int>> result(std::make_unique<int>(7));
  const std::unique_ptr<int> value = std::move(result).value();
  EXPECT_EQ(*value, 7);
}

TEST(StatusDeathTest, ReadingTheValueOfAFailureAborts) {
  EXPECT_DEATH((void)Half(3).value(), "3 is odd");
}

}  // namespace
}  // namespace motley::base
