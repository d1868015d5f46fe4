#include "motley/tune/balancer.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <utility>

namespace motley::tune {

using plan::Milliseconds;

namespace {

// A new plan is worth its trouble when the step gets so much shorter, for so long, and the last one
// is so old.
constexpr double kGain = 1.05, kSureSeconds = 0.15, kRestSeconds = 2.0;
constexpr std::int64_t kRestSteps = 4;
// A change that the median of seven steps with 5 % of noise does not show by accident (as a
// logarithm). The mean of an unsteady device moves more.
constexpr double kClear = 0.14, kClearUnsteady = 0.3;
// A device whose last steps say nothing clear does not hold up the others for longer.
constexpr double kLongestDoubt = 6.0;
// When the kernel itself says that something is wrong.
constexpr double kHurriedGain = 1.2, kHurriedRestSeconds = 0.5;
// Trying a device that has no share may cost so much of the time.
constexpr double kTrySeconds = 10.0, kTryCost = 0.05;
// A device that is so much slower than its probe has been slowed down. For the fewest joules, a
// change of speed by so much calls for a new plan.
constexpr double kSlowed = 1.1;
// The steps from which an outcome is told.
constexpr std::int64_t kFirstLook = 10;
// Of the time to the deadline: the rest is for tests of the model, and for noise. A new plan when
// the present one would take so much longer than what is left.
constexpr double kDeadlinePart = 0.95, kLate = 1.02;
// Whose measurements one step may look at.
constexpr int kDevicesPerStep = 64;
// What a device is taken for that nobody has measured: as fast as the mean of the others, or this.
constexpr double kUnknownSeconds = 1e-3;

// Because of its private samples.
bool HasToDo(const plan::Candidate& candidate) { return candidate.least > 0; }

}  // namespace

Balancer::Balancer(const BalancerOptions& options, const base::Clock& clock)
    : options_(options), clock_(clock), start_(clock.Now()) {}

Balancer::Device* Balancer::Find(const std::string& name) {
  // Steps name devices in the same order again and again: the next one is most likely.
  for (std::size_t i = 0; i < devices_.size(); ++i) {
    last_found_ = last_found_ + 1 < devices_.size() ? last_found_ + 1 : 0;
    if (devices_[last_found_].name == name) return &devices_[last_found_];
  }
  return nullptr;
}

std::vector<plan::Note> Balancer::TakeNotes() { return std::exchange(notes_, {}); }

std::optional<plan::Plan> Balancer::OnEvent(const plan::Event& event) {
  if (const auto* step = std::get_if<plan::StepDone>(&event)) return OnStep(*step);
  if (const auto* pressed = std::get_if<plan::DevicePressed>(&event)) {
    Device* const device = Find(pressed->device);
    if (device != nullptr) device->monitor.Warn(clock_.Now(), pressed->pressure);
    return std::nullopt;  // how much slower it is, its step will tell
  }
  if (std::holds_alternative<plan::JobEnded>(event)) {
    record_.End(Seen(), notes_);
    return std::nullopt;
  }
  record_.GiveUp(Seen(), notes_);
  std::string reason;
  if (const auto* joined = std::get_if<plan::DeviceJoined>(&event)) {
    Device device;
    device.name = joined->device;
    device.curve = joined->curve.value_or(plan::SpeedCurve{
        .fixed_seconds = 0.0, .seconds_per_sample = kUnknownSeconds, .residual = 0.0});
    if (!joined->curve && !devices_.empty()) {
      double sum = 0.0;
      for (const Device& other : devices_) sum += other.curve.seconds_per_sample * other.pace;
      device.curve.seconds_per_sample = sum / static_cast<double>(devices_.size());
    }
    device.communication_seconds = joined->communication_seconds;
    device.power = joined->power;
    device.private_samples = joined->private_samples;
    devices_.push_back(std::move(device));
    reason = fmt::format("{} joined: {} per sample{}", joined->device,
                         Milliseconds(devices_.back().curve.seconds_per_sample),
                         joined->curve ? "" : " assumed");
  } else if (const auto* lost = std::get_if<plan::DeviceLost>(&event)) {
    std::erase_if(devices_, [&](const Device& device) { return device.name == lost->device; });
    reason = fmt::format("{} is gone: {}", lost->device, lost->reason);
  }
  tried_.reset();
  regroup_ = true;
  refine_rest_ = 0.0;
  std::vector<double> paces;
  for (const Device& device : devices_) paces.push_back(device.pace);
  return Decide(paces, reason);
}

int Balancer::Groups() const {
  return std::min(options_.groups, static_cast<int>(devices_.size()));
}

plan::Plan Balancer::PresentPlan(const std::string& reason, double predicted_seconds) const {
  plan::Plan plan{.shares = {},
                  .reason = reason,
                  .predicted_seconds = predicted_seconds,
                  .learning_rate_factor = rate_factor_};
  for (const Device& device : devices_) {
    plan.shares.push_back({device.name, device.share, device.group, device.curve.cap});
  }
  return plan;
}

std::string Balancer::PresentWords() const {
  std::map<int, std::string> groups;
  for (const Device& device : devices_) {
    std::string& words = groups[device.group];
    words += fmt::format("{}{} {}", words.empty() ? "" : ", ", device.name, device.share);
  }
  std::string all;
  for (const auto& [group, words] : groups) all += (all.empty() ? "" : " | ") + words;
  return all;
}

std::string Balancer::FewSamples() const {
  return options_.multiple == 1 ? "one sample" : fmt::format("{} samples", options_.multiple);
}

base::Result<plan::Grouped> Balancer::BestShares(const std::vector<double>& paces) const {
  std::vector<int> groups;
  for (const Device& device : devices_) groups.push_back(device.group);
  return plan::BalanceGroups(options_.batch, options_.multiple, std::move(groups),
                             Candidates(paces));
}

std::int64_t Balancer::SamplesOfAnEpoch() const {
  std::int64_t samples = options_.public_samples;
  for (const Device& device : devices_) samples += device.private_samples;
  return samples;
}

std::int64_t Balancer::SamplesLeft() const {
  if (options_.epochs == 0) return 0;
  return std::max<std::int64_t>(1, options_.epochs * SamplesOfAnEpoch() - samples_done_);
}

double Balancer::SecondsLeft() const {
  return kDeadlinePart * *options_.deadline_seconds - (clock_.Now() - start_);
}

bool Balancer::BehindTheDeadline() const {
  if (!options_.deadline_seconds || options_.epochs == 0 || late_anyway_) return false;
  const double steps = static_cast<double>(SamplesLeft()) /
                       static_cast<double>(std::max<std::int64_t>(1, planned_samples_));
  return steps * planned_seconds_ > kLate * std::max(0.0, SecondsLeft());
}

std::vector<plan::Candidate> Balancer::Candidates(const std::vector<double>& paces) const {
  std::vector<plan::Candidate> candidates;
  candidates.reserve(devices_.size());
  const std::int64_t samples = SamplesOfAnEpoch();
  for (std::size_t i = 0; i < devices_.size(); ++i) {
    const Device& device = devices_[i];
    const std::int64_t fits = device.curve.cap / options_.multiple * options_.multiple;
    candidates.push_back({.fixed_seconds = device.curve.fixed_seconds * paces[i],
                          .seconds_per_sample = device.curve.seconds_per_sample * paces[i],
                          .communication_seconds = device.communication_seconds,
                          .least = std::min(LeastOf(device, samples), fits),
                          .most = device.curve.cap});
  }
  return candidates;
}

std::vector<double> Balancer::MeasuredPaces(bool hurried) const {
  std::vector<double> paces;
  for (const Device& device : devices_) paces.push_back(MeasuredPace(device, hurried));
  return paces;
}

double Balancer::MeasuredPace(const Device& device, bool hurried) const {
  if (device.share == 0) return device.pace;
  const bool unsteady = device.monitor.Unsteady();
  if (device.monitor.Ready(hurried)) {
    const double pace = device.monitor.Pace(hurried);
    const double change = std::abs(std::log(pace / device.pace));
    if (change > (unsteady ? kClearUnsteady : kClear)) return pace;
  }
  return unsteady ? device.pace : device.monitor.LongPace().value_or(device.pace);
}

plan::Plan Balancer::Decide(const std::vector<double>& paces, const std::string& reason) {
  if (devices_.empty()) return {.shares = {}, .reason = reason};
  const std::vector<plan::Candidate> candidates = Candidates(paces);
  std::string words = reason, misfit;
  std::optional<plan::Grouped> grouped;
  std::optional<double> joules;
  if (auto chosen = FewestJoules(candidates, misfit)) {
    grouped = plan::Grouped{.group = std::vector<int>(devices_.size()),
                            .shares = std::move(chosen->shares),
                            .seconds = {chosen->seconds_per_step},
                            .totals = {chosen->total}};
    joules = chosen->joules_per_step;
    words += "; " + chosen->reason;
    late_anyway_ = !chosen->meets_deadline;
  }
  if (!grouped && options_.objective == Objective::kEnergy) {
    words += "; as fast as possible, because not every device states its watts";
  }
  if (!grouped) {
    auto balanced = regroup_
                        ? plan::FormGroups(options_.batch, options_.multiple, Groups(), candidates)
                        : BestShares(paces);
    if (balanced.ok()) {
      grouped = std::move(*balanced);
      if (std::any_of(candidates.begin(), candidates.end(), HasToDo)) {
        misfit = TooMuchForTheTime(candidates, *grouped);
      }
    } else {
      // More private samples than the batch has room for: what each must do, in proportion.
      grouped = SharesByPrivacy(candidates);
      misfit = "shares follow the private samples: " + balanced.status().message();
    }
  }
  if (const std::string full = TooMuchForMemory(); !full.empty()) {
    misfit += (misfit.empty() ? "" : "; ") + full;
  }
  for (std::size_t i = 0; i < devices_.size(); ++i) devices_[i].pace = paces[i];
  if (!misfit.empty()) words += "; " + misfit;
  plan::Plan plan = Adopt(std::move(*grouped), joules, words);
  if (!misfit.empty()) notes_.back().texts.emplace_back("does_not_fit", misfit);
  return plan;
}

std::optional<plan::EnergyPlan> Balancer::FewestJoules(
    const std::vector<plan::Candidate>& candidates, std::string& misfit) const {
  const bool all_power =
      std::all_of(devices_.begin(), devices_.end(), [](const Device& d) { return d.power; });
  if (options_.objective != Objective::kEnergy || !all_power) return std::nullopt;
  std::vector<plan::EnergyCandidate> powered;
  for (std::size_t i = 0; i < devices_.size(); ++i) {
    powered.push_back({devices_[i].name, candidates[i], *devices_[i].power});
  }
  plan::EnergyGoal goal{.batch = options_.batch,
                        .multiple = options_.multiple,
                        .samples_left = SamplesLeft(),
                        .deadline_seconds = {},
                        .moving_joules = options_.moving_joules};
  if (options_.deadline_seconds) goal.deadline_seconds = std::max(1e-3, SecondsLeft());
  auto chosen = plan::PlanForEnergy(goal, powered);
  if (!chosen.ok()) return std::nullopt;
  if (std::any_of(candidates.begin(), candidates.end(), HasToDo)) {
    misfit = TooMuchForTheEnergy(goal, *chosen, powered);
  }
  return std::move(chosen).value();
}

plan::Plan Balancer::Adopt(plan::Grouped grouped, std::optional<double> joules,
                           const std::string& reason) {
  record_.GiveUp(Seen(), notes_);
  const double seconds = *std::max_element(grouped.seconds.begin(), grouped.seconds.end());
  const double now = clock_.Now();
  const std::int64_t total = *std::min_element(grouped.totals.begin(), grouped.totals.end());
  std::string words = reason + SetLearningRate(total);
  const std::string before = PresentWords();
  for (std::size_t i = 0; i < devices_.size(); ++i) {
    Device& device = devices_[i];
    const std::int64_t share = grouped.shares[i];
    if (share == 0) {
      const double alone = device.curve.At(options_.multiple) * device.pace;
      if (options_.objective == Objective::kTime && (device.share > 0 || device.next_try == 0.0)) {
        words +=
            fmt::format("; {} gets nothing: {} for its first {} would hold up a step of {}",
                        device.name, Milliseconds(alone + device.communication_seconds),
                        options_.multiple == 1 ? "sample" : FewSamples(), Milliseconds(seconds));
      }
      device.next_try = NextTry(device);
    }
    device.share = share;
    device.planned_communication = device.communication_seconds;
    device.group = grouped.group[i];
    device.monitor.Forget(device.pace);
  }
  planned_at_ = now;
  planned_seconds_ = seconds;
  planned_joules_ = joules;
  planned_samples_ = total;
  group_seconds_ = std::move(grouped.seconds);
  regroup_ = false;
  steps_since_ = 0;
  better_since_.reset();
  BeginLook(kFirstLook);
  return NotePlan(before, words, {seconds, joules});
}

plan::Plan Balancer::NotePlan(const std::string& before, const std::string& reason,
                              const plan::StepCost& predicted) {
  const std::string after = PresentWords();
  look_.before = look_.measured.size();
  notes_.push_back(
      {"decision",
       fmt::format("shares {}: {}; predicts {} per step", after, reason, plan::CostOf(predicted)),
       {{"reason", reason}, {"before", before}, {"after", after}},
       {{"decision", static_cast<double>(record_.Decide(predicted))},
        {"predicted_step_seconds", predicted.seconds},
        {"learning_rate_factor", rate_factor_}}});
  if (predicted.joules) {
    notes_.back().numbers.emplace_back("predicted_step_joules", *predicted.joules);
  }
  return PresentPlan(reason, predicted.seconds);
}

double Balancer::Gain(const std::vector<double>& paces) const {
  if (options_.objective == Objective::kEnergy) {
    // Shares that cost the fewest joules are not those of the shortest step: decide anew when the
    // speeds are others.
    double largest = 1.0;
    for (std::size_t i = 0; i < devices_.size(); ++i) {
      const double change = paces[i] / devices_[i].pace;
      largest = std::max({largest, change, 1.0 / change});
    }
    if (BehindTheDeadline()) return kGain;
    return largest > kSlowed ? largest : 1.0;
  }
  const auto best = BestShares(paces);
  if (!best.ok()) return 1.0;
  const std::vector<plan::Candidate> candidates = Candidates(paces);
  std::vector<double> present(best->seconds.size());  // seconds of a step, by group
  for (std::size_t i = 0; i < devices_.size(); ++i) {
    double& last = present[static_cast<std::size_t>(devices_[i].group)];
    last = std::max(last, plan::FinishTime(candidates[i], devices_[i].share));
  }
  // Groups that do not wait for each other: their rates add up.
  double rate = 0.0, best_rate = 0.0;
  for (std::size_t group = 0; group < present.size(); ++group) {
    rate += 1.0 / present[group];
    best_rate += 1.0 / best->seconds[group];
  }
  return best_rate / rate;
}

std::string Balancer::WhatChanged(const std::vector<double>& paces, bool hurried) const {
  std::vector<std::string> changes;
  for (std::size_t i = 0; i < devices_.size(); ++i) {
    const double change = paces[i] / devices_[i].pace;
    if (std::abs(std::log(change)) < 0.03) continue;
    const Device& device = devices_[i];
    changes.push_back(fmt::format(
        "{} needs {} per sample instead of {}{}{}", device.name,
        Milliseconds(device.curve.seconds_per_sample * paces[i]),
        Milliseconds(device.curve.seconds_per_sample * device.pace),
        device.monitor.Unsteady() ? " on the average, and its speed goes up and down" : "",
        hurried ? device.monitor.PressureWords() : ""));
  }
  for (const Device& device : devices_) {
    const double before = device.planned_communication, after = device.communication_seconds;
    if (device.share == 0 || !ExchangeHasChanged(device, before, after)) continue;
    changes.push_back(fmt::format("the exchange with {} takes {} instead of {}", device.name,
                                  Milliseconds(after), Milliseconds(before)));
  }
  if (changes.empty() && BehindTheDeadline()) return "the job is behind its deadline";
  if (changes.empty()) return "the shares do not fit the measured speeds";
  return fmt::format("{}", fmt::join(changes, "; "));
}

std::optional<plan::Plan> Balancer::OnStep(const plan::StepDone& step) {
  const double now = clock_.Now();
  if (step.noise) noise_ = step.noise;
  ++steps_since_;
  ++rate_steps_;
  record_.CountStep(notes_);
  double trial = 0.0, trial_exchange = -1.0;
  for (const plan::StepDone::Part& part : step.parts) {
    Device* const device = Find(part.device);
    samples_done_ += part.samples;
    if (device == nullptr || part.samples <= 0 || !(part.compute_seconds > 0.0)) continue;
    const double ratio = part.compute_seconds / device->curve.At(part.samples);
    device->monitor.StepBegan(now - step.seconds);
    // One that had to stop at its deadline needs no further sign.
    if (!tried_ && part.samples < device->share && step.short_step) {
      device->monitor.AddStopped(now, ratio);
    } else {
      device->monitor.Add(now, ratio, part.pressure);
    }
    if (tried_ && device == &devices_[*tried_]) {
      trial = ratio;
      trial_exchange = part.exchange_seconds;
    }
  }
  if (tried_) {
    // With several groups, steps of others and of the plan before may come first.
    const bool its_group = step.group == devices_[*tried_].group;
    if (its_group) ++tried_steps_;
    if (Groups() == 1 || trial > 0.0 || tried_steps_ > 2) {
      return JudgeTrial(step, trial, trial_exchange);
    }
    return std::nullopt;
  }
  if (auto plan = Judge(step)) return plan;
  if (auto plan = FollowNoise()) return plan;
  if (!options_.keep) return std::nullopt;
  // Once in a round of all groups is as often as in every step of one. A look takes time for every
  // device, so that of very many is worth fewer.
  const int round = std::max(Groups(), static_cast<int>(devices_.size()) / kDevicesPerStep);
  if (++steps_unseen_ < round) return std::nullopt;
  steps_unseen_ = 0;
  if (auto plan = Retune(now)) return plan;
  return TryIdle();
}

std::optional<plan::Plan> Balancer::Retune(double now) {
  const double age = now - planned_at_;
  const bool pressed = std::any_of(devices_.begin(), devices_.end(), [](const Device& d) {
    return d.share > 0 && d.monitor.pressed();
  });
  if (pressed && age >= kHurriedRestSeconds) {
    const std::vector<double> paces = MeasuredPaces(/*hurried=*/true);
    if (Gain(paces) >= kHurriedGain) return Decide(paces, WhatChanged(paces, /*hurried=*/true));
  }
  if (age < kRestSeconds || steps_since_ < kRestSteps * Groups()) return std::nullopt;
  // A device that is just changing: a plan for the others alone would be one plan too many.
  const bool undecided = std::any_of(devices_.begin(), devices_.end(), [](const Device& device) {
    return device.share > 0 && device.monitor.Undecided();
  });
  if (undecided && age < kLongestDoubt) return std::nullopt;
  const std::vector<double> paces = MeasuredPaces(/*hurried=*/false);
  if (Gain(paces) < kGain) {
    better_since_.reset();
    return std::nullopt;
  }
  if (!better_since_) better_since_ = now;
  if (now - *better_since_ < kSureSeconds) return std::nullopt;
  return Decide(paces, WhatChanged(paces, /*hurried=*/false));
}

double Balancer::NextTry(const Device& device) const {
  const double alone = device.curve.At(options_.multiple) * device.pace;
  return clock_.Now() + std::max(kTrySeconds, alone / kTryCost);
}

plan::Plan Balancer::JudgeTrial(const plan::StepDone& step, double ratio, double exchange_seconds) {
  record_.Tell({{step.seconds}, plan::ComputeSpread(step)}, notes_);
  const std::string before = PresentWords();
  const std::size_t tried = *std::exchange(tried_, std::nullopt);
  Device& device = devices_[tried];
  for (std::size_t i = 0; i < devices_.size(); ++i) devices_[i].share = tried_before_[i];
  std::vector<double> paces;
  for (const Device& each : devices_) paces.push_back(each.pace);
  if (ratio > 0.0) paces[tried] = ratio;
  if (exchange_seconds >= 0.0) device.communication_seconds = exchange_seconds;
  const auto balanced = BestShares(paces);
  const auto group = static_cast<std::size_t>(device.group);
  const std::string needed = Milliseconds(device.curve.At(options_.multiple) * paces[tried]);
  const bool for_energy = options_.objective == Objective::kEnergy;
  const bool worth_it = for_energy ? ratio * kSlowed < device.pace
                                   : balanced.ok() && balanced->shares[tried] > 0 &&
                                         balanced->seconds[group] * kGain < group_seconds_[group];
  if (ratio > 0.0 && worth_it) {
    return Decide(paces, fmt::format("{} was tried again and is {}: {} for {}", device.name,
                                     for_energy ? "faster than it was" : "worth having", needed,
                                     FewSamples()));
  }
  // For energy, what it is compared with next time is what it was left out for.
  device.pace = for_energy ? std::max(device.pace, paces[tried]) : paces[tried];
  device.next_try = NextTry(device);
  std::string reason =
      fmt::format("{} is still too slow: with {} for {} it ", device.name, needed, FewSamples());
  if (ratio <= 0.0) {
    reason = fmt::format("{} did nothing in the step in which it was tried", device.name);
  } else if (for_energy) {
    reason += "is hardly faster than when it was left out";
  } else {
    reason += fmt::format("would not make steps of {} {:.0f} % shorter",
                          Milliseconds(group_seconds_[group]), 100.0 * (kGain - 1.0));
  }
  plan::Plan back = NotePlan(before, reason, {planned_seconds_, planned_joules_});
  notes_.back().texts.emplace_back("trial", device.name);
  return back;
}

std::optional<plan::Plan> Balancer::TryIdle() {
  const double now = clock_.Now();
  for (Device& device : devices_) {
    if (device.share > 0 || now < device.next_try) continue;
    // Left out for its watts, it would not become thriftier by waiting.
    if (options_.objective == Objective::kEnergy && device.pace < kSlowed) continue;
    if (device.curve.cap < options_.multiple) continue;  // they would not fit into its memory
    Device* largest = &device;                           // of its group
    for (Device& other : devices_) {
      if (other.group == device.group && other.share > largest->share) largest = &other;
    }
    if (largest->share <= options_.multiple) continue;
    record_.GiveUp(Seen(), notes_);
    const std::string before = PresentWords();
    tried_before_.clear();
    for (const Device& other : devices_) tried_before_.push_back(other.share);
    tried_ = static_cast<std::size_t>(&device - devices_.data());
    tried_steps_ = 0;
    largest->share -= options_.multiple;
    device.share = options_.multiple;
    const double alone = device.curve.At(options_.multiple) * device.pace;
    plan::Plan plan = NotePlan(
        before,
        fmt::format("{}, which has no share, is tried again with {}", device.name, FewSamples()),
        {.seconds = std::max(group_seconds_[static_cast<std::size_t>(device.group)],
                             alone + device.communication_seconds),
         .joules = {}});
    notes_.back().texts.emplace_back("trial", device.name);
    return plan;
  }
  return std::nullopt;
}

}  // namespace motley::tune
