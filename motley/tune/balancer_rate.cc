// The learning rate while the devices cannot do the whole batch.
#include <cmath>

#include "motley/plan/noise.h"
#include "motley/tune/balancer.h"

namespace motley::tune {
namespace {

// It is decided anew when the factor would change by this part of it, not sooner than so many steps
// of every group after the last time: the noise scale is a mean that moves slowly.
constexpr double kFactorChange = 0.2;
constexpr std::int64_t kRateRestSteps = 20;

std::string RateWords(double factor) { return fmt::format("learning rate times {:.3f}", factor); }

}  // namespace

std::string Balancer::SetLearningRate(std::int64_t samples) {
  rate_factor_ = 1.0;
  rate_noise_ = noise_;
  rate_steps_ = 0;
  if (samples <= 0 || samples >= options_.batch) return {};
  rate_factor_ = plan::LearningRateFactor(samples, options_.batch, noise_);
  return fmt::format(
      "; the devices can do {} of {} samples at once, so the learning rate is multiplied by "
      "{:.3f} ({})",
      samples, options_.batch, rate_factor_,
      noise_ ? fmt::format("the gain at a gradient noise scale of {:.3g} samples", *noise_)
             : "in proportion: the gradient noise is not known");
}

std::optional<plan::Plan> Balancer::FollowNoise() {
  if (!noise_ || devices_.empty()) return std::nullopt;
  if (planned_samples_ <= 0 || planned_samples_ >= options_.batch) return std::nullopt;
  std::string reason = "the gradient noise scale is known now";
  if (rate_noise_) {
    const double factor = plan::LearningRateFactor(planned_samples_, options_.batch, noise_);
    if (rate_steps_ < kRateRestSteps * Groups()) return std::nullopt;
    if (std::abs(factor / rate_factor_ - 1.0) < kFactorChange) return std::nullopt;
    reason = fmt::format(
        "the gradient noise scale is {:.3g} samples, and was {:.3g} when the learning rate was set",
        *noise_, *rate_noise_);
  }
  record_.GiveUp(Seen(), notes_);
  const std::string before = RateWords(rate_factor_);
  reason += SetLearningRate(planned_samples_);
  const std::string after = RateWords(rate_factor_);
  look_.before = look_.measured.size();
  notes_.push_back(
      {"decision",
       fmt::format("{}: {}", after, reason),
       {{"reason", reason}, {"before", before}, {"after", after}},
       {{"decision", static_cast<double>(record_.Decide({planned_seconds_, planned_joules_}))},
        {"predicted_step_seconds", planned_seconds_},
        {"learning_rate_factor", rate_factor_},
        {"noise_scale", *noise_}}});
  return PresentPlan(reason, planned_seconds_);
}

}  // namespace motley::tune
