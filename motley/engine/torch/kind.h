#ifndef MOTLEY_ENGINE_TORCH_KIND_H_
#define MOTLEY_ENGINE_TORCH_KIND_H_

#include <optional>
#include <string_view>

#include "motley/base/status.h"

namespace motley::engine::torch {

// Where a LibTorch device computes.
struct Kind {
  std::optional<int> cuda;  // the GPU's number; none: the CPU
};

// Reads "torch:cpu" or "torch:cuda:N". Needs no LibTorch, so that a job file is refused for a wrong
// kind in every build alike.
base::Result<Kind> ParseKind(std::string_view text);

}  // namespace motley::engine::torch

#endif  // MOTLEY_ENGINE_TORCH_KIND_H_
