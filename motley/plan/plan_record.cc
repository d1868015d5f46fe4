#include "motley/plan/plan_record.h"

#include <algorithm>
#include <utility>

namespace motley::plan {

std::string Milliseconds(double seconds) {
  return seconds < 1.0 ? fmt::format("{:.3g} ms", 1e3 * seconds) : fmt::format("{:.3g} s", seconds);
}

double MedianOf(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

namespace {

// "; the devices' …" included, and the same as numbers.
std::string Measured(double predicted, const PlanRecord::Seen& seen, Note& note) {
  const double measured = MedianOf(seen.seconds);
  note.numbers.emplace_back("measured_step_seconds", measured);
  note.numbers.emplace_back("compute_spread", seen.spread);
  const std::string against =
      predicted > 0.0 ? fmt::format("{} per step were predicted and {} measured ({:+.0f} %)",
                                    Milliseconds(predicted), Milliseconds(measured),
                                    100.0 * (measured / predicted - 1.0))
                      : fmt::format("{} per step were measured", Milliseconds(measured));
  return fmt::format("{}; the devices' compute times differ by {:.1f} %", against,
                     100.0 * seen.spread);
}

}  // namespace

std::int64_t PlanRecord::Decide(double predicted_seconds) {
  predicted_seconds_ = predicted_seconds;
  steps_ = 0;
  told_ = false;
  return ++decision_;
}

void PlanRecord::CountStep(std::vector<Note>& notes) {
  ++steps_;
  const std::int64_t first = std::exchange(unbegun_, 0), last = decision_ - 1;
  if (first == 0) return;
  notes.push_back({"outcome",
                   first == last
                       ? fmt::format("decision {} was replaced before its first step", last)
                       : fmt::format("decisions {} to {} were replaced before their "
                                     "first step",
                                     first, last),
                   {},
                   {{"decision", static_cast<double>(first)},
                    {"last_decision", static_cast<double>(last)},
                    {"replaced_after_steps", 0.0}}});
}

void PlanRecord::Tell(const Seen& seen, std::vector<Note>& notes) {
  if (std::exchange(told_, true)) return;
  Note note{"outcome", "", {}, {{"decision", static_cast<double>(decision_)}}};
  if (predicted_seconds_ > 0.0) {
    note.numbers.emplace_back("predicted_step_seconds", predicted_seconds_);
  }
  note.message =
      fmt::format("decision {}: {}", decision_, Measured(predicted_seconds_, seen, note));
  notes.push_back(std::move(note));
}

void PlanRecord::GiveUp(const Seen& seen, std::vector<Note>& notes) {
  if (std::exchange(told_, true)) return;
  if (steps_ == 0) {
    if (unbegun_ == 0) unbegun_ = decision_;
    return;
  }
  Note note{"outcome",
            fmt::format("decision {} was replaced after {} {}", decision_, steps_,
                        steps_ == 1 ? "step" : "steps"),
            {},
            {{"decision", static_cast<double>(decision_)},
             {"replaced_after_steps", static_cast<double>(steps_)}}};
  if (predicted_seconds_ > 0.0) {
    note.numbers.emplace_back("predicted_step_seconds", predicted_seconds_);
  }
  note.message += seen.seconds.empty() ? ", too few to measure it"
                                       : "; so far " + Measured(predicted_seconds_, seen, note);
  notes.push_back(std::move(note));
}

}  // namespace motley::plan
