#include "apps/motley/progress.h"

#include <gtest/gtest.h>

#include "apps/motley/prepare.h"

namespace motley::app {
namespace {

run::Progress Example() {
  return {.epoch = 2,
          .step = 1200,
          .steps_total = 9000,
          .loss = 0.4123,
          .accuracy = 0.861,
          .samples_per_second = 2143.2,
          .seconds_left = 842.0};
}

TEST(ProgressLineTest, ShowsEverythingWhereThereIsRoom) {
  EXPECT_EQ(ProgressLine(Example(), 30, 100),
            "epoch 3/30  step 1200/9000  loss 0.412  acc 0.861  2143 samples/s  ETA 14m02s");
}

TEST(ProgressLineTest, DropsTheLeastImportantPartsOnANarrowTerminal) {
  EXPECT_EQ(ProgressLine(Example(), 30, 70),
            "epoch 3/30  step 1200/9000  loss 0.412  acc 0.861  ETA 14m02s");
  EXPECT_EQ(ProgressLine(Example(), 30, 35), "epoch 3/30  loss 0.412  acc 0.861");
  for (int width = 12; width < 100; ++width) {
    EXPECT_LT(ProgressLine(Example(), 30, width).size(), static_cast<std::size_t>(width));
  }
}

TEST(ProgressLineTest, LeavesOutWhatIsUnknown) {
  run::Progress progress = Example();
  progress.steps_total = 0;
  progress.seconds_left = -1.0;
  EXPECT_EQ(ProgressLine(progress, std::nullopt, 100),
            "epoch 3  step 1200  loss 0.412  acc 0.861  2143 samples/s");
}

TEST(ProgressViewTest, WritesOnePlainLineInFiveSecondsAndOnePerEpoch) {
  std::FILE* file = std::tmpfile();
  ASSERT_NE(file, nullptr);
  base::VirtualClock clock;
  ProgressView view({.out = file, .terminal = false, .color = false}, clock);
  view.set_epochs(30);
  for (int step = 0; step < 120; ++step) {
    clock.Advance(0.1);
    view.OnStep(Example());
  }
  view.OnEpoch(2, {.loss = 0.5, .accuracy = 0.75, .samples = 10});
  std::rewind(file);
  std::string text(4096, '\0');
  text.resize(std::fread(text.data(), 1, text.size(), file));
  std::fclose(file);
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 3) << text;
  EXPECT_EQ(text.find('\x1b'), std::string::npos);
  EXPECT_NE(text.find("epoch 3/30  test loss 0.5000  test acc 0.7500"), std::string::npos) << text;
}

TEST(FormatTest, WritesTimesAndNumbersAsPeopleReadThem) {
  EXPECT_EQ(FormatSeconds(42.4), "42s");
  EXPECT_EQ(FormatSeconds(842), "14m02s");
  EXPECT_EQ(FormatSeconds(3 * 3600 + 300), "3h05m");
  EXPECT_EQ(FormatSeconds(1e300), "99h00m");
  EXPECT_EQ(Thousands(60000), "60,000");
  EXPECT_EQ(Thousands(-1234567), "-1,234,567");
  EXPECT_EQ(Thousands(999), "999");
}

TEST(ParseShapeTest, TakesShapesAndRefusesAllElse) {
  EXPECT_EQ(*ParseShape("3x224x224"), (graph::Shape{3, 224, 224}));
  EXPECT_EQ(*ParseShape("10"), graph::Shape{10});
  for (const char* wrong : {"", "x", "3x", "x3", "3xx4", "0x1", "-1x2", "3x4y", "99999999"}) {
    EXPECT_FALSE(ParseShape(wrong).ok()) << wrong;
  }
}

TEST(DataCacheTest, FollowsTheXdgRules) {
  EXPECT_EQ(*DataCache({{"XDG_DATA_HOME", "/x"}, {"HOME", "/h"}}), "/x/motley");
  EXPECT_EQ(*DataCache({{"XDG_DATA_HOME", "relative"}, {"HOME", "/h"}}), "/h/.local/share/motley");
  EXPECT_FALSE(DataCache({}).ok());
  EXPECT_EQ(KernelCacheFile({{"XDG_CACHE_HOME", "/x"}, {"HOME", "/h"}}), "/x/motley/kernels");
  EXPECT_EQ(KernelCacheFile({{"HOME", "/h"}}), "/h/.cache/motley/kernels");
  EXPECT_EQ(KernelCacheFile({}), "");
}

}  // namespace
}  // namespace motley::app
