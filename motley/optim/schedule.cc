#include "motley/optim/schedule.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <numbers>
#include <optional>
#include <string_view>

namespace motley::optim {
namespace {

base::Status Refused(const std::string& text, std::string_view reason) {
  return base::InvalidInput("schedule '{}': {}", text, reason)
      .WithFix(
          "use one of: constant | step:E1,E2,…[:FACTOR] (times FACTOR, default 0.1, at each of "
          "these epochs) | cosine:E (to 0 over E epochs); for example step:30,60,90:0.1");
}

// The whole of `text` as a finite number above 0. Not strtod: that one depends on the locale.
std::optional<double> ParsePositive(std::string_view text) {
  double value = 0.0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  if (!std::isfinite(value) || value <= 0.0) return std::nullopt;
  return value;
}

// Cuts `text` at the first `separator`; the second part is none when there is no separator.
std::pair<std::string_view, std::optional<std::string_view>> CutAt(std::string_view text,
                                                                   char separator) {
  const std::size_t at = text.find(separator);
  if (at == std::string_view::npos) return {text, std::nullopt};
  return {text.substr(0, at), text.substr(at + 1)};
}

}  // namespace

base::Result<Schedule> Schedule::Parse(const std::string& text, std::int64_t warmup_steps) {
  Schedule schedule;
  if (warmup_steps < 0) {
    return base::InvalidInput("warmup_steps is {}; it cannot be negative", warmup_steps);
  }
  schedule.warmup_steps_ = warmup_steps;
  const auto [kind, arguments] = CutAt(text, ':');
  if (kind == "constant") {
    if (arguments) return Refused(text, "'constant' takes nothing after it");
    return schedule;
  }
  if (kind == "cosine") {
    const auto length = ParsePositive(arguments.value_or(""));
    if (!length) return Refused(text, "'cosine:' needs one number of epochs above 0");
    schedule.kind_ = Kind::kCosine;
    schedule.length_ = *length;
    return schedule;
  }
  if (kind != "step") return Refused(text, "unknown kind");

  schedule.kind_ = Kind::kStep;
  const auto [epochs, factor] = CutAt(arguments.value_or(""), ':');
  if (factor) {
    const auto value = ParsePositive(*factor);
    if (!value) return Refused(text, "the factor is not a number above 0");
    schedule.factor_ = *value;
  }
  for (std::optional<std::string_view> rest = epochs; rest;) {
    const auto [first, others] = CutAt(*rest, ',');
    const auto epoch = ParsePositive(first);
    if (!epoch) return Refused(text, fmt::format("'{}' is not an epoch above 0", first));
    if (!schedule.milestones_.empty() && *epoch <= schedule.milestones_.back()) {
      return Refused(text, "the epochs do not ascend");
    }
    schedule.milestones_.push_back(*epoch);
    rest = others;
  }
  return schedule;
}

double Schedule::Factor(std::int64_t step, double epoch) const {
  double factor = 1.0;
  if (kind_ == Kind::kStep) {
    const auto passed = std::upper_bound(milestones_.begin(), milestones_.end(), epoch);
    factor = std::pow(factor_, static_cast<double>(passed - milestones_.begin()));
  } else if (kind_ == Kind::kCosine) {
    factor = 0.5 * (1.0 + std::cos(std::numbers::pi * std::clamp(epoch / length_, 0.0, 1.0)));
  }
  if (step < warmup_steps_) {
    factor *= static_cast<double>(step + 1) / static_cast<double>(warmup_steps_);
  }
  return factor;
}

}  // namespace motley::optim
