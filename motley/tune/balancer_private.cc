// What private samples demand of a plan, and what they cost it.
#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "motley/plan/shares.h"
#include "motley/tune/balancer.h"

namespace motley::tune {
namespace {

// A plan that is so much worse than it could be is worth a word.
constexpr double kNoticed = 1.05;

}  // namespace

std::int64_t Balancer::LeastOf(const Device& device, std::int64_t samples_of_an_epoch) const {
  if (device.private_samples == 0) return 0;
  // An even part of every batch of its group, which makes one part of the steps.
  const auto exact = static_cast<double>(device.private_samples) * static_cast<double>(Groups()) *
                     static_cast<double>(options_.batch) / static_cast<double>(samples_of_an_epoch);
  return static_cast<std::int64_t>(exact) / options_.multiple * options_.multiple;
}

plan::Grouped Balancer::SharesByPrivacy(const std::vector<plan::Candidate>& candidates) const {
  plan::Grouped grouped;
  const auto groups = static_cast<std::size_t>(Groups());
  grouped.shares.resize(candidates.size());
  for (std::size_t i = 0; i < candidates.size(); ++i) {
    grouped.group.push_back(static_cast<int>(i % groups));
  }
  for (std::size_t group = 0; group < groups; ++group) {
    std::vector<std::int64_t> weights;
    std::vector<plan::Candidate> members;
    for (std::size_t i = group; i < candidates.size(); i += groups) {
      weights.push_back(std::max<std::int64_t>(1, candidates[i].least));
      members.push_back(candidates[i]);
    }
    auto shares = plan::Apportion(options_.batch, weights, options_.multiple);
    for (std::size_t k = 0; k < shares.size(); ++k) {
      shares[k] = std::min(shares[k], members[k].most / options_.multiple * options_.multiple);
      grouped.shares[group + k * groups] = shares[k];
    }
    grouped.seconds.push_back(plan::FinishTime(shares, members));
    grouped.totals.push_back(std::accumulate(shares.begin(), shares.end(), std::int64_t{0}));
  }
  return grouped;
}

std::string Balancer::NamesOf(const std::vector<std::size_t>& devices) const {
  constexpr std::size_t kShown = 4;
  std::string names;
  for (std::size_t k = 0; k < std::min(devices.size(), kShown); ++k) {
    names += (k == 0 ? "" : ", ") + devices_[devices[k]].name;
  }
  return devices.size() > kShown ? fmt::format("{} and {} more", names, devices.size() - kShown)
                                 : names;
}

std::string Balancer::TooMuchForMemory() const {
  const std::int64_t samples = SamplesOfAnEpoch();
  std::vector<std::size_t> full;
  for (std::size_t i = 0; i < devices_.size(); ++i) {
    if (LeastOf(devices_[i], samples) > devices_[i].curve.cap) full.push_back(i);
  }
  if (full.empty()) return {};
  const Device& first = devices_[full[0]];
  return fmt::format(
      "the private samples of {} do not fit: {} should do {} of them in every step and has memory "
      "for {}, so that smaller steps at the end of an epoch do the rest",
      NamesOf(full), first.name, LeastOf(first, samples), first.curve.cap);
}

std::string Balancer::TooMuchForTheTime(const std::vector<plan::Candidate>& candidates,
                                        const plan::Grouped& grouped) const {
  std::vector<plan::Candidate> free = candidates;
  for (plan::Candidate& one : free) one.least = 0;
  const auto best = plan::BalanceGroups(options_.batch, options_.multiple, grouped.group, free);
  if (!best.ok()) return {};
  // Groups do not wait for each other: their rates add up.
  double rate = 0.0, best_rate = 0.0;
  for (std::size_t group = 0; group < grouped.seconds.size(); ++group) {
    rate += 1.0 / grouped.seconds[group];
    best_rate += 1.0 / best->seconds[group];
  }
  if (!std::isfinite(best_rate) || !(best_rate >= kNoticed * rate)) return {};
  const auto in_time = [&](std::size_t i) {
    const auto group = static_cast<std::size_t>(grouped.group[i]);
    return plan::SamplesWithin(candidates[i], best->seconds[group]);
  };
  std::vector<std::size_t> late;
  for (std::size_t i = 0; i < candidates.size(); ++i) {
    if (in_time(i) < candidates[i].least) late.push_back(i);
  }
  if (late.empty()) return {};
  return fmt::format(
      "the private samples of {} do not fit: {} must do {} of them in every step and does {} in "
      "the time of the others, so steps take {:.3g} times as long",
      NamesOf(late), devices_[late[0]].name, candidates[late[0]].least, in_time(late[0]),
      best_rate / rate);
}

std::string Balancer::TooMuchForTheEnergy(const plan::EnergyGoal& goal,
                                          const plan::EnergyPlan& chosen,
                                          std::vector<plan::EnergyCandidate> powered) const {
  std::vector<std::int64_t> least;
  for (plan::EnergyCandidate& one : powered) {
    least.push_back(std::exchange(one.speed.least, 0));
  }
  const auto best = plan::PlanForEnergy(goal, powered);
  if (!best.ok()) return {};
  const bool late = best->meets_deadline && !chosen.meets_deadline;
  if (!late && !(chosen.joules_per_step >= kNoticed * best->joules_per_step)) return {};
  std::vector<std::size_t> dear;
  for (std::size_t i = 0; i < least.size(); ++i) {
    if (best->shares[i] < least[i]) dear.push_back(i);
  }
  if (dear.empty()) return {};
  return fmt::format(
      "the private samples of {} do not fit: {} must do {} of them in every step and would do {} "
      "otherwise, so {}",
      NamesOf(dear), devices_[dear[0]].name, least[dear[0]], best->shares[dear[0]],
      late ? "the deadline is missed"
           : fmt::format("a step takes {:.3g} times the joules",
                         chosen.joules_per_step / best->joules_per_step));
}

}  // namespace motley::tune
