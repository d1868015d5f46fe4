#ifndef MOTLEY_ENGINE_DROPOUT_HASH_H_
#define MOTLEY_ENGINE_DROPOUT_HASH_H_

#include <cstdint>

namespace motley::engine {

// Whether dropout keeps `element` of the sample and node that `key` stands for. Always inlined,
// because it is compiled for several kinds of processor (native/kernels/simd).
[[gnu::always_inline]] inline bool DropoutKeep(std::uint64_t key, std::uint32_t element,
                                               std::uint32_t threshold) {
  // murmur3's finaliser on 32 bits: vectorises, unlike a 64-bit multiply.
  std::uint32_t x = static_cast<std::uint32_t>(key) + element * 0x9e3779b9U;
  x ^= static_cast<std::uint32_t>(key >> 32);
  x = (x ^ (x >> 16)) * 0x85ebca6bU;
  x = (x ^ (x >> 13)) * 0xc2b2ae35U;
  return (x ^ (x >> 16)) >= threshold;
}

}  // namespace motley::engine

#endif  // MOTLEY_ENGINE_DROPOUT_HASH_H_
