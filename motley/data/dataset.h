#ifndef MOTLEY_DATA_DATASET_H_
#define MOTLEY_DATA_DATASET_H_

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "motley/base/status.h"
#include "motley/data/batch.h"

namespace motley::data {

// Labelled images of one shape. Pixels are 8 bit, [channels][height][width].
//
// Thread safety: const, may be read from any number of threads.
class Dataset {
 public:
  virtual ~Dataset() = default;

  virtual std::int64_t size() const = 0;
  virtual int channels() const = 0;
  virtual int height() const = 0;
  virtual int width() const = 0;
  virtual const std::vector<std::string>& classes() const = 0;

  // Ids count from 0, but for those of private samples beside public ones (PooledDataset).
  virtual bool Contains(SampleId id) const { return id < static_cast<SampleId>(size()); }

  // Requires Contains(id).
  virtual std::int32_t label(SampleId id) const = 0;

  // Writes channels * height * width bytes. Fails with the file and the place when a compressed
  // sample turns out to be broken.
  virtual base::Status Decode(SampleId id, std::span<std::uint8_t> pixels) const = 0;

  // SHA-256 over shape, class names, labels and sample bytes as stored: two copies with the same
  // hash are the same data in the same order.
  virtual std::string ContentHash() const = 0;

  std::int64_t pixels_per_sample() const {
    return static_cast<std::int64_t>(channels()) * height() * width();
  }
};

// A training set and the test set that belongs to it.
struct DataPair {
  std::shared_ptr<const Dataset> train;
  std::shared_ptr<const Dataset> test;
};

}  // namespace motley::data

#endif  // MOTLEY_DATA_DATASET_H_
