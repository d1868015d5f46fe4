#include "motley/cluster/model_server.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "motley/base/check.h"
#include "motley/run/update.h"

namespace motley::cluster {
namespace {

std::size_t Size(std::int64_t n) { return static_cast<std::size_t>(n); }

double Squared(std::span<const float> values) {
  // In blocks of floats, so that it is one more pass of vectors over what lies in the cache.
  constexpr std::size_t kBlock = 1024;
  double total = 0.0;
  for (std::size_t begin = 0; begin < values.size(); begin += kBlock) {
    const std::size_t end = std::min(values.size(), begin + kBlock);
    float lanes[16] = {};
    std::size_t i = begin;
    for (; i + 16 <= end; i += 16) {
      for (std::size_t k = 0; k < 16; ++k) lanes[k] += values[i + k] * values[i + k];
    }
    for (; i < end; ++i) lanes[0] += values[i] * values[i];
    for (const float lane : lanes) total += static_cast<double>(lane);
  }
  return total;
}

}  // namespace

ModelServer::ModelServer(const graph::Graph& graph, std::vector<float> weights,
                         std::vector<float> velocity, const std::vector<float>& buffers)
    : graph_(graph),
      parts_(graph.parameter_count(), graph.buffer_count()),
      parameters_(weights.size()),
      velocity_(std::move(velocity)) {
  weights.insert(weights.end(), buffers.begin(), buffers.end());
  Replace(std::move(weights), std::move(velocity_));
  for (int i = 0; i < parts_.count(); ++i) sums_.push_back(std::make_unique<PartSum>());
}

std::span<const float> ModelServer::weights() const {
  return std::span(*model_).first(parameters_);
}

std::span<const float> ModelServer::buffers() const {
  return std::span(*model_).subspan(parameters_);
}

void ModelServer::Replace(std::vector<float> model, std::vector<float> velocity) {
  MOTLEY_CHECK(!open_, "a step is open");
  MOTLEY_CHECK(model.size() == Size(parts_.floats()) && velocity.size() == parameters_,
               "a model of {} and a velocity of {} floats", model.size(), velocity.size());
  model_ = std::make_shared<const std::vector<float>>(std::move(model));
  velocity_ = std::move(velocity);
}

std::shared_ptr<std::vector<float>> ModelServer::TakeSpare() {
  std::unique_ptr<std::vector<float>> array;
  {
    const std::lock_guard lock(spares_->mutex);
    if (!spares_->arrays.empty()) {
      array = std::move(spares_->arrays.back());
      spares_->arrays.pop_back();
    }
  }
  if (array == nullptr) array = std::make_unique<std::vector<float>>(model_->size());
  // A slow reader may still be sending what was the model two steps ago: arrays come back when the
  // last reader lets go of them.
  return {array.release(), [spares = spares_](std::vector<float>* raw) {
            std::unique_ptr<std::vector<float>> back(raw);
            const std::lock_guard lock(spares->mutex);
            if (spares->arrays.size() < 2) spares->arrays.push_back(std::move(back));
          }};
}

void ModelServer::Begin(Step step) {
  const std::unique_lock lock(open_mutex_);
  MOTLEY_CHECK(!open_ && !step.contributors.empty() && step.samples > 0, "not a step to begin");
  step_ = std::move(step);
  next_ = TakeSpare();
  next_velocity_.resize(parameters_);
  sum_.resize(model_->size());
  done_.clear();
  for (std::size_t i = 0; i < step_.contributors.size(); ++i) {
    done_.push_back(std::make_unique<std::atomic<std::int64_t>>(-1));
  }
  for (const auto& part : sums_) {
    part->summed = 0;
    part->samples = 0;
    part->total_squared = 0.0;
    part->squared.assign(step_.contributors.size(), 0.0);
    part->waiting.assign(step_.contributors.size(), {});
    part->seen.assign(step_.contributors.size(), false);
  }
  final_parts_ = 0;
  buffer_parts_left_ = parts_.count() - parts_.parameter_parts();
  not_finite_.clear();
  open_ = true;
}

base::Result<bool> ModelServer::Add(const std::string& contributor, const StepKey& key,
                                    std::int64_t offset, std::int64_t samples, std::string floats) {
  const std::shared_lock lock(open_mutex_);
  if (!open_ || key < step_.key) return false;
  if (key != step_.key) {
    return base::InvalidInput("a gradient of step {}, generation {}, which has not begun", key.step,
                              key.generation);
  }
  const auto found = std::find_if(step_.contributors.begin(), step_.contributors.end(),
                                  [&](const auto& one) { return one.name == contributor; });
  if (found == step_.contributors.end()) {
    return base::InvalidInput("a gradient from somebody who has no share in step {}", key.step);
  }
  if (samples < 0 || samples > found->samples) {
    return base::InvalidInput("a gradient over {} of {} samples", samples, found->samples);
  }
  if (floats.size() % sizeof(float) != 0) {
    return base::InvalidInput("{} bytes are no floats", floats.size());
  }
  const auto count = static_cast<std::int64_t>(floats.size() / sizeof(float));
  MOTLEY_ASSIGN_OR_RETURN(const int index, parts_.Find(offset, count));
  if (!run::AllFinite(FloatsOf(floats))) {
    return base::InvalidInput("a gradient with a number that is not finite, between {} and {}",
                              offset, offset + count);
  }
  const auto who = static_cast<std::size_t>(found - step_.contributors.begin());
  std::int64_t said = -1;
  if (!done_[who]->compare_exchange_strong(said, samples) && said != samples) {
    return base::InvalidInput("a gradient over {} samples, and then over {}", said, samples);
  }
  PartSum& part = *sums_[Size(index)];
  const std::lock_guard part_lock(part.mutex);
  if (part.seen[who]) return base::InvalidInput("the gradient at {} twice", offset);
  part.seen[who] = true;
  part.samples += samples;
  Sum(index, part, who, std::move(floats));
  return true;
}

// Requires part.mutex.
void ModelServer::Sum(int index, PartSum& part, std::size_t contributor, std::string floats) {
  part.waiting[contributor] = std::move(floats);
  float* const sum = sum_.data() + parts_[index].offset;
  for (; part.summed < part.waiting.size() && part.seen[part.summed]; ++part.summed) {
    const std::string bytes = std::exchange(part.waiting[part.summed], {});
    const std::span<const float> values = FloatsOf(bytes);
    if (index < parts_.parameter_parts()) part.squared[part.summed] = Squared(values);
    if (part.summed == 0) {
      std::memcpy(sum, values.data(), values.size_bytes());
    } else {
      for (std::size_t i = 0; i < values.size(); ++i) sum[i] += values[i];
    }
  }
  if (part.summed < part.waiting.size()) return;
  const auto size = Size(parts_[index].size);
  if (index < parts_.parameter_parts()) part.total_squared = Squared(std::span(sum, size));
  Finish(index);
}

void ModelServer::Finish(int index) {
  if (index >= parts_.parameter_parts()) {
    if (--buffer_parts_left_ == 0) FinishBuffers(sums_[Size(index)]->samples);
    return;
  }
  const auto offset = Size(parts_[index].offset), size = Size(parts_[index].size);
  const auto weights = std::span(*next_).subspan(offset, size);
  const auto velocity = std::span(next_velocity_).subspan(offset, size);
  std::copy_n(model_->begin() + parts_[index].offset, size, weights.begin());
  std::copy_n(velocity_.begin() + parts_[index].offset, size, velocity.begin());
  const auto sum = std::span<const float>(sum_).subspan(offset, size);
  const std::int64_t samples = sums_[Size(index)]->samples;
  // Without a single sample there is no step to make.
  const auto sgd = run::ForFewer(step_.sgd, samples, step_.samples);
  if (samples > 0 && !optim::SgdUpdate(sgd, sum, samples, weights, velocity)) {
    NoteNotFinite("a weight");
  }
  NotePart(index);
}

void ModelServer::NotePart(int index) {
  if (step_.on_part) step_.on_part(index, next_);
  if (++final_parts_ == parts_.count() && step_.on_complete) step_.on_complete();
}

void ModelServer::FinishBuffers(std::int64_t samples) {
  const auto buffers = std::span(*next_).subspan(parameters_);
  std::copy(model_->begin() + static_cast<std::ptrdiff_t>(parameters_), model_->end(),
            buffers.begin());
  if (samples > 0) {
    NoteNotFinite(run::UpdateBuffers(graph_, std::span<const float>(sum_).subspan(parameters_),
                                     samples, buffers));
  }
  for (int index = parts_.parameter_parts(); index < parts_.count(); ++index) NotePart(index);
}

ModelServer::Norms ModelServer::norms() const {
  Norms norms;
  for (std::size_t i = 0; i < step_.contributors.size(); ++i) {
    norms.contributors.push_back({std::max<std::int64_t>(0, *done_[i]), 0.0});
  }
  for (const auto& part : sums_) {
    for (std::size_t i = 0; i < part->squared.size(); ++i) {
      norms.contributors[i].squared += part->squared[i];
    }
    norms.total_squared += part->total_squared;
  }
  return norms;
}

std::int64_t ModelServer::SamplesOf(const std::string& contributor) const {
  const std::shared_lock lock(open_mutex_);
  for (std::size_t i = 0; i < step_.contributors.size(); ++i) {
    if (step_.contributors[i].name == contributor) return std::max<std::int64_t>(0, *done_[i]);
  }
  return 0;
}

void ModelServer::NoteNotFinite(const std::string& what) {
  const std::lock_guard lock(not_finite_mutex_);
  if (not_finite_.empty()) not_finite_ = what;
}

std::string ModelServer::not_finite() const {
  const std::lock_guard lock(not_finite_mutex_);
  return not_finite_;
}

void ModelServer::Commit() {
  const std::unique_lock lock(open_mutex_);
  MOTLEY_CHECK(open_ && Complete(), "the step is not complete");
  open_ = false;
  step_ = {};
  model_ = std::move(next_);
  std::swap(velocity_, next_velocity_);
}

void ModelServer::Discard() {
  const std::unique_lock lock(open_mutex_);
  if (!open_) return;
  open_ = false;
  step_ = {};
  next_ = nullptr;
}

}  // namespace motley::cluster
