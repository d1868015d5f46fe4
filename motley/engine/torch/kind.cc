#include "motley/engine/torch/kind.h"

#include <charconv>

namespace motley::engine::torch {

base::Result<Kind> ParseKind(std::string_view text) {
  constexpr std::string_view kCuda = "torch:cuda:";
  constexpr int kLargest = 127;  // LibTorch keeps the number in eight bits
  if (text == "torch:cpu") return Kind{};
  if (text.starts_with(kCuda)) {
    const std::string_view digits = text.substr(kCuda.size());
    int number = -1;
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), number);
    const bool is_number = error == std::errc() && end == digits.data() + digits.size();
    if (is_number && number >= 0 && number <= kLargest) return Kind{.cuda = number};
    return base::InvalidInput("'{}' is not a device: '{}' is not the number of a GPU", text, digits)
        .WithFix("write torch:cuda:0 for the first GPU");
  }
  return base::InvalidInput("'{}' is not a LibTorch device", text)
      .WithFix("write torch:cpu, or torch:cuda:0 for the first GPU");
}

}  // namespace motley::engine::torch
