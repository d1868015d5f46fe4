#include "motley/tune/balancer.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <utility>

#include "motley/plan/energy_plan.h"
#include "motley/plan/noise.h"
#include "motley/plan/shares.h"

namespace motley::tune {
namespace {

// A new plan is worth its trouble when the step gets so much shorter, for so long, and the last one
// is so old.
constexpr double kGain = 1.05, kSureSeconds = 0.5, kRestSeconds = 2.0;
constexpr std::int64_t kRestSteps = 4;
// A change that the median of four steps with 5 % of noise does not show by accident (a logarithm).
// The mean of an unsteady device moves more.
constexpr double kClear = 0.14, kClearUnsteady = 0.3;
// A device whose last steps say nothing clear does not hold up the others for longer.
constexpr double kLongestDoubt = 6.0;
// When the kernel itself says that something is wrong.
constexpr double kHurriedGain = 1.2, kHurriedRestSeconds = 0.5;
// Trying a device that has no share may cost so much of the time.
constexpr double kTrySeconds = 10.0, kTryCost = 0.05;
// The steps from which an outcome is told. The first ones compile and fetch for the new shares.
constexpr std::int64_t kSettleSteps = 2, kOutcomeSteps = 10;
// When the medians of these differ by more, the probe was not exact enough.
constexpr double kSpread = 0.05, kCorrectionGain = 1.01;
constexpr int kMostCorrections = 2;
constexpr double kSure = 4.0;  // standard errors
// What a device is taken for that nobody has measured: as fast as the mean of the others, or this.
constexpr double kUnknownSeconds = 1e-3;

double Median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

// The standard error of a median, relative to it.
double DoubtOf(const std::vector<double>& values) {
  const double median = Median(values);
  std::vector<double> off;
  for (const double value : values) off.push_back(std::abs(value - median));
  constexpr double kSigma = 1.48, kOfMedian = 1.25;  // for a normal distribution
  return kSigma * kOfMedian * Median(off) / std::sqrt(static_cast<double>(values.size())) / median;
}

std::string Milliseconds(double seconds) {
  return seconds < 1.0 ? fmt::format("{:.3g} ms", 1e3 * seconds) : fmt::format("{:.3g} s", seconds);
}

}  // namespace

Balancer::Balancer(const BalancerOptions& options, const base::Clock& clock)
    : options_(options), clock_(clock), start_(clock.Now()) {}

Balancer::Device* Balancer::Find(const std::string& name) {
  for (Device& device : devices_) {
    if (device.name == name) return &device;
  }
  return nullptr;
}

std::vector<plan::Note> Balancer::TakeNotes() { return std::exchange(notes_, {}); }

std::optional<plan::Plan> Balancer::OnEvent(const plan::Event& event) {
  if (const auto* step = std::get_if<plan::StepDone>(&event)) return OnStep(*step);
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
  std::vector<double> paces;
  for (const Device& device : devices_) paces.push_back(device.pace);
  plan::Plan plan = Decide(paces, reason);
  corrections_left_ = kMostCorrections;
  return plan;
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

std::int64_t Balancer::LeastOf(const Device& device) const {
  const std::int64_t samples = SamplesOfAnEpoch();
  if (device.private_samples == 0 || samples == 0) return 0;
  // An even part of every batch.
  const auto exact = static_cast<double>(device.private_samples) *
                     static_cast<double>(options_.batch) / static_cast<double>(samples);
  return static_cast<std::int64_t>(exact) / options_.multiple * options_.multiple;
}

std::vector<plan::Candidate> Balancer::Candidates(const std::vector<double>& paces) const {
  std::vector<plan::Candidate> candidates;
  for (std::size_t i = 0; i < devices_.size(); ++i) {
    const Device& device = devices_[i];
    const std::int64_t most = std::max(device.curve.cap, LeastOf(device));
    candidates.push_back({.fixed_seconds = device.curve.fixed_seconds * paces[i],
                          .seconds_per_sample = device.curve.seconds_per_sample * paces[i],
                          .communication_seconds = device.communication_seconds,
                          .least = LeastOf(device),
                          .most = most});
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

// What does not fit: a device with more private samples than it can do in the time of the others.
std::string Balancer::PriceOfPrivacy(std::vector<plan::Candidate> candidates,
                                     const std::vector<std::int64_t>& shares,
                                     double seconds) const {
  std::string names;
  for (std::size_t i = 0; i < candidates.size(); ++i) {
    if (candidates[i].least > 0 && shares[i] == candidates[i].least) {
      names += (names.empty() ? "" : ", ") + devices_[i].name;
    }
    candidates[i].least = 0;
  }
  const auto free = plan::Balance(options_.batch, options_.multiple, candidates);
  if (names.empty() || !free.ok() || seconds < kGain * free->seconds) return {};
  return fmt::format(
      "; the private samples of {} are more than it can do in time: steps take {} instead of {}",
      names, Milliseconds(seconds), Milliseconds(free->seconds));
}

plan::Plan Balancer::Decide(const std::vector<double>& paces, const std::string& reason) {
  if (devices_.empty()) return {.shares = {}, .reason = reason};
  const std::vector<plan::Candidate> candidates = Candidates(paces);
  std::string words = reason;
  std::vector<std::int64_t> shares;
  double seconds = 0.0;
  const bool all_power =
      std::all_of(devices_.begin(), devices_.end(), [](const Device& d) { return d.power; });
  if (options_.objective == Objective::kEnergy && all_power) {
    std::vector<plan::EnergyCandidate> powered;
    for (std::size_t i = 0; i < devices_.size(); ++i) {
      powered.push_back({devices_[i].name, candidates[i], *devices_[i].power});
    }
    plan::EnergyGoal goal{.batch = options_.batch,
                          .multiple = options_.multiple,
                          .samples_left = SamplesLeft(),
                          .deadline_seconds = {}};
    if (options_.deadline_seconds) {
      goal.deadline_seconds = std::max(1e-3, *options_.deadline_seconds - (clock_.Now() - start_));
    }
    if (auto chosen = plan::PlanForEnergy(goal, powered); chosen.ok()) {
      shares = std::move(chosen->shares);
      seconds = chosen->seconds_per_step;
      words += "; " + chosen->reason;
    }
  }
  if (shares.empty() && options_.objective == Objective::kEnergy) {
    words += "; as fast as possible, because not every device states its watts";
  }
  if (shares.empty()) {
    auto balanced = plan::Balance(options_.batch, options_.multiple, candidates);
    if (balanced.ok()) {
      shares = std::move(balanced->shares);
      seconds = balanced->seconds;
      words += PriceOfPrivacy(candidates, shares, seconds);
    } else {
      // More private samples than the batch has room for: what each must do, in proportion.
      std::vector<std::int64_t> weights;
      for (const plan::Candidate& candidate : candidates) {
        weights.push_back(std::max<std::int64_t>(1, candidate.least));
      }
      shares = plan::Apportion(options_.batch, weights, options_.multiple);
      seconds = plan::FinishTime(shares, candidates);
      words += "; shares follow the private samples: " + balanced.status().message();
    }
  }
  for (std::size_t i = 0; i < devices_.size(); ++i) devices_[i].pace = paces[i];
  return Adopt(std::move(shares), seconds, words);
}

plan::Plan Balancer::Adopt(std::vector<std::int64_t> shares, double seconds,
                           const std::string& reason) {
  plan::Plan plan{.shares = {}, .reason = reason, .predicted_seconds = seconds};
  std::vector<std::string> before, after;
  const double now = clock_.Now();
  const std::int64_t total = std::accumulate(shares.begin(), shares.end(), std::int64_t{0});
  if (total < options_.batch && total > 0) {
    plan.learning_rate_factor = plan::LearningRateFactor(total, options_.batch, noise_);
    plan.reason += fmt::format(
        "; the devices can do {} of {} samples at once, so the learning rate is multiplied by "
        "{:.3f} ({})",
        total, options_.batch, plan.learning_rate_factor,
        noise_ ? fmt::format("the gain at a gradient noise scale of {:.0f} samples", *noise_)
               : "in proportion: the gradient noise is not known");
  }
  for (std::size_t i = 0; i < devices_.size(); ++i) {
    Device& device = devices_[i];
    before.push_back(fmt::format("{} {}", device.name, device.share));
    after.push_back(fmt::format("{} {}", device.name, shares[i]));
    if (shares[i] == 0) {
      const double alone = device.curve.At(options_.multiple) * device.pace;
      if (options_.objective == Objective::kTime && (device.share > 0 || device.next_try == 0.0)) {
        plan.reason += fmt::format(
            "; {} gets nothing: {} for its first {} would hold up a step of {}", device.name,
            Milliseconds(alone + device.communication_seconds),
            options_.multiple == 1 ? "sample" : fmt::format("{} samples", options_.multiple),
            Milliseconds(seconds));
      }
      device.next_try = NextTry(device);
    }
    device.share = shares[i];
    device.monitor.Forget();
    plan.shares.push_back({device.name, shares[i]});
  }
  planned_at_ = now;
  planned_seconds_ = seconds;
  steps_since_ = 0;
  better_since_.reset();
  corrections_left_ = 0;
  ++decisions_;
  open_ = Prediction{.decision = decisions_, .seconds = seconds, .measured = {}};
  notes_.push_back({"decision",
                    fmt::format("shares {}: {}; predicts {} per step", fmt::join(after, ", "),
                                plan.reason, Milliseconds(seconds)),
                    {{"reason", plan.reason},
                     {"before", fmt::format("{}", fmt::join(before, ", "))},
                     {"after", fmt::format("{}", fmt::join(after, ", "))}},
                    {{"decision", static_cast<double>(decisions_)},
                     {"predicted_step_seconds", seconds},
                     {"learning_rate_factor", plan.learning_rate_factor}}});
  return plan;
}

double Balancer::Gain(const std::vector<double>& paces) const {
  const std::vector<plan::Candidate> candidates = Candidates(paces);
  std::vector<std::int64_t> shares;
  for (const Device& device : devices_) shares.push_back(device.share);
  if (options_.objective == Objective::kEnergy) {
    // Shares that cost the fewest joules are not those of the shortest step: decide anew when the
    // speeds are others.
    double largest = 1.0;
    for (std::size_t i = 0; i < devices_.size(); ++i) {
      const double change = paces[i] / devices_[i].pace;
      largest = std::max({largest, change, 1.0 / change});
    }
    return largest > 1.1 ? largest : 1.0;
  }
  const auto best = plan::Balance(options_.batch, options_.multiple, candidates);
  return best.ok() ? plan::FinishTime(shares, candidates) / best->seconds : 1.0;
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
        hurried && device.monitor.pressed() ? ", and the kernel says that it waits for a processor"
                                            : ""));
  }
  if (changes.empty()) return "the shares do not fit the measured speeds";
  return fmt::format("{}", fmt::join(changes, "; "));
}

std::optional<plan::Plan> Balancer::OnStep(const plan::StepDone& step) {
  const double now = clock_.Now();
  if (step.noise) noise_ = step.noise;
  ++steps_since_;
  double trial = 0.0;
  for (const plan::StepDone::Part& part : step.parts) {
    Device* const device = Find(part.device);
    samples_done_ += part.samples;
    if (device == nullptr || part.samples <= 0 || !(part.compute_seconds > 0.0)) continue;
    const double ratio = part.compute_seconds / device->curve.At(part.samples);
    // One that had to stop at its deadline needs no further sign.
    const bool stopped = !tried_ && part.samples < device->share && step.short_step;
    device->monitor.Add(now, ratio, stopped ? 1.0 : part.pressure);
    if (tried_ && device == &devices_[*tried_]) trial = ratio;
  }
  if (tried_) return JudgeTrial(trial);
  if (auto plan = Judge(step)) return plan;
  if (!options_.keep) return std::nullopt;

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
  if (age < kRestSeconds || steps_since_ < kRestSteps) return std::nullopt;
  // A device that is just changing: a plan for the others alone would be one plan too many.
  const bool undecided = std::any_of(devices_.begin(), devices_.end(), [](const Device& device) {
    return device.share > 0 && device.monitor.Undecided(device.pace);
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

plan::Plan Balancer::JudgeTrial(double ratio) {
  const std::size_t tried = *std::exchange(tried_, std::nullopt);
  Device& device = devices_[tried];
  for (std::size_t i = 0; i < devices_.size(); ++i) devices_[i].share = tried_before_[i];
  std::vector<double> paces;
  for (const Device& each : devices_) paces.push_back(each.pace);
  if (ratio > 0.0) paces[tried] = ratio;
  const auto balanced = plan::Balance(options_.batch, options_.multiple, Candidates(paces));
  if (ratio > 0.0 && balanced.ok() && balanced->shares[tried] > 0 &&
      balanced->seconds * kGain < planned_seconds_) {
    return Decide(paces, device.name + " was tried again and is worth having");
  }
  device.pace = paces[tried];
  device.next_try = NextTry(device);
  plan::Plan back{.shares = {},
                  .reason = device.name + " is still too slow",
                  .predicted_seconds = planned_seconds_};
  for (const Device& each : devices_) back.shares.push_back({each.name, each.share});
  return back;
}

std::optional<plan::Plan> Balancer::TryIdle() {
  if (options_.objective == Objective::kEnergy) return std::nullopt;
  const double now = clock_.Now();
  const auto largest =
      std::max_element(devices_.begin(), devices_.end(),
                       [](const Device& a, const Device& b) { return a.share < b.share; });
  for (Device& device : devices_) {
    if (device.share > 0 || now < device.next_try || largest->share <= options_.multiple) continue;
    tried_before_.clear();
    for (const Device& other : devices_) tried_before_.push_back(other.share);
    tried_ = static_cast<std::size_t>(&device - devices_.data());
    largest->share -= options_.multiple;
    device.share = options_.multiple;
    plan::Plan plan{.shares = {},
                    .reason = device.name + " is tried again",
                    .predicted_seconds = 0.0};  // nobody knows how long it takes now
    for (const Device& other : devices_) plan.shares.push_back({other.name, other.share});
    return plan;
  }
  return std::nullopt;
}

std::optional<plan::Plan> Balancer::Judge(const plan::StepDone& step) {
  if (!open_ || steps_since_ <= kSettleSteps || !(step.seconds > 0.0)) return std::nullopt;
  open_->measured.push_back(step.seconds);
  for (const plan::StepDone::Part& part : step.parts) {
    const Device* const device = Find(part.device);
    if (device == nullptr || part.samples <= 0 || !(part.compute_seconds > 0.0)) continue;
    open_->compute[part.device].push_back(part.compute_seconds);
    open_->ratios[part.device].push_back(part.compute_seconds / device->curve.At(part.samples));
  }
  if (static_cast<std::int64_t>(open_->measured.size()) < kOutcomeSteps) return std::nullopt;
  const Prediction was = *std::exchange(open_, std::nullopt);
  const double measured = Median(was.measured);
  double first = std::numeric_limits<double>::infinity(), last = 0.0;
  for (const auto& [name, seconds] : was.compute) {
    first = std::min(first, Median(seconds));
    last = std::max(last, Median(seconds));
  }
  const double spread = last > 0.0 ? (last - first) / last : 0.0;
  const double error = was.seconds > 0.0 ? measured / was.seconds - 1.0 : 0.0;
  notes_.push_back(
      {"outcome",
       fmt::format("decision {}: {} per step were predicted and {} measured ({:+.0f} %); the "
                   "devices' compute times differ by {:.1f} %",
                   was.decision, Milliseconds(was.seconds), Milliseconds(measured), 100.0 * error,
                   100.0 * spread),
       {},
       {{"decision", static_cast<double>(was.decision)},
        {"predicted_step_seconds", was.seconds},
        {"measured_step_seconds", measured},
        {"compute_spread", spread}}});
  if (!options_.keep || options_.objective != Objective::kTime || corrections_left_ == 0) {
    return std::nullopt;
  }
  std::vector<double> paces;
  double doubt = 0.0;  // the largest error that a device's median may have
  for (const Device& device : devices_) {
    const auto found = was.ratios.find(device.name);
    paces.push_back(found == was.ratios.end() ? device.pace : Median(found->second));
    if (found != was.ratios.end()) doubt = std::max(doubt, DoubtOf(found->second));
  }
  if (spread < std::max(kSpread, kSure * doubt)) return std::nullopt;
  if (Gain(paces) < kCorrectionGain) return std::nullopt;
  const int left = corrections_left_ - 1;
  plan::Plan plan = Decide(paces, fmt::format("compute times of ten steps differ by {:.0f} %, so "
                                              "the probe is corrected by them",
                                              100.0 * spread));
  corrections_left_ = left;
  return plan;
}

}  // namespace motley::tune
