#include "motley/engine/native/kernel_cache.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <string>

#include "motley/base/file.h"
#include "motley/engine/native/native_device.h"
#include "small_graphs.h"

namespace motley::engine::native {
namespace {

class KernelCacheTest : public ::testing::Test {
 protected:
  void SetUp() override { std::filesystem::remove_all(folder_); }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  void Write(const std::string& text) {
    std::filesystem::create_directories(folder_);
    std::ofstream(file_) << text;
  }

  const std::filesystem::path folder_ =
      std::filesystem::temp_directory_path() / ("kernel_cache_test_" + std::to_string(getpid()));
  const std::filesystem::path file_ = folder_ / "below" / "kernels";
};

TEST_F(KernelCacheTest, RemembersWhatWasMeasured) {
  KernelCache first(file_);
  EXPECT_EQ(first.Find("shape"), nullptr);
  first.Add("shape", {{"dnnl", 0.5}, {"lowered", 0.25}});
  first.Save();
  const KernelCache second(file_);
  ASSERT_NE(second.Find("shape"), nullptr);
  EXPECT_EQ(*second.Find("shape"), (KernelCache::Times{{"dnnl", 0.5}, {"lowered", 0.25}}));
  EXPECT_EQ(second.Find("another"), nullptr);
}

TEST_F(KernelCacheTest, WhatIsNotItsOwnCountsAsEmpty) {
  KernelCache first(file_);
  first.Add("shape", {{"dnnl", 0.5}});
  first.Save();
  const std::string good = base::ReadFile(file_).value();
  const std::string first_line = good.substr(0, good.find('\n') + 1);
  for (const std::string& text :
       {std::string(), std::string("\n\n"), "x" + good, first_line, first_line + "shape\n",
        first_line + "shape\tdnnl\n", first_line + "shape\tdnnl=\n",
        first_line + "shape\tdnnl=-1\n", first_line + "shape\tdnnl=nan\n",
        first_line + "shape\tdnnl=inf\n", first_line + "\t\t=\n", std::string(1000, '\t'),
        std::string("\0\0", 2)}) {
    ASSERT_TRUE(base::ReplaceFile(file_, text).ok());
    EXPECT_EQ(KernelCache(file_).Find("shape"), nullptr) << text;
  }
  ASSERT_TRUE(base::ReplaceFile(file_, first_line + "shape\tdnnl=x\tlowered=2\n").ok());
  ASSERT_NE(KernelCache(file_).Find("shape"), nullptr);
  EXPECT_EQ(*KernelCache(file_).Find("shape"), (KernelCache::Times{{"lowered", 2.0}}));
}

TEST_F(KernelCacheTest, APlaceThatCannotBeWrittenIsNoHarm) {
  KernelCache cache("/proc/no/such/place");
  cache.Add("shape", {{"dnnl", 0.5}});
  cache.Save();
  EXPECT_NE(cache.Find("shape"), nullptr);
}

// A device believes the file: it takes the kernel that was the fastest there, and measures nothing.
TEST_F(KernelCacheTest, ADeviceChoosesByTheFile) {
  const auto graph = testing::Build(testing::SmallGraphs().front());
  const auto choices = [&] {
    // One GEMM library, whichever is the faster at the moment: measurements are kept for each.
    auto device =
        MakeNativeDevice(graph,
                         {.threads = 1, .kernel_choices = {{"", "onednn"}}, .kernel_cache = file_})
            .value();
    const graph::Model model = testing::RandomModel(*graph, 1);
    const data::Batch batch = testing::RandomBatch(*graph, 2, 1);
    std::vector<float> gradient(model.weights.size()), sums(model.buffers.size());
    EXPECT_TRUE(device
                    ->Step({.weights = model.weights,
                            .batch = &batch,
                            .gradient = gradient,
                            .buffer_sums = sums})
                    .ok());
    for (const KernelReason& reason : device->kernel_reasons()) {
      EXPECT_FALSE(reason.seconds.empty()) << reason.layer;
    }
    return device->kernel_choices();
  };
  choices();
  std::string text = base::ReadFile(file_).value();
  // Make "lowered" the fastest of every shape that it can do.
  std::size_t changed = 0;
  for (std::size_t at = 0; (at = text.find("lowered=", at)) != std::string::npos; ++changed) {
    at += std::string("lowered=").size();
    const std::size_t end = text.find_first_of("\t\n", at);
    text.replace(at, end - at, "0.000000001");
  }
  ASSERT_GT(changed, 0U);
  ASSERT_TRUE(base::ReplaceFile(file_, text).ok());
  std::size_t lowered = 0;
  for (const auto& [layer, kernel] : choices()) lowered += kernel == "lowered" ? 1U : 0U;
  EXPECT_GT(lowered, 0U);
  // Another kernel may want another layout, whose conversion was not measured yet; now all is
  // known.
  text = base::ReadFile(file_).value();
  choices();
  EXPECT_EQ(base::ReadFile(file_).value(), text);
}

}  // namespace
}  // namespace motley::engine::native
