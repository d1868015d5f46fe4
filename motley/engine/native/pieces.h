#ifndef MOTLEY_ENGINE_NATIVE_PIECES_H_
#define MOTLEY_ENGINE_NATIVE_PIECES_H_

#include <atomic>
#include <cstdint>
#include <vector>

#include "motley/engine/native/lanes.h"

namespace motley::engine::native {

// Samples that go through the net in one pass.
struct Chunk {
  std::int64_t begin = 0, end = 0;
  std::int64_t size() const { return end - begin; }
};

// A part of the batch whose gradient is summed by itself, and what came of it.
struct Piece {
  std::vector<Chunk> chunks;
  std::size_t done = 0;  // of these
  std::vector<float> buffer_sums;
  double loss_sum = 0.0;
  std::int64_t correct = 0;
};

struct CutOptions {
  std::int64_t samples = 0;  // at least 1
  std::int64_t virtual_batch =
      0;  // pieces hold whole ones of these, each a chunk; 0: there are none
  int lanes = 1;
  bool together = false;  // one piece of one chunk for each lane
};

// Cuts a batch into contiguous pieces of nearly equal size: one or a few for each lane, fewer only
// where there is less to cut. They depend on the options alone, so that it does not matter for the
// sums who computes which piece.
std::vector<Piece> CutBatch(const CutOptions& options);

// What the lanes share while they work on the pieces of one batch.
struct Round {
  Round(int lanes, int copies, int pieces)
      : barrier(lanes), stale(copies), unfinished(pieces), next_copy(copies) {}

  Barrier barrier;             // where lanes meet
  Latch stale;                 // copies of weights
  Latch unfinished;            // pieces
  std::atomic<int> next_copy;  // from the last to the first: the last ones tend to be the largest
  std::atomic<int> next_piece{0};

  // Called by a lane that cannot go on.
  void Abandon() {
    barrier.Abandon();
    stale.Abandon();
    unfinished.Abandon();
  }
};

}  // namespace motley::engine::native

#endif  // MOTLEY_ENGINE_NATIVE_PIECES_H_
