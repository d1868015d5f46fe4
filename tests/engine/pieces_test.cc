#include "motley/engine/native/pieces.h"

#include <gtest/gtest.h>

namespace motley::engine::native {
namespace {

TEST(PiecesTest, CoverTheBatchInOrderAndHoldWholeVirtualBatches) {
  for (const std::int64_t samples : {1, 2, 7, 31, 32, 64, 65, 150, 1000}) {
    for (const std::int64_t virtual_batch : {0, 1, 4, 48}) {
      for (const int lanes : {1, 2, 3, 5, 8}) {
        for (const bool together : {false, true}) {
          SCOPED_TRACE(::testing::Message() << samples << " samples, virtual batches of "
                                            << virtual_batch << ", " << lanes << " lanes");
          const auto pieces = CutBatch({.samples = samples,
                                        .virtual_batch = virtual_batch,
                                        .lanes = lanes,
                                        .together = together});
          std::int64_t at = 0;
          for (const Piece& piece : pieces) {
            ASSERT_FALSE(piece.chunks.empty());
            for (const Chunk& chunk : piece.chunks) {
              EXPECT_EQ(chunk.begin, at);
              EXPECT_GT(chunk.size(), 0);
              at = chunk.end;
              if (virtual_batch == 0) continue;
              EXPECT_EQ(chunk.begin % virtual_batch, 0);
              EXPECT_LE(chunk.size(), virtual_batch);
            }
          }
          EXPECT_EQ(at, samples);
          EXPECT_LE(std::ssize(pieces), together ? lanes : 4 * lanes);
        }
      }
    }
  }
}

TEST(PiecesTest, OfALargeBatchAreSeveralForEachLane) {
  EXPECT_EQ(CutBatch({.samples = 64, .lanes = 2}).size(), 4U);
  EXPECT_EQ(CutBatch({.samples = 256, .lanes = 2}).size(), 8U);
  EXPECT_EQ(CutBatch({.samples = 1000, .lanes = 2}).size(), 8U);
  EXPECT_EQ(CutBatch({.samples = 1000, .lanes = 2, .together = true}).size(), 2U);
}

TEST(PiecesTest, OfASmallBatchAreOneForEachLaneThatHasASample) {
  EXPECT_EQ(CutBatch({.samples = 32, .lanes = 2}).size(), 2U);
  EXPECT_EQ(CutBatch({.samples = 3, .lanes = 8}).size(), 3U);
  EXPECT_EQ(CutBatch({.samples = 40, .virtual_batch = 16, .lanes = 2}).size(), 2U);
}

}  // namespace
}  // namespace motley::engine::native
