#ifndef MOTLEY_DATA_MEMORY_DATASET_H_
#define MOTLEY_DATA_MEMORY_DATASET_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "motley/data/dataset.h"

namespace motley::data {

struct ImageShape {
  int channels = 0, height = 0, width = 0;

  std::size_t size() const {
    return static_cast<std::size_t>(channels) * static_cast<std::size_t>(height) *
           static_cast<std::size_t>(width);
  }
  bool operator==(const ImageShape&) const = default;
};

// Everything that a hash of a dataset covers besides its samples: two sets with the same
// description differ in sample bytes only.
std::string DescribeForHash(const Dataset& dataset);

// A dataset whose pixels lie uncompressed in memory, sample after sample.
class MemoryDataset final : public Dataset {
 public:
  struct Parts {
    ImageShape shape;
    std::vector<std::string> classes;
    std::vector<std::int32_t> labels;
    std::string bytes;       // pixels of all samples, after `offset` other bytes
    std::size_t offset = 0;  // spares a copy when a file has a header
  };

  // Requires exactly labels.size() * shape.size() bytes after the offset and labels below
  // classes.size().
  explicit MemoryDataset(Parts parts);

  std::int64_t size() const override { return static_cast<std::int64_t>(parts_.labels.size()); }
  int channels() const override { return parts_.shape.channels; }
  int height() const override { return parts_.shape.height; }
  int width() const override { return parts_.shape.width; }
  const std::vector<std::string>& classes() const override { return parts_.classes; }
  std::int32_t label(SampleId id) const override { return parts_.labels[id]; }
  base::Status Decode(SampleId id, std::span<std::uint8_t> pixels) const override;
  std::string ContentHash() const override;

 private:
  Parts parts_;
};

}  // namespace motley::data

#endif  // MOTLEY_DATA_MEMORY_DATASET_H_
