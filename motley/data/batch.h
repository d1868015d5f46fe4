#ifndef MOTLEY_DATA_BATCH_H_
#define MOTLEY_DATA_BATCH_H_

#include <cstdint>
#include <vector>

namespace motley::data {

// Which sample of which pool: for a single dataset, its index.
using SampleId = std::uint64_t;

// Samples ready for a device: decoded, augmented, normalised. Images are [n][channels][height]
// [width], row-major.
struct Batch {
  std::vector<float> images;
  std::vector<std::int32_t> labels;
  std::vector<SampleId> ids;
  std::uint64_t epoch = 0;  // part of the key of every random choice about these samples

  std::int64_t size() const { return static_cast<std::int64_t>(labels.size()); }
};

}  // namespace motley::data

#endif  // MOTLEY_DATA_BATCH_H_
