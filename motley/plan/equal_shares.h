#ifndef MOTLEY_PLAN_EQUAL_SHARES_H_
#define MOTLEY_PLAN_EQUAL_SHARES_H_

#include <optional>
#include <string>
#include <vector>

#include "motley/plan/controller.h"

namespace motley::plan {

// tune = "off": every device the same share, whatever its speed.
class EqualShares final : public Controller {
 public:
  // Shares are multiples of `multiple`.
  EqualShares(std::int64_t batch, std::int64_t multiple) : batch_(batch), multiple_(multiple) {}
  std::optional<Plan> OnEvent(const Event& event) override;
  std::vector<Note> TakeNotes() override;

 private:
  const std::int64_t batch_, multiple_;
  std::vector<std::string> devices_;
  std::vector<Note> notes_;
};

}  // namespace motley::plan

#endif  // MOTLEY_PLAN_EQUAL_SHARES_H_
