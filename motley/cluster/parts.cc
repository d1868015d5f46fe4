#include "motley/cluster/parts.h"

#include <algorithm>
#include <bit>

#include "motley/base/check.h"

namespace motley::cluster {

static_assert(std::endian::native == std::endian::little, "messages would have to be swapped");

namespace {

// With its two parts of at most 1 MB, a step of lenet through the server took 61.7 ms where
// computing and its bytes take 49 (two workers, cables of 1 Gbit/s): nothing overlapped.
std::int64_t FloatsOfAPart(std::int64_t floats) {
  constexpr std::int64_t kWanted = 16, kLeast = std::int64_t{1} << 14;
  const auto even = std::bit_ceil(static_cast<std::uint64_t>(floats / kWanted));
  return std::clamp(static_cast<std::int64_t>(even), kLeast, Parts::kFloats);
}

}  // namespace

Parts::Parts(std::int64_t parameters, std::int64_t buffers, int ranges) {
  MOTLEY_CHECK(ranges == 1 || (ranges > 1 && ranges <= parameters), "{} parameters in {} ranges",
               parameters, ranges);
  // The host of a range, which knows no other, cuts it alike.
  const auto add = [this](std::int64_t begin, std::int64_t end) {
    const std::int64_t size = FloatsOfAPart(end - begin);
    for (std::int64_t at = begin; at < end; at += size) {
      parts_.push_back({at, std::min(size, end - at)});
    }
  };
  for (int i = 0; i < ranges; ++i) {
    const std::int64_t begin = parameters * i / ranges, end = parameters * (i + 1) / ranges;
    ranges_.push_back({begin, end - begin});
    add(begin, end);
  }
  parameter_parts_ = count();
  add(parameters, parameters + buffers);
}

int Parts::Holding(std::int64_t offset) const {
  MOTLEY_CHECK(offset >= 0 && offset < floats(), "element {} of {}", offset, floats());
  const auto after =
      std::upper_bound(parts_.begin(), parts_.end(), offset,
                       [](std::int64_t at, const Part& part) { return at < part.offset; });
  return static_cast<int>(after - parts_.begin()) - 1;
}

int Parts::RangeOf(int index) const {
  if (index >= parameter_parts_) return 0;
  const auto after =
      std::upper_bound(ranges_.begin(), ranges_.end(), (*this)[index].offset,
                       [](std::int64_t at, const Part& range) { return at < range.offset; });
  return static_cast<int>(after - ranges_.begin()) - 1;
}

base::Result<int> Parts::Find(std::int64_t offset, std::int64_t size) const {
  if (offset >= 0 && offset < floats()) {
    const int index = Holding(offset);
    if ((*this)[index].offset == offset && (*this)[index].size == size) return index;
  }
  return base::InvalidInput("{} floats at {} are no part of an array of {}", size, offset,
                            floats());
}

void PartProgress::Restart() {
  missing_.clear();
  for (int i = 0; i < parts_.count(); ++i) missing_.push_back(parts_[i].size);
}

void PartProgress::Add(std::int64_t offset, std::int64_t count, std::vector<int>& completed) {
  while (count > 0) {
    const int index = parts_.Holding(offset);
    const std::int64_t end = parts_[index].offset + parts_[index].size;
    const std::int64_t here = std::min(count, end - offset);
    std::int64_t& missing = missing_[static_cast<std::size_t>(index)];
    missing -= here;
    MOTLEY_CHECK(missing >= 0, "a piece of part {} was announced twice", index);
    if (missing == 0) completed.push_back(index);
    offset += here;
    count -= here;
  }
}

std::span<const float> FloatsOf(const std::string& bytes) {
  MOTLEY_CHECK(bytes.size() % sizeof(float) == 0, "{} bytes of floats", bytes.size());
  // A string's memory is aligned for any scalar.
  const void* memory = bytes.data();
  return {static_cast<const float*>(memory), bytes.size() / sizeof(float)};
}

std::string_view BytesOf(std::span<const float> floats) {
  const void* memory = floats.data();
  return {static_cast<const char*>(memory), floats.size_bytes()};
}

}  // namespace motley::cluster
