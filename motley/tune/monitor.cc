#include "motley/tune/monitor.h"

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "motley/base/check.h"

namespace motley::tune {
namespace {

constexpr double kWindowSeconds = 2.0, kHurriedSeconds = 0.5;
constexpr std::size_t kWindowSteps = 7, kHurriedSteps = 2;
// A warning this old, at the end of a step, is over.
constexpr double kWarningSeconds = 1.0;
constexpr double kLongSeconds = 8.0;
constexpr std::size_t kLongSteps = 16;
// kTurns within this time or these steps: two times slow and fast again.
constexpr double kTurnSeconds = 14.0;
constexpr std::int64_t kTurnSteps = 16;
// It is steady again when it has not turned for so long.
constexpr double kSteadySeconds = 3.0;
constexpr std::int64_t kSteadySteps = 8;
// More of the time than this without a processor, beyond what is usual, is no accident. Where
// several devices share a machine, somebody always waits, and the kernel's count goes up and down.
constexpr double kPressure = 0.1, kDeviations = 2.0;
// What is usual follows over so many seconds, and at least 20 steps.
constexpr double kUsualSeconds = 10.0, kUsualPart = 0.05;
// Between the fast and the slow steps: more than the noise of a shared machine, less than what a
// program that comes and goes makes of it.
constexpr double kDifferent = 1.35, kFast = 0.1, kSlow = 0.9;

double Quantile(std::vector<double> values, double part) {
  const auto index = static_cast<std::size_t>(part * static_cast<double>(values.size() - 1) + 0.5);
  std::nth_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(index),
                   values.end());
  return values[index];
}

template <typename Range>
std::vector<double> Ratios(const Range& seen) {
  std::vector<double> ratios;
  for (const auto& one : seen) ratios.push_back(one.ratio);
  return ratios;
}

bool OneSpeed(const std::vector<double>& ratios) {
  return Quantile(ratios, kSlow) <= kDifferent * Quantile(ratios, kFast);
}

}  // namespace

bool Monitor::MoreThanUsual(double pressure) const {
  return usual_ && pressure > *usual_ + std::max(kPressure, kDeviations * deviation_);
}

void Monitor::Warn(double now, double pressure) {
  if (!MoreThanUsual(pressure)) {
    warned_to_ = -1.0;
  } else if (std::exchange(warned_to_, now) < warned_from_) {
    warned_from_ = now;
  }
}

void Monitor::StepBegan(double then) { warned_from_ = std::max(warned_from_, then); }

void Monitor::Add(double now, double ratio, double pressure) {
  const double usual = usual_.value_or(pressure);
  const double part = std::min(kUsualPart, (now - now_) / kUsualSeconds);
  See(now, ratio, MoreThanUsual(pressure));
  deviation_ += part * (std::abs(pressure - usual) - deviation_);
  usual_ = usual + part * (pressure - usual);
}

void Monitor::AddStopped(double now, double ratio) { See(now, ratio, /*sign=*/true); }

void Monitor::See(double now, double ratio, bool sign) {
  now_ = now;
  if (seen_.size() == seen_.capacity()) {
    seen_.erase(seen_.begin(), seen_.end() - std::ssize(Recent()));
    // Room for as many again, so that a step costs no more for those that are moved.
    seen_.reserve(std::max(2 * seen_.size(), kLongSteps));
  }
  const bool warned =
      warned_to_ - warned_from_ >= 0.8 * kHurriedSeconds && now - warned_to_ <= kWarningSeconds;
  seen_.push_back({now, ratio, sign, warned});
  warned_from_ = now;
  warned_to_ = -1.0;
  // The middle one of three is never a spike of one step.
  if (++steps_ >= 3) {
    const double least = std::min(before_[0], before_[1]), most = std::max(before_[0], before_[1]);
    FollowTurns(now, std::clamp(ratio, least, most));
  }
  before_[0] = std::exchange(before_[1], ratio);
}

std::span<const Monitor::Seen> Monitor::Recent() const {
  const std::span<const Seen> all(seen_);
  if (all.size() <= kLongSteps) return all;
  const auto old = [&](const Seen& one) { return all.back().time - one.time > kLongSeconds; };
  const auto last = all.end() - kLongSteps;
  return {std::partition_point(all.begin(), last, old), all.end()};
}

void Monitor::FollowTurns(double now, double ratio) {
  const bool turned = rising_ ? ratio < turn_ : ratio > turn_ && extreme_ > 0.0;
  if (turned) {
    rising_ = !rising_;
    turns_[turned_++ % kTurns] = {now, steps_};
  } else if (rising_ ? ratio <= extreme_ : ratio >= extreme_) {
    return;
  }
  extreme_ = ratio;
  turn_ = rising_ ? extreme_ / kDifferent : extreme_ * kDifferent;
}

void Monitor::Forget(double pace) {
  planned_ = pace;
  seen_.clear();
}

bool Monitor::Clear(const std::vector<double>& ratios) const {
  return OneSpeed(ratios) || Quantile(ratios, kFast) > kDifferent * planned_ ||
         Quantile(ratios, kSlow) < planned_ / kDifferent;
}

bool Monitor::Warned() const { return !seen_.empty() && seen_.back().warned; }

const char* Monitor::PressureWords() const {
  if (Warned())
    return ", and the kernel said in the middle of the step that it waits for a processor";
  return pressed() ? ", and the kernel says that it waits for a processor" : "";
}

bool Monitor::pressed() const {
  if (Warned()) return true;
  const auto seen = Recent();
  if (seen.size() < kHurriedSteps) return false;
  return std::all_of(seen.end() - kHurriedSteps, seen.end(),
                     [](const Seen& one) { return one.sign; });
}

std::span<const Monitor::Seen> Monitor::Window(bool hurried) const {
  const double seconds = hurried ? kHurriedSeconds : kWindowSeconds;
  const std::size_t steps = hurried ? kHurriedSteps : kWindowSteps;
  const auto seen = Recent();
  if (hurried && Warned()) return seen.last(1);
  std::size_t size = 0;
  for (auto one = seen.rbegin(); one != seen.rend(); ++one, ++size) {
    if (size >= steps && seen.back().time - one->time > seconds) break;
  }
  return seen.last(size);
}

bool Monitor::Unsteady() const {
  if (turned_ < kTurns) return false;
  const Turn &oldest = turns_[turned_ % kTurns], &last = turns_[(turned_ - 1) % kTurns];
  const bool often = now_ - oldest.time <= kTurnSeconds || steps_ - oldest.step <= kTurnSteps;
  return often && (now_ - last.time < kSteadySeconds || steps_ - last.step < kSteadySteps);
}

bool Monitor::Ready(bool hurried) const {
  const auto seen = Recent();
  if (seen.empty()) return false;
  const double seconds = seen.back().time - seen.front().time;
  if (Unsteady()) return seen.size() >= kLongSteps && seconds >= 0.8 * kLongSeconds;
  if (hurried && Warned()) return true;
  const auto window = Window(hurried);
  if (window.size() < (hurried ? kHurriedSteps : kWindowSteps)) return false;
  return Clear(Ratios(window)) && window.back().time - window.front().time >=
                                      0.8 * (hurried ? kHurriedSeconds : kWindowSeconds);
}

std::optional<double> Monitor::LongPace() const {
  const auto seen = Recent();
  if (seen.size() < kLongSteps) return std::nullopt;
  if (seen.back().time - seen.front().time < 0.8 * kLongSeconds) return std::nullopt;
  const std::vector<double> ratios = Ratios(seen);
  if (!OneSpeed(ratios)) return std::nullopt;
  return Quantile(ratios, 0.5);
}

bool Monitor::Undecided() const {
  if (seen_.empty() || Ready(/*hurried=*/false)) return false;
  const double change = seen_.back().ratio / planned_;
  return change > kDifferent || change < 1.0 / kDifferent;
}

double Monitor::Pace(bool hurried) const {
  MOTLEY_CHECK(Ready(hurried), "nothing was seen yet");
  if (!Unsteady()) return Quantile(Ratios(Window(hurried)), hurried ? 0.0 : 0.5);
  const auto seen = Recent();
  double sum = 0.0;
  for (const Seen& one : seen) sum += one.ratio;
  return sum / static_cast<double>(seen.size());
}

}  // namespace motley::tune
