#ifndef MOTLEY_CLUSTER_PARTS_H_
#define MOTLEY_CLUSTER_PARTS_H_

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "motley/base/status.h"

namespace motley::cluster {

// How flat arrays travel: in parts, so that they can be summed, updated and sent on while the rest
// is still being computed. The array is `parameters` floats and then `buffers` floats (gradient and
// sums of statistics, or weights and running statistics); no part has some of both.
//
// Parts are of 1 MB, and smaller ones of small arrays: with two parts only, hardly anything would
// happen at the same time.
//
// The parameters may be cut into ranges of the same size, one for each shard of the model, which no
// part crosses. The buffers belong to the first.
class Parts {
 public:
  // At most 1 MB: below gRPC's usual limit for a message, large enough that its overhead does not
  // count.
  static constexpr std::int64_t kFloats = std::int64_t{1} << 18;

  struct Part {
    std::int64_t offset = 0, size = 0;
  };

  // Requires 1 <= ranges, and as many parameters when there are several.
  Parts(std::int64_t parameters, std::int64_t buffers, int ranges = 1);

  int count() const { return static_cast<int>(parts_.size()); }
  // Parts below it are of parameters, the others of buffers.
  int parameter_parts() const { return parameter_parts_; }
  const Part& operator[](int index) const { return parts_[static_cast<std::size_t>(index)]; }
  std::int64_t floats() const {
    return parts_.empty() ? 0 : parts_.back().offset + parts_.back().size;
  }
  // The part that is exactly [offset, offset + size); kInvalidInput when there is none.
  base::Result<int> Find(std::int64_t offset, std::int64_t size) const;
  // The part that holds this element.
  int Holding(std::int64_t offset) const;

  int ranges() const { return static_cast<int>(ranges_.size()); }
  // The parameters of a range.
  const Part& range(int index) const { return ranges_[static_cast<std::size_t>(index)]; }
  // The range that a part belongs to.
  int RangeOf(int index) const;

 private:
  std::vector<Part> ranges_, parts_;
  int parameter_parts_ = 0;
};

// Which parts of an array are complete, as pieces of it are announced in any order.
//
// Thread safety: none.
class PartProgress {
 public:
  explicit PartProgress(const Parts& parts) : parts_(parts) { Restart(); }
  void Restart();
  // [offset, offset + count) is final, announced once. Appends the parts that this completes.
  void Add(std::int64_t offset, std::int64_t count, std::vector<int>& completed);

 private:
  const Parts& parts_;
  std::vector<std::int64_t> missing_;  // floats, by part
};

// The floats of a message, and back. Motley's messages are little endian, as are its machines.
std::span<const float> FloatsOf(const std::string& bytes);
std::string_view BytesOf(std::span<const float> floats);

}  // namespace motley::cluster

#endif  // MOTLEY_CLUSTER_PARTS_H_
