#include "motley/engine/native/memory_plan.h"

#include <algorithm>
#include <numeric>

namespace motley::engine::native {

std::int64_t PlanMemory(std::vector<Buffer>& buffers) {
  constexpr std::int64_t kAlign = 64;
  std::vector<std::size_t> order(buffers.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return buffers[a].bytes > buffers[b].bytes;
  });
  std::int64_t total = 0;
  std::vector<const Buffer*> placed;  // sorted by offset
  for (const std::size_t index : order) {
    Buffer& buffer = buffers[index];
    buffer.bytes = (buffer.bytes + kAlign - 1) / kAlign * kAlign;
    std::int64_t offset = 0;
    for (const Buffer* other : placed) {
      const bool together = buffer.first <= other->last && other->first <= buffer.last;
      if (!together) continue;
      if (offset + buffer.bytes <= other->offset) break;
      offset = std::max(offset, other->offset + other->bytes);
    }
    buffer.offset = offset;
    total = std::max(total, offset + buffer.bytes);
    const auto place =
        std::upper_bound(placed.begin(), placed.end(), &buffer,
                         [](const Buffer* a, const Buffer* b) { return a->offset < b->offset; });
    placed.insert(place, &buffer);
  }
  return total;
}

}  // namespace motley::engine::native
