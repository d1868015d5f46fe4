#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "motley/data/cifar.h"

// The first byte chooses the form and where the bytes are cut into two files.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size < 1) return 0;
  const std::string bytes(reinterpret_cast<const char*>(data) + 1, size - 1);
  const motley::data::CifarFormat format{.label_bytes = 1U + data[0] % 2,
                                         .classes = std::vector<std::string>(10, "x")};
  const std::size_t split = bytes.size() * (data[0] / 2 % 8) / 8;
  const auto parsed = motley::data::ParseCifar(
      {{"one", bytes.substr(0, split)}, {"two", bytes.substr(split)}}, format);
  const auto whole = motley::data::ParseCifar({{"all", bytes}}, format);
  for (const auto* result : {&parsed, &whole}) {
    if (!result->ok()) continue;
    std::vector<std::uint8_t> pixels(static_cast<std::size_t>((**result)->pixels_per_sample()));
    const auto last = static_cast<motley::data::SampleId>((**result)->size() - 1);
    if ((**result)->label(last) >= 10 || !(**result)->Decode(last, pixels).ok()) __builtin_trap();
  }
  return 0;
}
