#include "apps/motley/progress.h"

#include <fmt/format.h>

#include <utility>
#include <vector>

namespace motley::app {
namespace {

constexpr double kSecondsBetweenPlainLines = 5.0;
constexpr double kSecondsBetweenUpdates = 0.1;

std::string OfTotal(std::int64_t number, std::int64_t total) {
  return total > 0 ? fmt::format("{}/{}", number, total) : fmt::format("{}", number);
}

}  // namespace

std::string ProgressLine(const run::Progress& progress, std::optional<std::int64_t> epochs,
                         int width) {
  // In the order of the line, each with its importance: the highest numbers are dropped first.
  std::vector<std::pair<int, std::string>> parts = {
      {0, "epoch " + OfTotal(static_cast<std::int64_t>(progress.epoch) + 1, epochs.value_or(0))},
      {3, "step " + OfTotal(progress.step, progress.steps_total)},
      {1, fmt::format("loss {:.3f}", progress.loss)},
      {2, fmt::format("acc {:.3f}", progress.accuracy)},
      {5, fmt::format("{:.0f} samples/s", progress.samples_per_second)},
  };
  if (progress.seconds_left >= 0) {
    parts.emplace_back(4, "ETA " + FormatSeconds(progress.seconds_left));
  }
  for (int most_important_dropped = 6; most_important_dropped > 0; --most_important_dropped) {
    std::string line;
    for (const auto& [importance, text] : parts) {
      if (importance >= most_important_dropped) continue;
      line += (line.empty() ? "" : "  ") + text;
    }
    if (static_cast<int>(line.size()) < width || most_important_dropped == 1) return line;
  }
  return "";
}

ProgressView::ProgressView(Console console, const base::Clock& clock)
    : console_(console), clock_(clock), start_(clock.Now()) {
  if (!console_.terminal) next_shown_ = kSecondsBetweenPlainLines;
}

void ProgressView::set_epochs(std::optional<std::int64_t> epochs) {
  const std::lock_guard lock(mutex_);
  epochs_ = epochs;
}

void ProgressView::OnStep(const run::Progress& progress) {
  const std::lock_guard lock(mutex_);
  last_ = progress;
  const double now = Elapsed();
  if (now < next_shown_) return;
  next_shown_ = now + (console_.terminal ? kSecondsBetweenUpdates : kSecondsBetweenPlainLines);
  if (console_.terminal) {
    Put(fmt::format("\r{}\x1b[K", ProgressLine(progress, epochs_, console_.width())));
    updating_line_shown_ = true;
  } else {
    Put(ProgressLine(progress, epochs_, 1000) + "\n");
  }
}

void ProgressView::OnEpoch(std::uint64_t epoch, const run::Evaluation& test) {
  const std::lock_guard lock(mutex_);
  const auto number = static_cast<std::int64_t>(epoch) + 1;
  std::string line =
      fmt::format("epoch {}  test loss {:.4f}  test acc {}", OfTotal(number, epochs_.value_or(0)),
                  test.loss, console_.Bold(fmt::format("{:.4f}", test.accuracy)));
  if (last_) {
    line += fmt::format("  (training: loss {:.3f}, acc {:.3f})  {:.0f} samples/s", last_->loss,
                        last_->accuracy, last_->samples_per_second);
    // At the end of the last epoch nothing but its checkpoint is left.
    if (last_->seconds_left >= 1 && number != epochs_) {
      line += "  ETA " + FormatSeconds(last_->seconds_left);
    }
  }
  PutLine(line);
}

void ProgressView::Line(const std::string& text) {
  const std::lock_guard lock(mutex_);
  PutLine(text);
}

void ProgressView::PutLine(const std::string& text) {
  const char* erase = std::exchange(updating_line_shown_, false) ? "\r\x1b[K" : "";
  Put(erase + text + "\n");
}

void ProgressView::Put(const std::string& text) {
  std::fputs(text.c_str(), console_.out);
  std::fflush(console_.out);
}

}  // namespace motley::app
