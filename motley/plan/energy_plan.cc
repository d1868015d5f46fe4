#include "motley/plan/energy_plan.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "motley/base/check.h"

namespace motley::plan {
namespace {

using Shares = std::vector<std::int64_t>;
using Set = std::vector<std::size_t>;  // of candidates

constexpr std::size_t kTryAllSets = 12;      // 4095 of them
constexpr std::size_t kTryEveryLength = 64;  // of prefixes; longer ones in steps of an eighth
constexpr int kTriesToImprove = 100;

struct Option {
  Shares shares;
  double seconds = 0.0;
  double joules = std::numeric_limits<double>::infinity();

  bool BetterThan(const Option& other) const {
    return joules != other.joules ? joules < other.joules : seconds < other.seconds;
  }
};

std::int64_t RoundUp(std::int64_t samples, std::int64_t multiple) {
  return (samples + multiple - 1) / multiple * multiple;
}

double ComputeSeconds(const Candidate& speed, std::int64_t samples) {
  return FinishTime(speed, samples) - speed.communication_seconds;
}

double ActiveWatts(const EnergyCandidate& each) {
  return each.power.watts_busy - each.power.watts_idle;
}

class Search {
 public:
  // `total` samples a step, which the candidates can do together.
  Search(const EnergyGoal& goal, std::int64_t total, double steps,
         std::span<const EnergyCandidate> candidates)
      : total_(total),
        multiple_(goal.multiple),
        step_limit_(goal.deadline_seconds.value_or(HUGE_VAL) / steps),
        moving_joules_(goal.moving_joules),
        candidates_(candidates) {
    for (std::size_t i = 0; i < candidates.size(); ++i) by_cost_.push_back(i);
    std::stable_sort(by_cost_.begin(), by_cost_.end(), [&](std::size_t a, std::size_t b) {
      return JoulesOfOneMore(a) < JoulesOfOneMore(b);
    });
  }

  // The best option; without shares when none meets the deadline.
  Option Run() const { return candidates_.size() <= kTryAllSets ? TryAllSets() : TryPrefixes(); }

 private:
  // What one sample more costs in a step whose length is given: the device would idle otherwise.
  double JoulesOfOneMore(std::size_t i) const {
    return ActiveWatts(candidates_[i]) * candidates_[i].speed.seconds_per_sample;
  }

  Option Evaluate(Shares shares) const {
    Option option;
    for (std::size_t i = 0; i < shares.size(); ++i) {
      option.seconds = std::max(option.seconds, FinishTime(candidates_[i].speed, shares[i]));
    }
    option.joules = JoulesPerStep(shares, candidates_, moving_joules_);
    option.shares = std::move(shares);
    return option;
  }

  Option TryAllSets() const {
    Option best;
    const std::size_t end = std::size_t{1} << candidates_.size();
    for (std::size_t mask = 1; mask < end; ++mask) {
      Set set;
      for (const std::size_t i : by_cost_) {
        if ((mask >> i & 1U) != 0) set.push_back(i);
      }
      KeepBetter(Try(set), best);
    }
    return best;
  }

  static bool KeepBetter(Option option, Option& best) {
    if (!option.BetterThan(best)) return false;
    best = std::move(option);
    return true;
  }

  // Devices that must take part first, then by what a sample costs on top of idling.
  Set Thriftiest() const {
    const double typical =
        std::max(1.0, static_cast<double>(total_) / static_cast<double>(candidates_.size()));
    const auto cost = [&](std::size_t i) {
      const EnergyCandidate& each = candidates_[i];
      if (each.speed.least > 0) return -1.0;
      return JoulesOfOneMore(i) + ActiveWatts(each) * each.speed.fixed_seconds / typical;
    };
    Set order = by_cost_;
    std::stable_sort(order.begin(), order.end(),
                     [&](std::size_t a, std::size_t b) { return cost(a) < cost(b); });
    return order;
  }

  Set InOrderOfCost(const std::vector<bool>& member) const {
    Set set;
    for (const std::size_t i : by_cost_) {
      if (member[i]) set.push_back(i);
    }
    return set;
  }

  Option TryPrefixes() const {
    const Set order = Thriftiest();
    const std::size_t count = order.size();
    Option best;
    for (std::size_t i = 0; i < count; ++i) KeepBetter(Try({i}), best);
    std::vector<bool> member(count);
    for (std::size_t length = 1, next = 1; length <= count; ++length) {
      member[order[length - 1]] = true;
      if (length < next && length < count) continue;
      KeepBetter(Try(InOrderOfCost(member)), best);
      next = length < kTryEveryLength ? length + 1 : length + length / 8;
    }
    if (!best.shares.empty()) Improve(order, best);
    return best;
  }

  // Takes one device in or out while that helps, those first about which the order is least sure.
  void Improve(const Set& order, Option& best) const {
    std::vector<bool> member;
    for (const std::int64_t share : best.shares) member.push_back(share > 0);
    const auto length = static_cast<std::size_t>(std::count(member.begin(), member.end(), true));
    const auto distance = [&](std::size_t rank) {
      return rank < length ? length - 1 - rank : rank - length;
    };
    std::vector<std::size_t> ranks(order.size());
    std::iota(ranks.begin(), ranks.end(), std::size_t{0});
    std::stable_sort(ranks.begin(), ranks.end(),
                     [&](std::size_t a, std::size_t b) { return distance(a) < distance(b); });
    std::size_t since_better = 0;
    for (int tries = 0; tries < kTriesToImprove && since_better < ranks.size(); ++tries) {
      const std::size_t device = order[ranks[static_cast<std::size_t>(tries) % ranks.size()]];
      member[device] = !member[device];
      if (KeepBetter(Try(InOrderOfCost(member)), best)) {
        since_better = 0;
      } else {
        member[device] = !member[device];
        ++since_better;
      }
    }
  }

  // The best shares for the devices of `set`, which is in order of cost.
  Option Try(const Set& set) const {
    std::size_t must = 0, present = 0;
    for (const EnergyCandidate& each : candidates_) must += each.speed.least > 0 ? 1 : 0;
    std::vector<Candidate> speeds;
    for (const std::size_t i : set) {
      speeds.push_back(candidates_[i].speed);
      present += speeds.back().least > 0 ? 1 : 0;
    }
    if (present < must) return {};
    const auto balanced = Balance(total_, multiple_, speeds);
    if (!balanced.ok() || balanced->total < total_ || balanced->seconds > step_limit_) return {};
    Shares shares(candidates_.size());
    for (std::size_t k = 0; k < set.size(); ++k) shares[set[k]] = balanced->shares[k];
    Option best = Evaluate(std::move(shares));
    if (set.size() > 1) Slow(set, balanced->seconds, best);
    return best;
  }

  // Longer steps, in which the thrifty devices do more. With a step's length given, the cheapest
  // shares fill the devices in order of cost, and their joules are, but for rounding to samples, a
  // convex function of the length: golden section finds the least.
  void Slow(const Set& set, double shortest, Option& best) const {
    double longest = shortest;
    for (const std::size_t i : set) {
      const Candidate& speed = candidates_[i].speed;
      longest = std::max(longest, FinishTime(speed, std::min(speed.most, total_)));
    }
    double low = shortest, high = std::min(longest, step_limit_);
    const auto joules = [&](double seconds) {
      Shares shares = Fill(set, seconds);
      if (shares.empty()) return HUGE_VAL;
      Option option = Evaluate(std::move(shares));
      const double result = option.joules;
      KeepBetter(std::move(option), best);
      return result;
    };
    constexpr double kGolden = 0.6180339887498949;
    joules(high);
    double a = high - kGolden * (high - low), b = low + kGolden * (high - low);
    double at_a = joules(a), at_b = joules(b);
    // To a thousandth of the length; where it cannot be done, the step is too short.
    while (high - low > 1e-3 * high) {
      if (at_a <= at_b && std::isfinite(at_a)) {
        high = b, b = a, at_b = at_a;
        a = high - kGolden * (high - low);
        at_a = joules(a);
      } else {
        low = a, a = b, at_a = at_b;
        b = low + kGolden * (high - low);
        at_b = joules(b);
      }
    }
  }

  // The cheapest shares of a step that ends within `seconds`, every device of `set` with some; no
  // shares when that is too short.
  Shares Fill(const Set& set, double seconds) const {
    Shares shares(candidates_.size());
    Shares room(set.size());
    std::int64_t left = total_, rest = total_ % multiple_;
    for (std::size_t k = 0; k < set.size(); ++k) {
      const Candidate& speed = candidates_[set[k]].speed;
      room[k] = SamplesWithin(speed, seconds);
      std::int64_t low = RoundUp(std::max<std::int64_t>(speed.least, 1), multiple_);
      if (rest > 0 && room[k] >= rest) {
        low = RoundUp(std::max<std::int64_t>(speed.least - rest, 0), multiple_) + rest;
        rest = 0;
      }
      if (low > room[k]) return {};
      shares[set[k]] = low;
      left -= low;
    }
    if (left < 0 || rest > 0) return {};
    for (std::size_t k = 0; k < set.size(); ++k) {
      std::int64_t& share = shares[set[k]];
      const std::int64_t more = std::min(left, (room[k] - share) / multiple_ * multiple_);
      share += more;
      left -= more;
    }
    return left == 0 ? shares : Shares();
  }

  const std::int64_t total_, multiple_;
  const double step_limit_, moving_joules_;
  const std::span<const EnergyCandidate> candidates_;
  Set by_cost_;
};

// "a, b, c and 33 more" of those that have a share, or that have none.
std::string Names(std::span<const EnergyCandidate> candidates, const Shares& shares, bool working) {
  constexpr std::size_t kShown = 4;
  std::string names;
  std::size_t count = 0;
  for (std::size_t i = 0; i < shares.size(); ++i) {
    if ((shares[i] > 0) != working || ++count > kShown) continue;
    names += (names.empty() ? "" : ", ") + candidates[i].name;
  }
  return count > kShown ? fmt::format("{} and {} more", names, count - kShown) : names;
}

std::string ReasonFor(const EnergyGoal& goal, const EnergyPlan& plan, double steps,
                      const Option& fastest, std::span<const EnergyCandidate> candidates) {
  const double needed = plan.seconds_per_step * steps;
  std::string reason;
  if (!plan.meets_deadline) {
    reason = fmt::format(
        "no choice of devices meets the deadline of {:.4g} s: the fastest needs {:.4g} s, with "
        "{:.4g} J a step",
        *goal.deadline_seconds, needed, plan.joules_per_step);
  } else {
    reason = fmt::format(
        "fewest joules: {:.4g} J and {:.4g} s a step, where the fastest is {:.4g} J "
        "and {:.4g} s",
        plan.joules_per_step, plan.seconds_per_step, fastest.joules, fastest.seconds);
    if (goal.deadline_seconds) {
      reason += fmt::format("; needs {:.4g} s of the {:.4g} s to the deadline", needed,
                            *goal.deadline_seconds);
    }
  }
  reason += "; at work: " + Names(candidates, plan.shares, true);
  const std::string left_out = Names(candidates, plan.shares, false);
  if (!left_out.empty()) reason += "; left out: " + left_out;
  if (plan.total < goal.batch) {
    reason +=
        fmt::format("; memory allows {} of the {} samples of a batch", plan.total, goal.batch);
  }
  return reason;
}

base::Status CheckProfiles(std::span<const EnergyCandidate> candidates) {
  for (const EnergyCandidate& each : candidates) {
    const auto [idle, busy] = each.power;
    if (std::isfinite(busy) && busy > 0.0 && idle >= 0.0 && idle <= busy) continue;
    return base::InvalidInput("device {}: {} W idle and {} W busy is no power profile", each.name,
                              idle, busy)
        .WithFix("set its watts_idle and watts_busy, or objective = \"time\"");
  }
  return {};
}

}  // namespace

double JoulesPerStep(std::span<const std::int64_t> shares,
                     std::span<const EnergyCandidate> candidates, double moving_joules) {
  MOTLEY_CHECK(shares.size() == candidates.size(), "{} shares for {} devices", shares.size(),
               candidates.size());
  double step = 0.0;
  for (std::size_t i = 0; i < shares.size(); ++i) {
    step = std::max(step, FinishTime(candidates[i].speed, shares[i]));
  }
  double joules = 0.0;
  int working = 0;
  for (std::size_t i = 0; i < shares.size(); ++i) {
    const double busy = shares[i] > 0 ? ComputeSeconds(candidates[i].speed, shares[i]) : 0.0;
    joules += EstimateJoules(candidates[i].power, busy, step - busy).total();
    working += shares[i] > 0 ? 1 : 0;
  }
  return joules + moving_joules * static_cast<double>(std::max(0, working - 1));
}

base::Result<EnergyPlan> PlanForEnergy(const EnergyGoal& goal,
                                       std::span<const EnergyCandidate> candidates) {
  MOTLEY_RETURN_IF_ERROR(CheckProfiles(candidates));
  std::vector<Candidate> speeds;
  for (const EnergyCandidate& each : candidates) speeds.push_back(each.speed);
  MOTLEY_ASSIGN_OR_RETURN(const Balanced balanced, Balance(goal.batch, goal.multiple, speeds));
  const Option fastest{.shares = balanced.shares,
                       .seconds = balanced.seconds,
                       .joules = JoulesPerStep(balanced.shares, candidates, goal.moving_joules)};
  if (balanced.total == 0) return base::InvalidInput("no device has memory for a sample");

  const double steps = std::max(
      1.0, std::ceil(static_cast<double>(goal.samples_left) / static_cast<double>(balanced.total)));
  Option best = Search(goal, balanced.total, steps, candidates).Run();
  EnergyPlan plan;
  plan.meets_deadline = !best.shares.empty();
  if (!plan.meets_deadline) best = fastest;
  plan.total = balanced.total;
  plan.shares = std::move(best.shares);
  plan.seconds_per_step = best.seconds;
  plan.joules_per_step = best.joules;
  plan.reason = ReasonFor(goal, plan, steps, fastest, candidates);
  return plan;
}

}  // namespace motley::plan
