#include "motley/data/pooled_dataset.h"

#include <gtest/gtest.h>

#include "motley/data/loader.h"
#include "motley/data/memory_dataset.h"
#include "tests/data/test_files.h"

namespace motley::data {
namespace {

// One pixel per sample: `first`, `first` + 1 and so on.
std::shared_ptr<const Dataset> Pixels(std::uint8_t first, int count) {
  MemoryDataset::Parts parts{.shape = {1, 1, 1}, .classes = {"a", "b"}};
  for (int i = 0; i < count; ++i) {
    parts.bytes += static_cast<char>(first + i);
    parts.labels.push_back(i % 2);
  }
  return std::make_shared<MemoryDataset>(std::move(parts));
}

TEST(PooledDatasetTest, HoldsBothSetsByTheirIds) {
  const PooledDataset pooled(Pixels(10, 5), Pixels(100, 3));
  const SampleId first = FirstPrivateId("csd-1");
  EXPECT_EQ(pooled.size(), 8);
  EXPECT_EQ(DecodeOrDie(pooled, 4)[0], 14);
  EXPECT_EQ(DecodeOrDie(pooled, first)[0], 100);
  EXPECT_EQ(DecodeOrDie(pooled, first + 2)[0], 102);
  EXPECT_EQ(pooled.label(3), 1);
  EXPECT_EQ(pooled.label(first + 1), 1);
  EXPECT_TRUE(pooled.Contains(4));
  EXPECT_FALSE(pooled.Contains(5));
  EXPECT_TRUE(pooled.Contains(first + 2));
  EXPECT_FALSE(pooled.Contains(first + 3));
}

TEST(PooledDatasetTest, DevicesHaveOtherIdsAndOtherOrders) {
  EXPECT_NE(FirstPrivateId("a"), FirstPrivateId("b"));
  EXPECT_NE(FirstPrivateId("ab"), FirstPrivateId("ba"));
  EXPECT_NE(PrivateSeed(1, "a"), PrivateSeed(1, "b"));
  EXPECT_NE(PrivateSeed(1, "a"), PrivateSeed(2, "a"));
  EXPECT_EQ(FirstPrivateId("a"), FirstPrivateId("a"));
}

TEST(PooledDatasetTest, CanBeLoaded) {
  const SampleId first = FirstPrivateId("csd-1");
  Loader loader(std::make_shared<PooledDataset>(Pixels(10, 5), Pixels(100, 3)), {.training = true},
                {.threads = 2, .seed = 1});
  loader.Submit({3, first + 1, 0, first}, 0);
  const auto batch = loader.Next();
  ASSERT_TRUE(batch.ok()) << batch.status().ToString();
  EXPECT_EQ(batch->labels, (std::vector<std::int32_t>{1, 1, 0, 0}));
  EXPECT_FLOAT_EQ(batch->images[1], 101.0F / 255.0F);
  EXPECT_FLOAT_EQ(batch->images[2], 10.0F / 255.0F);
}

}  // namespace
}  // namespace motley::data
