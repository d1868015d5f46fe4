#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>

#include "motley/data/idx.h"

// The first byte says how many bytes at the end are the label file; those before are the images.
// Either may be plain or gzip.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size < 1) return 0;
  const std::string bytes(reinterpret_cast<const char*>(data) + 1, size - 1);
  const std::size_t split = bytes.size() - std::min<std::size_t>(bytes.size(), data[0]);
  auto images = motley::data::ExpandIdx({"images", bytes.substr(0, split)});
  const auto labels = motley::data::ExpandIdx({"labels", bytes.substr(split)});
  if (!images.ok()) return 0;
  // Most inputs get the labels wrong; these make the images matter all the same.
  const std::string spare("\0\0\x08\1\0\0\0\1\0", 9);
  const auto parsed = motley::data::ParseIdx(
      *images, labels.ok() ? *labels : motley::data::NamedBytes{"spare", spare}, {});
  if (!parsed.ok()) return 0;
  std::string pixels(static_cast<std::size_t>((*parsed)->pixels_per_sample()), '\0');
  const auto last = static_cast<motley::data::SampleId>((*parsed)->size() - 1);
  (void)(*parsed)->label(last);
  if (!(*parsed)
           ->Decode(last, {reinterpret_cast<std::uint8_t*>(pixels.data()), pixels.size()})
           .ok()) {
    __builtin_trap();
  }
  return 0;
}
