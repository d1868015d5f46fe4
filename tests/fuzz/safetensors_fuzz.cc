#include <cstddef>
#include <cstdint>
#include <string_view>

#include "motley/graph/safetensors.h"

// What is accepted must be backed: every value has its four bytes in the file.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto arrays =
      motley::graph::ParseSafetensors({reinterpret_cast<const char*>(data), size}, "fuzz");
  if (!arrays.ok()) return 0;
  std::size_t values = 0;
  for (const auto& [name, array] : *arrays) {
    values += array.values.size();
    if (motley::graph::Count(array.shape) != static_cast<std::int64_t>(array.values.size())) {
      __builtin_trap();
    }
  }
  if (values * sizeof(float) > size) __builtin_trap();
  return 0;
}
