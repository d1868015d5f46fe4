#include "motley/data/loader.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "motley/base/rng.h"

namespace motley::data {
namespace {

// Every pixel of sample i is a function of i; some samples can be broken or slow.
class FakeDataset final : public Dataset {
 public:
  std::int64_t size() const override { return 1000; }
  int channels() const override { return 1; }
  int height() const override { return 6; }
  int width() const override { return 5; }
  const std::vector<std::string>& classes() const override { return classes_; }
  std::int32_t label(SampleId id) const override { return static_cast<std::int32_t>(id % 3); }
  base::Status Decode(SampleId id, std::span<std::uint8_t> pixels) const override {
    if (id >= first_broken) return base::InvalidInput("sample {} is broken", id);
    if (id == throwing) throw std::runtime_error("out of luck");
    std::this_thread::sleep_for(delay);
    base::Rng rng(id);
    for (auto& pixel : pixels) pixel = static_cast<std::uint8_t>(rng.Below(256));
    decoded.fetch_add(1);
    return {};
  }
  std::string ContentHash() const override { return ""; }

  SampleId first_broken = 1000;
  SampleId throwing = 1000;
  std::chrono::microseconds delay{0};
  mutable std::atomic<int> decoded = 0;

 private:
  std::vector<std::string> classes_ = {"a", "b", "c"};
};

const Transform kAugment{.pad = 1,
                         .crop_height = 6,
                         .crop_width = 5,
                         .flip = true,
                         .mean = {0.5F},
                         .stddev = {0.25F},
                         .training = true};

std::vector<SampleId> Ids(SampleId begin, SampleId count) {
  std::vector<SampleId> ids;
  for (SampleId i = 0; i < count; ++i) ids.push_back(begin + i);
  return ids;
}

std::vector<Batch> LoadWith(int threads) {
  Loader loader(std::make_shared<FakeDataset>(), kAugment, {.threads = threads, .seed = 3});
  for (std::uint64_t i = 0; i < 20; ++i) loader.Submit(Ids(i * 31, 1 + i * 7), i / 5);
  EXPECT_EQ(loader.pending(), 20);
  std::vector<Batch> batches;
  while (loader.pending() > 0) batches.push_back(loader.Next().value());
  return batches;
}

TEST(LoaderTest, GivesTheSameBatchesInOrderForAnyNumberOfThreads) {
  const auto expected = LoadWith(1);
  ASSERT_EQ(expected.size(), 20U);
  for (const int threads : {2, 3, 8}) {
    const auto batches = LoadWith(threads);
    ASSERT_EQ(batches.size(), expected.size());
    for (std::size_t i = 0; i < batches.size(); ++i) {
      EXPECT_EQ(batches[i].ids, expected[i].ids);
      EXPECT_EQ(batches[i].labels, expected[i].labels);
      EXPECT_EQ(batches[i].images, expected[i].images);
      EXPECT_EQ(batches[i].epoch, i / 5);
    }
  }
}

TEST(LoaderTest, FillsABatchWithWhatTheTransformMakesOfEachSample) {
  const auto dataset = std::make_shared<FakeDataset>();
  Loader loader(dataset, kAugment, {.threads = 2, .seed = 3});
  loader.Submit({7, 8, 900}, 4);
  const auto batch = loader.Next().value();
  ASSERT_EQ(batch.size(), 3);
  EXPECT_EQ(batch.labels, (std::vector<std::int32_t>{1, 2, 0}));
  std::vector<std::uint8_t> pixels(30);
  std::vector<float> expected(30);
  ASSERT_TRUE(dataset->Decode(900, pixels).ok());
  kAugment.Apply(*dataset, pixels, 3, 4, 900, expected);
  EXPECT_EQ(std::vector<float>(batch.images.begin() + 60, batch.images.end()), expected);
}

TEST(LoaderTest, DeliversTheFirstFailureOfABatchAndGoesOnWithTheNext) {
  for (const int threads : {1, 2, 3, 8}) {
    auto dataset = std::make_shared<FakeDataset>();
    dataset->first_broken = 50;
    Loader loader(dataset, kAugment, {.threads = threads, .seed = 3});
    loader.Submit(Ids(0, 50), 0);
    loader.Submit(Ids(0, 100), 0);
    loader.Submit(Ids(0, 20), 0);
    EXPECT_TRUE(loader.Next().ok());
    const auto failed = loader.Next();
    ASSERT_FALSE(failed.ok());
    EXPECT_EQ(failed.status().message(), "sample 50 is broken");
    EXPECT_TRUE(loader.Next().ok());
  }
}

TEST(LoaderTest, TurnsAnExceptionIntoAFailure) {
  auto dataset = std::make_shared<FakeDataset>();
  dataset->throwing = 3;
  Loader loader(dataset, kAugment, {.threads = 2});
  loader.Submit(Ids(0, 10), 0);
  const auto failed = loader.Next();
  ASSERT_FALSE(failed.ok());
  EXPECT_EQ(failed.status().message(), "sample 3: out of luck");
}

TEST(LoaderTest, AnEmptyBatchIsReadyAtOnce) {
  Loader loader(std::make_shared<FakeDataset>(), kAugment, {});
  loader.Submit({}, 0);
  EXPECT_EQ(loader.Next().value().size(), 0);
}

TEST(LoaderTest, StopsWithoutWaitingForBatchesThatNobodyTook) {
  auto dataset = std::make_shared<FakeDataset>();
  dataset->delay = std::chrono::milliseconds(1);
  {
    Loader loader(dataset, kAugment, {.threads = 2});
    for (int i = 0; i < 100; ++i) loader.Submit(Ids(0, 900), 0);
    EXPECT_TRUE(loader.Next().ok());
  }
  EXPECT_LT(dataset->decoded.load(), 3000);
}

TEST(LoaderTest, StopsWhenNothingWasSubmitted) {
  const Loader loader(std::make_shared<FakeDataset>(), kAugment, {.threads = 8});
  EXPECT_EQ(loader.pending(), 0);
}

}  // namespace
}  // namespace motley::data
