#ifndef MOTLEY_PLAN_EQUAL_SHARES_H_
#define MOTLEY_PLAN_EQUAL_SHARES_H_

#include <optional>
#include <string>
#include <vector>

#include "motley/plan/controller.h"

namespace motley::plan {

// tune = "off": every device of a group the same share, whatever its speed, and the groups as equal
// in number as possible.
class EqualShares final : public Controller {
 public:
  // Shares are multiples of `multiple`. With fewer devices than groups there are as many groups as
  // devices. Requires groups > 0.
  EqualShares(std::int64_t batch, std::int64_t multiple, int groups = 1)
      : batch_(batch), multiple_(multiple), groups_(groups) {}
  std::optional<Plan> OnEvent(const Event& event) override;
  std::vector<Note> TakeNotes() override;

 private:
  const std::int64_t batch_, multiple_;
  const int groups_;
  std::vector<std::string> devices_;
  std::vector<Note> notes_;
};

}  // namespace motley::plan

#endif  // MOTLEY_PLAN_EQUAL_SHARES_H_
