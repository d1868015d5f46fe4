#ifndef MOTLEY_TUNE_KEEPER_RECORD_H_
#define MOTLEY_TUNE_KEEPER_RECORD_H_

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "motley/plan/controller.h"

namespace motley::tune {

// Numbers the decisions of a keeper, and notes once of each what came of it: when that has been
// measured, or when another decision or the end of the job comes before.
//
// Thread safety: none.
class KeeperRecord {
 public:
  enum class When { kMeasured, kReplaced, kEnded };
  using Numbers = std::vector<std::pair<std::string, double>>;

  // "momentum": its notes have the key momentum_decision.
  explicit KeeperRecord(std::string kind) : kind_(std::move(kind)) {}

  // Notes a decision of which the one before has been told.
  void Decide(plan::Note decision, std::vector<plan::Note>& notes);
  // `words`: what was expected, and what was measured, as in `numbers`. Nothing happens when the
  // decision has been told already.
  void Tell(When when, const std::string& words, Numbers numbers, std::vector<plan::Note>& notes);
  bool told() const { return told_; }

 private:
  std::pair<std::string, double> Key() const {
    return {kind_ + "_decision", static_cast<double>(number_)};
  }

  const std::string kind_;
  std::int64_t number_ = 0;
  bool told_ = true;
};

}  // namespace motley::tune

#endif  // MOTLEY_TUNE_KEEPER_RECORD_H_
