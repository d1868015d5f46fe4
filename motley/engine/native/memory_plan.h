#ifndef MOTLEY_ENGINE_NATIVE_MEMORY_PLAN_H_
#define MOTLEY_ENGINE_NATIVE_MEMORY_PLAN_H_

#include <cstdint>
#include <vector>

namespace motley::engine::native {

// A piece of memory that is in use from tick `first` to tick `last`, both included.
struct Buffer {
  std::int64_t bytes = 0;
  int first = 0, last = 0;
  std::int64_t offset = 0;  // the answer
};

// Gives every buffer an offset (a multiple of 64) so that no two buffers that are in use at the
// same tick overlap, largest first, each at the lowest place that fits. Returns the bytes needed.
std::int64_t PlanMemory(std::vector<Buffer>& buffers);

}  // namespace motley::engine::native

#endif  // MOTLEY_ENGINE_NATIVE_MEMORY_PLAN_H_
