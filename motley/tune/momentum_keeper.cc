#include "motley/tune/momentum_keeper.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include "motley/base/check.h"
#include "motley/plan/momentum.h"

namespace motley::tune {
namespace {

// So many updates make the mean staleness known to some percent.
constexpr std::int64_t kEnough = 100, kEnoughOfAGroup = 10;
// A smaller change is not worth a decision, and the noise of so many updates is smaller.
constexpr double kChange = 0.03;

int GroupsOf(const plan::Plan& plan) {
  int last = 0;
  for (const plan::Share& share : plan.shares) last = std::max(last, share.group);
  return last + 1;
}

}  // namespace

MomentumKeeper::MomentumKeeper(std::unique_ptr<plan::Controller> planner, double target)
    : planner_(std::move(planner)), target_(target) {
  MOTLEY_CHECK(target > -1.0 && target < 1.0, "a momentum of {}", target);
}

std::optional<plan::Plan> MomentumKeeper::OnEvent(const plan::Event& event) {
  auto plan = planner_->OnEvent(event);
  const bool planned = plan.has_value();
  if (planned) Take(std::move(*plan));
  const auto* step = std::get_if<plan::StepDone>(&event);
  const bool changed = step != nullptr && Look(step->staleness);
  if (std::holds_alternative<plan::JobEnded>(event)) TellOutcome(KeeperRecord::When::kEnded);
  if (!planned && !changed) return std::nullopt;
  return plan_;
}

void MomentumKeeper::Take(plan::Plan plan) {
  const std::optional<double> momentum = plan_.momentum;
  const int groups = GroupsOf(plan);
  if (groups != groups_) TellOutcome(KeeperRecord::When::kReplaced);
  plan_ = std::move(plan);
  if (groups > 1) plan_.momentum = momentum;
  if (groups == groups_) return;
  groups_ = groups;
  recent_ = {};
  if (groups == 1) return;
  const double staleness = groups - 1.0;
  SetMomentum(plan::CompensateAdditive(target_, staleness), staleness,
              fmt::format("updates of {} groups are expected to be {} stale", groups, groups - 1));
}

bool MomentumKeeper::Look(std::int64_t staleness) {
  if (groups_ <= 1) return false;
  recent_.Add(staleness);
  const std::int64_t enough = std::max<std::int64_t>(kEnough, kEnoughOfAGroup * groups_);
  if (recent_.total() < enough) return false;
  TellOutcome(KeeperRecord::When::kMeasured);
  const double mean = recent_.mean();
  if (recent_.total() >= 2 * enough) recent_.Fade();
  const double wanted = plan::CompensateAdditive(target_, mean);
  if (std::abs(wanted - *plan_.momentum) < kChange) return false;
  SetMomentum(wanted, mean, fmt::format("updates are {:.1f} stale on the average", mean));
  recent_ = {};  // part of it may be from before the change
  return true;
}

void MomentumKeeper::SetMomentum(double momentum, double staleness, const std::string& reason) {
  const std::string before = fmt::format("momentum {:.3g}", plan_.momentum.value_or(target_));
  plan_.momentum = momentum;
  expected_staleness_ = staleness;
  const double implied = plan::ImpliedMomentum(staleness);
  std::string words = fmt::format("{}, which acts like momentum {:.3g}; {:.3g} in all are wanted",
                                  reason, implied, target_);
  if (momentum + implied > target_ + kChange)
    words += ", and fewer groups would be needed for that";
  const std::string after = fmt::format("momentum {:.3g}", momentum);
  record_.Decide(
      {"decision",
       fmt::format("{}: {}", after, words),
       {{"reason", words}, {"before", before}, {"after", after}},
       {{"momentum", momentum}, {"implied_momentum", implied}, {"predicted_staleness", staleness}}},
      notes_);
}

void MomentumKeeper::TellOutcome(KeeperRecord::When when) {
  KeeperRecord::Numbers numbers = {{"predicted_staleness", expected_staleness_},
                                   {"updates", static_cast<double>(recent_.total())}};
  std::string words = "no update was made with it";
  if (recent_.total() > 0) {
    const double mean = recent_.mean(), implied = plan::ImpliedMomentum(mean);
    const double total = plan_.momentum.value_or(target_) + implied;
    words = fmt::format(
        "a staleness of {:.1f} was predicted and {:.1f} measured in {} updates, which is {:.3g} "
        "momentum in all; {:.3g} were wanted",
        expected_staleness_, mean, recent_.total(), total, target_);
    numbers.insert(numbers.end(), {{"measured_staleness", mean}, {"total_momentum", total}});
  }
  record_.Tell(when, words, std::move(numbers), notes_);
}

std::vector<plan::Note> MomentumKeeper::TakeNotes() {
  std::vector<plan::Note> notes = planner_->TakeNotes();
  std::move(notes_.begin(), notes_.end(), std::back_inserter(notes));
  notes_.clear();
  return notes;
}

}  // namespace motley::tune
