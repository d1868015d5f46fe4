#ifndef MOTLEY_DATA_POOLED_DATASET_H_
#define MOTLEY_DATA_POOLED_DATASET_H_

#include <memory>
#include <string>
#include <vector>

#include "motley/data/dataset.h"

namespace motley::data {

// The id of the first private sample of a device; the others follow. Another device has other ids,
// so that the random choices about its samples are others.
SampleId FirstPrivateId(const std::string& device);
bool IsPrivate(SampleId id);
// What the order of a device's private samples is keyed by, instead of the job's seed.
std::uint64_t PrivateSeed(std::uint64_t seed, const std::string& device);

// Public and private samples of one device as one dataset, for those who load by id. Never leaves
// the device: whoever serves samples to others has the public set alone.
class PooledDataset final : public Dataset {
 public:
  // Requires two sets of the same shape and classes.
  PooledDataset(std::shared_ptr<const Dataset> open, std::shared_ptr<const Dataset> secret);

  std::int64_t size() const override { return open_->size() + secret_->size(); }
  int channels() const override { return open_->channels(); }
  int height() const override { return open_->height(); }
  int width() const override { return open_->width(); }
  const std::vector<std::string>& classes() const override { return open_->classes(); }
  bool Contains(SampleId id) const override;
  std::int32_t label(SampleId id) const override;
  base::Status Decode(SampleId id, std::span<std::uint8_t> pixels) const override;
  std::string ContentHash() const override { return open_->ContentHash() + secret_->ContentHash(); }

 private:
  std::shared_ptr<const Dataset> open_, secret_;
};

}  // namespace motley::data

#endif  // MOTLEY_DATA_POOLED_DATASET_H_
