#include "motley/plan/plan_record.h"

#include <algorithm>
#include <utility>

namespace motley::plan {

std::string Milliseconds(double seconds) {
  return seconds < 1.0 ? fmt::format("{:.3g} ms", 1e3 * seconds) : fmt::format("{:.3g} s", seconds);
}

std::string CostOf(const StepCost& cost) {
  return Milliseconds(cost.seconds) +
         (cost.joules ? fmt::format(" and {:.4g} J", *cost.joules) : "");
}

double MedianOf(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

namespace {

// "; the devices' …" included, and the same as numbers.
std::string Measured(const StepCost& predicted, const PlanRecord::Seen& seen, Note& note) {
  StepCost measured{.seconds = MedianOf(seen.seconds), .joules = {}};
  note.numbers.emplace_back("measured_step_seconds", measured.seconds);
  note.numbers.emplace_back("compute_spread", seen.spread);
  if (predicted.joules && !seen.joules.empty()) {
    measured.joules = MedianOf(seen.joules);
    note.texts.emplace_back("energy_source", "estimated");
    note.numbers.emplace_back("step_joules", *measured.joules);
  }
  const std::string against =
      predicted.seconds > 0.0
          ? fmt::format(
                "{} per step were predicted and {} measured ({:+.0f} %{})", CostOf(predicted),
                CostOf(measured), 100.0 * (measured.seconds / predicted.seconds - 1.0),
                measured.joules ? " of the seconds; the joules by these and the devices' watts"
                                : "")
          : fmt::format("{} per step were measured", CostOf(measured));
  return fmt::format("{}; the devices' compute times differ by {:.1f} %", against,
                     100.0 * seen.spread);
}

void NotePrediction(const StepCost& predicted, Note& note) {
  if (predicted.seconds > 0.0) {
    note.numbers.emplace_back("predicted_step_seconds", predicted.seconds);
  }
  if (predicted.joules) note.numbers.emplace_back("predicted_step_joules", *predicted.joules);
}

}  // namespace

std::int64_t PlanRecord::Decide(const StepCost& predicted) {
  predicted_ = predicted;
  steps_ = 0;
  told_ = false;
  return ++decision_;
}

void PlanRecord::CountStep(std::vector<Note>& notes) {
  ++steps_;
  TellUnbegun(decision_ - 1, "replaced before", "replaced_after_steps", notes);
}

void PlanRecord::TellUnbegun(std::int64_t last, const std::string& fate, const std::string& key,
                             std::vector<Note>& notes) {
  const std::int64_t first = std::exchange(unbegun_, 0);
  if (first == 0) return;
  notes.push_back(
      {"outcome",
       first == last ? fmt::format("decision {} was {} its first step", last, fate)
                     : fmt::format("decisions {} to {} were {} their first step", first, last, fate),
       {},
       {{"decision", static_cast<double>(first)},
        {"last_decision", static_cast<double>(last)},
        {key, 0.0}}});
}

void PlanRecord::Tell(const Seen& seen, std::vector<Note>& notes) {
  if (std::exchange(told_, true)) return;
  Note note{"outcome", "", {}, {{"decision", static_cast<double>(decision_)}}};
  NotePrediction(predicted_, note);
  note.message = fmt::format("decision {}: {}", decision_, Measured(predicted_, seen, note));
  notes.push_back(std::move(note));
}

void PlanRecord::GiveUp(const Seen& seen, std::vector<Note>& notes) {
  if (std::exchange(told_, true)) return;
  if (steps_ == 0) {
    if (unbegun_ == 0) unbegun_ = decision_;
    return;
  }
  TellShort("was replaced after", "replaced_after_steps", seen, notes);
}

void PlanRecord::End(const Seen& seen, std::vector<Note>& notes) {
  if (steps_ == 0) GiveUp({}, notes);
  TellUnbegun(decision_, "made, and the job ended before", "ended_after_steps", notes);
  if (!std::exchange(told_, true)) TellShort("stood to the end, for", "ended_after_steps", seen, notes);
}

void PlanRecord::TellShort(const std::string& fate, const std::string& key, const Seen& seen,
                           std::vector<Note>& notes) const {
  Note note{
      "outcome",
      fmt::format("decision {} {} {} {}", decision_, fate, steps_,
                  steps_ == 1 ? "step" : "steps"),
      {},
      {{"decision", static_cast<double>(decision_)}, {key, static_cast<double>(steps_)}}};
  NotePrediction(predicted_, note);
  note.message += seen.seconds.empty() ? ", too few to measure it"
                                       : "; so far " + Measured(predicted_, seen, note);
  notes.push_back(std::move(note));
}

}  // namespace motley::plan
