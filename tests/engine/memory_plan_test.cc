#include "motley/engine/native/memory_plan.h"

#include <gtest/gtest.h>

#include "motley/base/rng.h"

namespace motley::engine::native {
namespace {

bool Overlap(const Buffer& a, const Buffer& b) {
  const bool together = a.first <= b.last && b.first <= a.last;
  return together && a.offset < b.offset + b.bytes && b.offset < a.offset + a.bytes;
}

TEST(MemoryPlanTest, BuffersThatLiveTogetherNeverOverlap) {
  base::Rng rng(base::Key({1}));
  for (int round = 0; round < 50; ++round) {
    std::vector<Buffer> buffers(60);
    for (Buffer& buffer : buffers) {
      buffer.bytes = static_cast<std::int64_t>(rng.Below(10000));
      buffer.first = static_cast<int>(rng.Below(100));
      buffer.last = buffer.first + static_cast<int>(rng.Below(30));
    }
    const std::int64_t total = PlanMemory(buffers);
    for (std::size_t i = 0; i < buffers.size(); ++i) {
      EXPECT_EQ(buffers[i].offset % 64, 0);
      EXPECT_LE(buffers[i].offset + buffers[i].bytes, total);
      for (std::size_t j = 0; j < i; ++j) ASSERT_FALSE(Overlap(buffers[i], buffers[j]));
    }
  }
}

TEST(MemoryPlanTest, BuffersThatFollowEachOtherShareOnePlace) {
  std::vector<Buffer> buffers;
  for (int tick = 0; tick < 10; ++tick) {
    buffers.push_back({.bytes = 640, .first = tick, .last = tick});
  }
  EXPECT_EQ(PlanMemory(buffers), 640);
}

TEST(MemoryPlanTest, AChainOfLayersNeedsTwoBuffersAtATime) {
  std::vector<Buffer> buffers;
  for (int tick = 0; tick < 10; ++tick) {
    buffers.push_back({.bytes = 640, .first = tick, .last = tick + 1});
  }
  EXPECT_EQ(PlanMemory(buffers), 1280);
}

}  // namespace
}  // namespace motley::engine::native
