// Sets that other people made. Label `data`: missing ones are skipped on a developer's machine and
// fail where CI=true.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include "motley/data/loader.h"
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

TEST(RealDataTest, ReadsTheCifarJpegsFromTheirArchive) {
  const std::filesystem::path path =
      std::filesystem::path(MOTLEY_SHARED_DATA) / "cifar10-jpeg.tar.gz";
  if (!std::filesystem::exists(path) && !InCi()) GTEST_SKIP() << path << " is not there";
  const auto pair = Open("images:" + path.string(), "", {});
  ASSERT_TRUE(pair.ok()) << pair.status().ToString();
  EXPECT_EQ(pair->train->size(), 50000);
  EXPECT_EQ(pair->test->size(), 10000);
  EXPECT_EQ(pair->test->classes(),
            (std::vector<std::string>{"airplane", "automobile", "bird", "cat", "deer", "dog",
                                      "frog", "horse", "ship", "truck"}));
  EXPECT_EQ(pair->train->channels(), 3);
  EXPECT_EQ(pair->train->height(), 32);
  EXPECT_EQ(pair->train->width(), 32);
  EXPECT_EQ(pair->train->label(49999), 9);
  // Every hundredth image, through the loader that a training uses.
  Loader loader(pair->train, {.training = true}, {.threads = 2});
  std::vector<SampleId> ids;
  for (SampleId id = 0; id < 50000; id += 100) ids.push_back(id);
  loader.Submit(ids, 0);
  const auto batch = loader.Next();
  ASSERT_TRUE(batch.ok()) << batch.status().ToString();
  EXPECT_GT(*std::max_element(batch->images.begin(), batch->images.end()), 0.99F);
  EXPECT_LT(*std::min_element(batch->images.begin(), batch->images.end()), 0.01F);
  const auto statistics = MeasureChannels(*pair->train, 500);
  ASSERT_TRUE(statistics.ok());
  // Known of CIFAR-10: 0.491, 0.482, 0.447.
  EXPECT_NEAR(statistics->mean[0], 0.491, 0.02);
  EXPECT_NEAR(statistics->mean[2], 0.447, 0.02);
}

}  // namespace
}  // namespace motley::data
