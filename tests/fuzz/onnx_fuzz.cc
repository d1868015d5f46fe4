#include <cstddef>
#include <cstdint>
#include <string_view>

#include "motley/graph/onnx.h"

// Whatever the bytes are, they are refused or become a whole model.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto model = motley::graph::ParseOnnx({reinterpret_cast<const char*>(data), size}, "fuzz");
  if (!model.ok()) {
    if (model.status().message().empty()) __builtin_trap();
    return 0;
  }
  const auto weights = static_cast<std::int64_t>(model->weights.size());
  const auto buffers = static_cast<std::int64_t>(model->buffers.size());
  if (weights != model->graph.parameter_count() || buffers != model->graph.buffer_count()) {
    __builtin_trap();
  }
  return 0;
}
