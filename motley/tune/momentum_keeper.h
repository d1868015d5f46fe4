#ifndef MOTLEY_TUNE_MOMENTUM_KEEPER_H_
#define MOTLEY_TUNE_MOMENTUM_KEEPER_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "motley/plan/controller.h"
#include "motley/plan/staleness.h"
#include "motley/tune/keeper_record.h"

namespace motley::tune {

// Holds the total momentum of a job where the job wants it, while another controller decides about
// groups and shares: explicit momentum, plus what the staleness of the updates acts like
// (plan/momentum.h), is kept at `target`.
//
// A plan with another number of groups starts from what theory says of it, a mean staleness of one
// less than the groups. Then the staleness of the last updates counts: some hundred, at least ten
// of each group. Momentum changes when it is off by more than 0.03. Every change is noted with the
// staleness that it expects, and after as many updates again, what that was. Plans with one group
// pass unchanged.
//
// Thread safety: none.
class MomentumKeeper final : public plan::Controller {
 public:
  // Requires target in (-1, 1).
  MomentumKeeper(std::unique_ptr<plan::Controller> planner, double target);

  std::optional<plan::Plan> OnEvent(const plan::Event& event) override;
  std::vector<plan::Note> TakeNotes() override;

 private:
  // Takes the planner's plan for the present one.
  void Take(plan::Plan plan);
  // True when momentum has changed.
  bool Look(std::int64_t staleness);
  void SetMomentum(double momentum, double staleness, const std::string& reason);
  // What came of the present momentum, by the updates since it was decided.
  void TellOutcome(KeeperRecord::When when);

  const std::unique_ptr<plan::Controller> planner_;
  const double target_;
  plan::Plan plan_;
  int groups_ = 0;
  plan::StalenessHistogram recent_;  // since the last decision
  double expected_staleness_ = 0.0;
  KeeperRecord record_{"momentum"};
  std::vector<plan::Note> notes_;
};

}  // namespace motley::tune

#endif  // MOTLEY_TUNE_MOMENTUM_KEEPER_H_
