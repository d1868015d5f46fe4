#ifndef MOTLEY_PLAN_PLAN_RECORD_H_
#define MOTLEY_PLAN_PLAN_RECORD_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "motley/plan/controller.h"

namespace motley::plan {

// For people: "12.5 ms", "1.2 s".
std::string Milliseconds(double seconds);

// What a step costs, predicted or measured.
struct StepCost {
  double seconds = 0.0;          // 0: not predicted
  std::optional<double> joules;  // where the plan is one for energy
};
std::string CostOf(const StepCost& cost);  // for people

// Requires at least one value.
double MedianOf(std::vector<double> values);

// Counts the decisions of a controller and notes once of every plan what came of it: when it has
// been measured, or when another one takes its place before that.
//
// Thread safety: none.
class PlanRecord {
 public:
  // What was seen of a plan.
  struct Seen {
    std::vector<double> seconds;      // of its steps; none: it was too short
    double spread = 0.0;              // of the devices' compute times
    std::vector<double> joules = {};  // of its steps, where these were predicted
  };

  // A new plan stands. Returns the number of the decision. The plan before must
  // have been told of or given up.
  std::int64_t Decide(const StepCost& predicted);
  // A step of the present plan is done.
  void CountStep(std::vector<Note>& notes);
  // It has been measured. Nothing happens when it has been told already.
  void Tell(const Seen& seen, std::vector<Note>& notes);
  // Another one will take its place. Those that are replaced before their first step, as while
  // devices join one after the other, are told together when a step comes.
  void GiveUp(const Seen& seen, std::vector<Note>& notes);
  // No further step will come: tells what is left to tell.
  void End(const Seen& seen, std::vector<Note>& notes);

  bool told() const { return told_; }
  std::int64_t steps() const { return steps_; }  // of the present plan

 private:
  // What came of a plan that stood for some steps only: `fate` says how it ended.
  void TellShort(const std::string& fate, const std::string& key, const Seen& seen,
                 std::vector<Note>& notes) const;
  // Decisions up to `last` that no step followed; `fate` says why.
  void TellUnbegun(std::int64_t last, const std::string& fate, const std::string& key,
                   std::vector<Note>& notes);

  std::int64_t decision_ = 0, steps_ = 0;
  std::int64_t unbegun_ = 0;  // the first one that was replaced before its first step; 0: none
  StepCost predicted_;
  bool told_ = true;
};

}  // namespace motley::plan

#endif  // MOTLEY_PLAN_PLAN_RECORD_H_
