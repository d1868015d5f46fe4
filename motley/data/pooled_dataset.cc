#include "motley/data/pooled_dataset.h"

#include <utility>

#include "motley/base/check.h"
#include "motley/base/rng.h"

namespace motley::data {
namespace {

// A bit that says so, some bits of the device's name, the index in the private set.
constexpr SampleId kPrivate = SampleId{1} << 63;
constexpr int kIndexBits = 40;
constexpr SampleId kIndex = (SampleId{1} << kIndexBits) - 1;
constexpr std::uint64_t kName = (std::uint64_t{1} << (63 - kIndexBits)) - 1;

std::uint64_t NameKey(const std::string& name) {
  std::uint64_t key = 1;
  for (const char c : name) key = base::Key({key, static_cast<std::uint64_t>(c)});
  return key;
}

}  // namespace

bool IsPrivate(SampleId id) { return (id & kPrivate) != 0; }

SampleId FirstPrivateId(const std::string& device) {
  return kPrivate | (NameKey(device) & kName) << kIndexBits;
}

std::uint64_t PrivateSeed(std::uint64_t seed, const std::string& device) {
  return base::Key({seed, NameKey(device)});
}

PooledDataset::PooledDataset(std::shared_ptr<const Dataset> open,
                             std::shared_ptr<const Dataset> secret)
    : open_(std::move(open)), secret_(std::move(secret)) {
  MOTLEY_CHECK(open_->pixels_per_sample() == secret_->pixels_per_sample(), "two shapes");
}

bool PooledDataset::Contains(SampleId id) const {
  return IsPrivate(id) ? secret_->Contains(id & kIndex) : open_->Contains(id);
}

std::int32_t PooledDataset::label(SampleId id) const {
  return IsPrivate(id) ? secret_->label(id & kIndex) : open_->label(id);
}

base::Status PooledDataset::Decode(SampleId id, std::span<std::uint8_t> pixels) const {
  return IsPrivate(id) ? secret_->Decode(id & kIndex, pixels) : open_->Decode(id, pixels);
}

}  // namespace motley::data
