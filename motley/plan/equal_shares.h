#ifndef MOTLEY_PLAN_EQUAL_SHARES_H_
#define MOTLEY_PLAN_EQUAL_SHARES_H_

#include <optional>
#include <string>
#include <vector>

#include "motley/plan/controller.h"
#include "motley/plan/plan_record.h"

namespace motley::plan {

// tune = "off": every device of a group the same share, whatever its speed, and the groups as equal
// in number as possible. Notes what steps should take by the devices' probes, and some steps later
// what they took. The plans themselves predict nothing: nobody is hurried for being slow, only when
// it needs many times what is usual for it.
class EqualShares final : public Controller {
 public:
  // Shares are multiples of `multiple`. With fewer devices than groups there are as many groups as
  // devices. Requires groups > 0.
  EqualShares(std::int64_t batch, std::int64_t multiple, int groups = 1)
      : batch_(batch), multiple_(multiple), groups_(groups) {}
  std::optional<Plan> OnEvent(const Event& event) override;
  std::vector<Note> TakeNotes() override;

 private:
  void Look(const StepDone& step);
  std::size_t Groups() const;
  PlanRecord::Seen Seen() const;
  Plan Decide(const std::string& reason);
  // Of a step, by the probes. 0: a device was not probed, or there are groups with steps of their
  // own length.
  double PredictedSeconds(const std::vector<Share>& shares) const;

  const std::int64_t batch_, multiple_;
  const int groups_;
  std::vector<DeviceJoined> devices_;
  PlanRecord record_;
  std::vector<double> seconds_, spreads_;  // of the plan's steps that were looked at
  std::vector<Note> notes_;
};

}  // namespace motley::plan

#endif  // MOTLEY_PLAN_EQUAL_SHARES_H_
