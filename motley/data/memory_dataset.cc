#include "motley/data/memory_dataset.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <string_view>
#include <utility>

#include "motley/base/check.h"
#include "motley/base/file.h"

namespace motley::data {

std::string DescribeForHash(const Dataset& dataset) {
  std::string text =
      fmt::format("motley-data-1 {}x{}x{} {} samples {} classes\n", dataset.channels(),
                  dataset.height(), dataset.width(), dataset.size(), dataset.classes().size());
  // With its length, a name that holds a line break cannot pass for two names.
  for (const auto& name : dataset.classes()) text += fmt::format("{} {}\n", name.size(), name);
  std::string labels;
  for (std::int64_t id = 0; id < dataset.size(); ++id) {
    labels += fmt::format("{} ", dataset.label(static_cast<SampleId>(id)));
  }
  return text + base::Sha256(labels) + "\n";
}

MemoryDataset::MemoryDataset(Parts parts) : parts_(std::move(parts)) {
  MOTLEY_CHECK(parts_.bytes.size() == parts_.offset + parts_.labels.size() * parts_.shape.size(),
               "{} bytes, offset {}, {} samples of {}", parts_.bytes.size(), parts_.offset,
               parts_.labels.size(), parts_.shape.size());
  const auto classes = static_cast<std::int32_t>(parts_.classes.size());
  MOTLEY_CHECK(std::all_of(parts_.labels.begin(), parts_.labels.end(),
                           [classes](std::int32_t label) { return 0 <= label && label < classes; }),
               "a label outside {} classes", classes);
}

base::Status MemoryDataset::Decode(SampleId id, std::span<std::uint8_t> pixels) const {
  const std::size_t size = parts_.shape.size();
  MOTLEY_CHECK(id < parts_.labels.size() && pixels.size() == size, "sample {} of {} into {} bytes",
               id, parts_.labels.size(), pixels.size());
  std::memcpy(pixels.data(), parts_.bytes.data() + parts_.offset + id * size, size);
  return {};
}

std::string MemoryDataset::ContentHash() const {
  const auto samples = std::string_view(parts_.bytes).substr(parts_.offset);
  return base::Sha256(DescribeForHash(*this) + base::Sha256(samples));
}

}  // namespace motley::data
