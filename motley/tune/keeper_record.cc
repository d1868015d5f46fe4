#include "motley/tune/keeper_record.h"

#include "motley/base/check.h"

namespace motley::tune {

void KeeperRecord::Decide(plan::Note decision, std::vector<plan::Note>& notes) {
  MOTLEY_CHECK(told_, "nobody told what came of the {} decision {}", kind_, number_);
  ++number_;
  told_ = false;
  decision.numbers.insert(decision.numbers.begin(), Key());
  notes.push_back(std::move(decision));
}

void KeeperRecord::Tell(When when, const std::string& words, Numbers numbers,
                        std::vector<plan::Note>& notes) {
  if (std::exchange(told_, true)) return;
  const char* fate = when == When::kReplaced ? " was replaced early"
                     : when == When::kEnded  ? " stood to the end of the job"
                                             : "";
  numbers.insert(numbers.begin(), Key());
  notes.push_back({"outcome",
                   fmt::format("{} decision {}{}: {}", kind_, number_, fate, words),
                   {},
                   std::move(numbers)});
}

}  // namespace motley::tune
