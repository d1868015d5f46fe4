#ifndef MOTLEY_ENGINE_DROPOUT_H_
#define MOTLEY_ENGINE_DROPOUT_H_

#include <cstdint>

#include "motley/base/rng.h"
#include "motley/data/batch.h"
#include "motley/engine/dropout_hash.h"

namespace motley::engine {

// The random choices of dropout, the same on every kind of device: element `i` (row-major within
// the sample) of node `node` is kept iff DropoutKeep(DropoutKey(…), i, threshold).
inline std::uint64_t DropoutKey(std::uint64_t seed, std::uint64_t epoch, data::SampleId sample,
                                int node) {
  return base::Key({seed, epoch, sample, static_cast<std::uint64_t>(node)});
}

// Keep when the element's 32-bit hash is at least this.
inline std::uint32_t DropoutThreshold(float probability) {
  return static_cast<std::uint32_t>(static_cast<double>(probability) * 4294967296.0);
}

}  // namespace motley::engine

#endif  // MOTLEY_ENGINE_DROPOUT_H_
