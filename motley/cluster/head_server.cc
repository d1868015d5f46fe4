#include "motley/cluster/head_server.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "motley/base/check.h"
#include "motley/run/update.h"

namespace motley::cluster {

HeadServer::HeadServer(std::unique_ptr<engine::Device> device, std::vector<float> weights,
                       std::vector<float> velocity, std::uint64_t seed, int update_threads)
    : device_(std::move(device)),
      features_(graph::Count(device_->graph().input_shape())),
      seed_(seed),
      update_threads_(update_threads),
      present_{std::move(weights), std::move(velocity)},
      previous_(present_),
      gradient_(present_.weights.size()) {
  MOTLEY_CHECK(std::ssize(gradient_) == device_->graph().parameter_count(),
               "{} weights for a head with {}", gradient_.size(),
               device_->graph().parameter_count());
  thread_ = std::jthread([this](const std::stop_token& stop) { Work(stop); });
}

HeadServer::~HeadServer() {
  const std::lock_guard lock(mutex_);
  for (const auto& [group, open] : open_) open->cancel = true;
}

void HeadServer::Begin(int group, Step step) {
  auto open = std::make_shared<Open>();
  open->step = std::move(step);
  std::int64_t samples = 0;
  for (const auto& contributor : open->step.contributors) {
    open->first.push_back(samples);
    open->missing.push_back(contributor.samples * features_);
    samples += contributor.samples;
  }
  open->pieces.resize(open->first.size());
  open->missing_in_all = samples * features_;
  MOTLEY_CHECK(samples > 0 && samples == open->step.batch.size(), "not a step to begin");
  open->step.batch.images.resize(static_cast<std::size_t>(samples * features_));
  const std::lock_guard lock(mutex_);
  MOTLEY_CHECK(!open_.contains(group), "group {} has a step", group);
  last_generation_ = std::max(last_generation_, open->step.key.generation);
  open_.emplace(group, std::move(open));
}

HeadServer::Open* HeadServer::StepOf(const std::string& contributor, std::size_t& index) const {
  for (const auto& [group, open] : open_) {
    const auto place = ModelServer::PlaceOf(contributor, open->step.contributors);
    if (!place) continue;
    index = *place;
    return open.get();
  }
  return nullptr;
}

base::Result<bool> HeadServer::Add(const std::string& contributor, const StepKey& key,
                                   std::int64_t offset, const std::string& floats) {
  if (floats.empty() || floats.size() % sizeof(float) != 0) {
    return base::InvalidInput("{} bytes are no floats", floats.size());
  }
  const std::span<const float> values = FloatsOf(floats);
  if (!run::AllFinite(values)) {
    return base::InvalidInput("activations with a number that is not finite");
  }
  const std::lock_guard lock(mutex_);
  std::size_t who = 0;
  Open* const open = StepOf(contributor, who);
  const bool present = std::any_of(open_.begin(), open_.end(),
                                   [&](const auto& one) { return one.second->step.key == key; });
  const bool over =
      open != nullptr ? key < open->step.key : !present && key.generation <= last_generation_;
  if (over) return false;
  if (open == nullptr || key != open->step.key) {
    return base::InvalidInput("activations of step {}, generation {}, in which it has no share",
                              key.step, key.generation);
  }
  const auto count = std::ssize(values);
  const std::int64_t own = open->step.contributors[who].samples * features_;
  if (offset < 0 || offset > own - count || count > open->missing[who]) {
    return base::InvalidInput("{} activations at {} of {}", count, offset, own);
  }
  if (!open->pieces[who].Add(offset, offset + count)) {
    return base::InvalidInput("some of {} activations at {} come twice", count, offset);
  }
  std::copy(values.begin(), values.end(),
            open->step.batch.images.begin() + open->first[who] * features_ + offset);
  open->missing[who] -= count;
  open->missing_in_all -= count;
  if (open->missing_in_all > 0) return true;
  for (const auto& [group, one] : open_) {
    if (one.get() == open) queue_.push_back(one);
  }
  changed_.notify_all();
  return true;
}

bool HeadServer::HasAll(const std::string& contributor) const {
  const std::lock_guard lock(mutex_);
  std::size_t who = 0;
  const Open* const open = StepOf(contributor, who);
  return open == nullptr || open->missing[who] == 0;
}

std::optional<base::Result<HeadServer::Outcome>> HeadServer::outcome(int group) const {
  const std::lock_guard lock(mutex_);
  const auto found = open_.find(group);
  if (found == open_.end()) return std::nullopt;
  return found->second->outcome;
}

void HeadServer::Work(const std::stop_token& stop) {
  while (true) {
    std::shared_ptr<Open> open;
    {
      std::unique_lock lock(mutex_);
      if (!changed_.wait(lock, stop, [this] { return !queue_.empty(); })) return;
      open = std::move(queue_.front());
      queue_.pop_front();
    }
    std::vector<float> input_gradient;
    auto outcome = Compute(*open, input_gradient);
    const bool well = outcome.ok() && outcome->not_finite.empty();
    {
      const std::lock_guard lock(mutex_);
      open->outcome = std::move(outcome);
    }
    if (well) Answer(*open, input_gradient);
    if (open->step.on_complete) open->step.on_complete();
  }
}

base::Result<HeadServer::Outcome> HeadServer::Compute(Open& open,
                                                      std::vector<float>& input_gradient) {
  {
    const std::lock_guard lock(mutex_);
    last_ = nullptr;  // from here on, nothing is taken back: what follows builds on it
  }
  input_gradient.resize(open.step.batch.images.size());
  engine::StepRequest request;
  request.weights = present_.weights;
  request.batch = &open.step.batch;
  request.seed = seed_;
  request.cancel = &open.cancel;
  request.gradient = gradient_;
  request.input_gradient = input_gradient;
  MOTLEY_ASSIGN_OR_RETURN(const engine::StepResult result, device_->Step(request));
  Outcome outcome{result.loss_sum, result.correct, result.seconds, {}};
  if (!std::isfinite(result.loss_sum) || !run::AllFinite(input_gradient)) {
    outcome.not_finite = "the loss or a gradient";
    return outcome;
  }
  previous_ = present_;
  if (!optim::SgdUpdate(open.step.sgd, gradient_, open.step.batch.size(), previous_.weights,
                        previous_.velocity, update_threads_)) {
    outcome.not_finite = "a weight";
    return outcome;
  }
  {
    const std::lock_guard lock(mutex_);
    if (open.cancel) return base::Cancelled("the step was given up");
    std::swap(present_, previous_);
    last_ = &open;
  }
  return outcome;
}

void HeadServer::Answer(const Open& open, const std::vector<float>& gradient) const {
  for (std::size_t i = 0; i < open.first.size(); ++i) {
    const auto& contributor = open.step.contributors[i];
    const auto begin = gradient.begin() + open.first[i] * features_;
    open.step.on_gradient(contributor.name, std::make_shared<const std::vector<float>>(
                                                begin, begin + contributor.samples * features_));
  }
}

void HeadServer::Commit(int group) {
  const std::lock_guard lock(mutex_);
  const auto found = open_.find(group);
  MOTLEY_CHECK(found != open_.end() && found->second->outcome, "the step is not ready");
  if (last_ == found->second.get()) last_ = nullptr;
  open_.erase(found);
}

void HeadServer::Discard(int group) {
  const std::lock_guard lock(mutex_);
  const auto found = open_.find(group);
  if (found == open_.end()) return;
  found->second->cancel = true;
  std::erase(queue_, found->second);
  if (last_ == found->second.get()) {
    std::swap(present_, previous_);
    last_ = nullptr;
  }
  open_.erase(found);
}

HeadServer::State HeadServer::state() const {
  const std::lock_guard lock(mutex_);
  return present_;
}

}  // namespace motley::cluster
