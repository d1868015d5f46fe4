// From this machine's meter, which is a made one, to the summary: the program's own code, in this
// process, because only so it can be told of another sysfs.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <fstream>
#include <nlohmann/json.hpp>
#include <thread>

#include "apps/motley/commands.h"
#include "motley/base/file.h"
#include "tests/app/process.h"

namespace motley::app {
namespace {

// A package that draws power from the moment when `file` says `words` for the last of so many
// times.
class DrawingPackage {
 public:
  DrawingPackage(const std::filesystem::path& root, std::filesystem::path file, std::string words,
                 int times)
      : zone_(root / "class" / "powercap" / "intel-rapl:0"),
        file_(std::move(file)),
        words_(std::move(words)),
        times_(times) {
    std::filesystem::create_directories(zone_);
    std::ofstream(zone_ / "name") << "package-0\n";
    std::ofstream(zone_ / "max_energy_range_uj") << kRange << "\n";
    Write();
    thread_ = std::thread([this] { Draw(); });
  }
  ~DrawingPackage() { Stop(); }
  // Joules that were drawn in all.
  double Stop() {
    stop_ = true;
    if (thread_.joinable()) thread_.join();
    return 1e-6 * static_cast<double>(drawn_);
  }

 private:
  static constexpr std::int64_t kRange = 100'000'000;

  void Write() {
    // It stands near its end at first, so that it wraps around.
    const std::int64_t shown = (kRange - 1'000'000 + drawn_) % kRange;
    EXPECT_TRUE(base::ReplaceFile(zone_ / "energy_uj", std::to_string(shown) + "\n").ok());
  }
  bool HasBegun() const {
    const std::string content = Content(file_);
    int found = 0;
    for (std::size_t at = content.find(words_); at != std::string::npos;
         at = content.find(words_, at + 1)) {
      ++found;
    }
    return found >= times_;
  }
  void Draw() {
    bool begun = false;
    while (!stop_) {
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
      begun = begun || HasBegun();
      if (!begun) continue;
      drawn_ += 500'000;
      Write();
    }
  }

  const std::filesystem::path zone_, file_;
  const std::string words_;
  const int times_;
  std::int64_t drawn_ = 0;
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

class MeteredProgramTest : public testing::Test {
 protected:
  // Trains with the devices of `job`; `words` of its events let the package begin.
  nlohmann::json TrainMetered(const std::string& job, const std::string& words, int times) {
    const auto& folder = temporary_.path();
    std::ofstream(folder / "job.toml") << job;
    const auto run = folder / "run";
    DrawingPackage package(folder / "sys", run / "events.jsonl", words, times);
    const auto ended = Train({.run = {.job = (folder / "job.toml").string(),
                                      .sets = {},
                                      .out = run.string(),
                                      .resume = {},
                                      .sysfs = (folder / "sys").string()}},
                             {{"HOME", folder.string()}});
    EXPECT_TRUE(ended.ok()) << ended.status().ToString();
    drawn_ = package.Stop();
    return nlohmann::json::parse(Content(run / "summary.json"), nullptr, false);
  }

  double drawn_ = 0.0;

 private:
  TemporaryFolder temporary_;
};

TEST_F(MeteredProgramTest, OneDeviceHasWhatTheMeterCounted) {
  const auto summary =
      TrainMetered("[data]\ntrain = \"glyphs\"\n[train]\nepochs = 1\n", "run_started", 1);
  ASSERT_TRUE(summary.is_object());
  EXPECT_EQ(summary.at("energy_source"), "measured: rapl");
  EXPECT_GT(summary.at("joules"), 0.0);
  EXPECT_LE(summary.at("joules"), drawn_);
  const auto& device = summary.at("devices")[0];
  EXPECT_EQ(device.at("energy_source"), "measured: rapl");
  EXPECT_GT(device.at("joules_busy"), 0.0);
  EXPECT_NEAR(device.at("joules_busy").get<double>() + device.at("joules_idle").get<double>(),
              device.at("joules").get<double>(), 1e-6);
  EXPECT_NEAR(summary.at("joules_per_sample").get<double>() * 8000,
              summary.at("joules").get<double>(), 1e-6);
}

TEST_F(MeteredProgramTest, TwoDevicesOfOneMachineHaveNoMoreThanTheMeterCounted) {
  const auto summary = TrainMetered(
      "[data]\ntrain = \"glyphs\"\n[train]\nepochs = 2\ntune = \"off\"\n"
      "[[device]]\nname = \"a\"\nthreads = 1\n[[device]]\nname = \"b\"\nthreads = 1\n",
      "\"joined\"", 2);
  ASSERT_TRUE(summary.is_object());
  EXPECT_EQ(summary.at("energy_source"), "measured: rapl");
  EXPECT_GT(summary.at("joules"), 0.0);
  EXPECT_LE(summary.at("joules"), drawn_ + 1e-6);
  ASSERT_EQ(summary.at("devices").size(), 2U);
  for (const auto& device : summary.at("devices")) {
    EXPECT_EQ(device.at("energy_source"), "measured: rapl");
    EXPECT_GT(device.at("joules_busy"), 0.0);
    EXPECT_NEAR(device.at("joules_busy").get<double>() + device.at("joules_idle").get<double>(),
                device.at("joules").get<double>(), 1e-6);
  }
}

}  // namespace
}  // namespace motley::app
