#ifndef MOTLEY_DATA_TRANSFORM_H_
#define MOTLEY_DATA_TRANSFORM_H_

#include <cstdint>
#include <span>
#include <vector>

#include "motley/base/status.h"
#include "motley/data/dataset.h"

namespace motley::data {

// What happens between a sample's pixels and the floats a network sees:
// zero padding -> crop (random in training, centred in evaluation) -> horizontal flip (training
// only) -> (pixel / 255 - mean) / stddev. Padding is zero after normalisation.
struct Transform {
  int pad = 0;
  int crop_height = 0, crop_width = 0;  // 0: the whole image
  bool flip = false;
  std::vector<float> mean, stddev;  // per channel, of pixel / 255; both empty: 0 and 1
  bool training = false;

  // [channels, height, width] of what comes out.
  std::vector<std::int64_t> OutputShape(const Dataset& dataset) const;
  // Fails when the crop is larger than the padded image, or mean and stddev do not fit.
  base::Status Check(const Dataset& dataset) const;
  // One sample. Random choices are keyed by (seed, epoch, id). Requires Check.
  void Apply(const Dataset& dataset, std::span<const std::uint8_t> pixels, std::uint64_t seed,
             std::uint64_t epoch, SampleId id, std::span<float> out) const;
};

// Mean and standard deviation of each channel over (at most `limit`) evenly spaced samples, as
// Transform wants them: the deviation of a constant channel is given as 1.
struct ChannelStatistics {
  std::vector<float> mean, stddev;
};
base::Result<ChannelStatistics> MeasureChannels(const Dataset& dataset, std::int64_t limit = 4096);

}  // namespace motley::data

#endif  // MOTLEY_DATA_TRANSFORM_H_
