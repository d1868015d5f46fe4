// How the present plan does, and small corrections of it.
#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "motley/tune/balancer.h"

namespace motley::tune {

using plan::MedianOf;

namespace {

// The first steps of a plan compile and fetch for the new shares.
constexpr std::int64_t kSettleSteps = 2, kLongestLook = 160;
// When the medians of these differ by more, the plan is refined, if that is worth anything.
constexpr double kSpread = 0.02, kRefinementGain = 1.002;
// Standard errors of each of two devices, and of the two outermost of very many.
double SureErrors(std::size_t devices) {
  return std::max(2.0, std::sqrt(2.0 * std::log(static_cast<double>(devices))));
}
// A step is never shorter than computing and communication of each of its devices, but a few are
// told wrong.
constexpr std::size_t kWrongPart = 10;
// The exchange is judged by so many steps, every so many. Of a step: less is no change.
constexpr std::size_t kExchanges = 20, kExchangesUnseen = 5;
constexpr double kExchangeChange = 0.05;
// Between two refinements, in seconds: at least, and at most when one follows the other.
constexpr double kLeastRest = 4.0, kLongestRest = 120.0;

// The standard error of a median, relative to it.
double DoubtOf(const std::vector<double>& values) {
  const double median = MedianOf(values);
  std::vector<double> off;
  for (const double value : values) off.push_back(std::abs(value - median));
  constexpr double kSigma = 1.48, kOfMedian = 1.25;  // for a normal distribution
  return kSigma * kOfMedian * MedianOf(off) / std::sqrt(static_cast<double>(values.size())) /
         median;
}

}  // namespace

double Balancer::Spread() const {
  double widest = 0.0;
  for (int group = 0; group < Groups(); ++group) {
    double first = std::numeric_limits<double>::infinity(), last = 0.0;
    for (const Device& device : devices_) {
      if (device.group != group || device.compute.empty()) continue;
      first = std::min(first, MedianOf(device.compute));
      last = std::max(last, MedianOf(device.compute));
    }
    if (last > 0.0) widest = std::max(widest, (last - first) / last);
  }
  return widest;
}

double Balancer::SureSpread() const {
  const double sure = SureErrors(devices_.size());
  double widest = 0.0;
  for (int group = 0; group < Groups(); ++group) {
    // Each at the end of what its median may be that brings it nearer to the others.
    double first_most = std::numeric_limits<double>::infinity(), last_least = 0.0;
    double first = 0.0, last = 0.0;
    for (const Device& device : devices_) {
      if (device.group != group || device.compute.empty()) continue;
      const double median = MedianOf(device.compute), doubt = sure * DoubtOf(device.ratios);
      if (median * (1.0 + doubt) < first_most) first_most = median * (1.0 + doubt), first = median;
      if (median * (1.0 - doubt) > last_least) last_least = median * (1.0 - doubt), last = median;
    }
    if (last_least > first_most) widest = std::max(widest, (last - first) / last);
  }
  return widest;
}

plan::PlanRecord::Seen Balancer::Seen() const {
  if (tried_ || record_.told()) return {};  // of a trial, the look is at the plan before it
  const auto before = static_cast<std::ptrdiff_t>(look_.before);
  plan::PlanRecord::Seen seen{{look_.measured.begin() + before, look_.measured.end()}, Spread()};
  if (planned_joules_) seen.joules.assign(look_.joules.begin() + before, look_.joules.end());
  return seen;
}

std::optional<plan::Plan> Balancer::Judge(const plan::StepDone& step) {
  if (!LookAt(step)) return std::nullopt;
  LowerCommunication();
  record_.Tell(Seen(), notes_);
  if (auto plan = Refine()) return plan;
  // Twice the steps, those that were seen included.
  if (look_.steps == kLongestLook) {
    BeginLook(kLongestLook);
  } else {
    look_.steps *= 2;
  }
  return std::nullopt;
}

void Balancer::BeginLook(std::int64_t steps) {
  look_.steps = steps;
  look_.measured.clear();
  look_.joules.clear();
  look_.before = 0;
  for (Device& device : devices_) {
    device.compute.clear();
    device.ratios.clear();
    device.besides.clear();
  }
}

bool Balancer::LookAt(const plan::StepDone& step) {
  if (steps_since_ <= kSettleSteps * Groups() || !(step.seconds > 0.0)) return false;
  const auto group = static_cast<std::size_t>(step.group);
  if (group >= group_seconds_.size()) return false;  // of the plan before
  if (record_.told() && !options_.keep) return false;
  // As if it were of the slowest group, for which the prediction stands.
  look_.measured.push_back(step.seconds * planned_seconds_ / group_seconds_[group]);
  if (planned_joules_) look_.joules.push_back(JoulesOf(step));
  for (const plan::StepDone::Part& part : step.parts) {
    Device* const device = Find(part.device);
    if (device == nullptr || part.samples <= 0 || !(part.compute_seconds > 0.0)) continue;
    device->compute.push_back(part.compute_seconds);
    device->ratios.push_back(part.compute_seconds / device->curve.At(part.samples));
    device->besides.push_back(step.seconds - part.compute_seconds);
    FollowExchange(*device, part.exchange_seconds);
  }
  return static_cast<std::int64_t>(look_.measured.size()) >= look_.steps * Groups();
}

double Balancer::JoulesOf(const plan::StepDone& step) {
  double joules = 0.0;
  int working = 0;
  for (const Device& device : devices_) {
    if (device.power) joules += device.power->watts_idle * step.seconds;
  }
  for (const plan::StepDone::Part& part : step.parts) {
    const Device* const device = Find(part.device);
    if (device == nullptr || !device->power || part.samples <= 0) continue;
    joules += (device->power->watts_busy - device->power->watts_idle) * part.compute_seconds;
    ++working;
  }
  return joules + options_.moving_joules * std::max(0, working - 1);
}

void Balancer::LowerCommunication() {
  for (Device& device : devices_) {
    std::vector<double> besides = device.besides;
    if (besides.empty()) continue;
    const auto low = besides.begin() + static_cast<std::ptrdiff_t>(besides.size() / kWrongPart);
    std::nth_element(besides.begin(), low, besides.end());
    device.communication_seconds = std::clamp(*low, 0.0, device.communication_seconds);
  }
}

bool Balancer::ExchangeHasChanged(const Device& device, double before, double now) const {
  const auto group = static_cast<std::size_t>(device.group);
  return group < group_seconds_.size() &&
         std::abs(now - before) > kExchangeChange * group_seconds_[group];
}

void Balancer::FollowExchange(Device& device, double seconds) const {
  if (seconds < 0.0) return;
  if (device.exchange.size() < kExchanges) device.exchange.resize(kExchanges);
  device.exchange[device.exchanges++ % kExchanges] = seconds;
  if (device.exchanges < kExchanges || device.exchanges % kExchangesUnseen != 0) return;
  std::vector<double> last = device.exchange;
  const auto low = last.begin() + static_cast<std::ptrdiff_t>(kExchanges / kWrongPart);
  std::nth_element(last.begin(), low, last.end());
  if (ExchangeHasChanged(device, device.communication_seconds, *low)) {
    device.communication_seconds = *low;
  }
}

std::optional<plan::Plan> Balancer::Refine() {
  const double now = clock_.Now(), age = now - planned_at_, since = now - refined_at_;
  if (!options_.keep || options_.objective != Objective::kTime || since < refine_rest_) {
    return std::nullopt;
  }
  std::vector<double> paces;
  for (const Device& device : devices_) {
    // One that never stays as it is has no median worth following.
    if (device.share > 0 && device.monitor.Unsteady()) return std::nullopt;
    paces.push_back(device.ratios.empty() ? device.pace : MedianOf(device.ratios));
  }
  if (SureSpread() < kSpread) return std::nullopt;
  if (Gain(paces) < kRefinementGain) return std::nullopt;
  plan::Plan plan =
      Decide(paces, fmt::format("the compute times of {} steps differ by {:.0f} %, so the shares "
                                "follow them",
                                look_.measured.size(), 100.0 * Spread()));
  // One after the other, in spite of all other plans: what they follow comes and goes.
  const bool again = since < 4.0 * refine_rest_;
  refine_rest_ = std::clamp(again ? 2.0 * refine_rest_ : age, kLeastRest, kLongestRest);
  refined_at_ = now;
  return plan;
}

}  // namespace motley::tune
