// Sets that other people made. Label `data`: missing ones are skipped on a developer's machine and
// fail where CI=true.
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <string>

#include "motley/data/open.h"
#include "tests/data/test_files.h"

namespace motley::data {
namespace {

bool InCi() {
  const char* ci = std::getenv("CI");
  return ci != nullptr && std::string(ci) == "true";
}

TEST(RealDataTest, FetchesMnistChecksItAndFindsItAgain) {
  const TestFolder cache;
  int announcements = 0;
  OpenOptions options{.cache = cache.path() / "not-yet-there",
                      .on_progress = [&](const std::string&) { ++announcements; }};
  const auto fetched = Fetch("mnist", options);
  if (!fetched.ok() && !InCi()) GTEST_SKIP() << fetched.status().ToString();
  ASSERT_TRUE(fetched.ok()) << fetched.status().ToString();
  EXPECT_EQ(announcements, 1);
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(options.cache), {}), 1)
      << "only the folder mnist may be left";
  options.fetch = false;
  const auto pair = Open("mnist", "", options);
  ASSERT_TRUE(pair.ok()) << pair.status().ToString();
  EXPECT_EQ(pair->train->size(), 60000);
  EXPECT_EQ(pair->test->size(), 10000);
  EXPECT_EQ(pair->train->classes().size(), 10U);
  EXPECT_EQ(pair->train->label(0), 5);
  EXPECT_EQ(pair->test->label(0), 7);
}

}  // namespace
}  // namespace motley::data
