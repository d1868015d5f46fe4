#include "motley/engine/native/pieces.h"

#include <algorithm>

namespace motley::engine::native {
namespace {

// [begin, end) in chunks of nearly equal size, none above `limit`.
std::vector<Chunk> Cut(std::int64_t begin, std::int64_t end, std::int64_t limit) {
  const std::int64_t count = (end - begin + limit - 1) / limit;
  std::vector<Chunk> chunks;
  for (std::int64_t i = 0; i < count; ++i) {
    chunks.push_back({begin + (end - begin) * i / count, begin + (end - begin) * (i + 1) / count});
  }
  return chunks;
}

}  // namespace

std::vector<Piece> CutBatch(const CutOptions& options) {
  // Larger chunks only cost memory; smaller pieces cost speed, because fully connected layers read
  // all their weights for each. Several pieces per lane let a lane that has its core for itself do
  // some of the work of one that has not, and let a step stop at its deadline.
  constexpr std::int64_t kLargestChunk = 64, kSmallestPiece = 16, kPiecesPerLane = 4;
  const bool virtual_batches = options.virtual_batch > 0;
  const std::int64_t unit = virtual_batches ? options.virtual_batch : 1;
  const std::int64_t units = (options.samples + unit - 1) / unit;
  const std::int64_t per_lane = options.samples / options.lanes / kSmallestPiece;
  const std::int64_t each =
      options.together ? 1 : std::clamp<std::int64_t>(per_lane, 1, kPiecesPerLane);
  std::vector<Piece> pieces(static_cast<std::size_t>(std::min(options.lanes * each, units)));
  const std::int64_t count = std::ssize(pieces);
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int64_t begin = units * i / count * unit;
    const std::int64_t end = std::min(units * (i + 1) / count * unit, options.samples);
    std::vector<Chunk>& chunks = pieces[static_cast<std::size_t>(i)].chunks;
    if (!virtual_batches) {
      chunks = Cut(begin, end, options.together ? end - begin : kLargestChunk);
      continue;
    }
    for (std::int64_t b = begin; b < end; b += unit) {
      chunks.push_back({b, std::min(b + unit, end)});
    }
  }
  return pieces;
}

}  // namespace motley::engine::native
