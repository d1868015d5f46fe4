#include "motley/cluster/boundary.h"

#include <algorithm>
#include <chrono>

#include "motley/base/clock.h"
#include "motley/run/update.h"

namespace motley::cluster {

void Boundary::Begin(const StepKey& key, std::int64_t samples) {
  const std::lock_guard lock(mutex_);
  key_ = key;
  missing_ = samples * features_;
  // Anew in each step: what is still being sent of an older one must not change.
  sent_ = std::make_shared<std::vector<float>>(static_cast<std::size_t>(missing_));
  gradient_.resize(sent_->size());
  pieces_.Clear();
  wait_seconds_.reset();
  finite_ = true;
}

bool Boundary::Cross(const engine::Crossing& crossing, const std::atomic<bool>& cancel) {
  constexpr auto kLook = std::chrono::milliseconds(50);
  const base::RealClock clock;
  const double began = clock.Now();
  const std::int64_t begin = crossing.begin * features_, end = crossing.end * features_;
  const bool finite = run::AllFinite(crossing.activations);
  // Lanes have different samples.
  std::copy(crossing.activations.begin(), crossing.activations.end(), sent_->begin() + begin);
  for (std::int64_t at = begin; finite && at < end; at += Parts::kFloats) {
    out_.Push({key_, proto::ARRAY_ACTIVATIONS, at, std::min(Parts::kFloats, end - at), sent_});
  }
  std::unique_lock lock(mutex_);
  finite_ = finite_ && finite;
  while (missing_ > 0) {
    if (cancel || !finite_ || *crossing.given_up) return false;
    changed_.wait_for(lock, kLook);
  }
  std::copy(gradient_.begin() + begin, gradient_.begin() + end, crossing.gradient.begin());
  // Until the last lane came, the others had only finished earlier.
  const double waited = clock.Now() - began;
  wait_seconds_ = std::min(wait_seconds_.value_or(waited), waited);
  return true;
}

base::Status Boundary::Take(const proto::Part& part) {
  const std::lock_guard lock(mutex_);
  const StepKey key{part.generation(), part.step()};
  if (key < key_) return {};
  const std::string& bytes = part.floats();
  const auto count = static_cast<std::int64_t>(bytes.size() / sizeof(float));
  if (key > key_ || bytes.size() % sizeof(float) != 0 || part.offset() < 0 ||
      part.offset() > std::ssize(gradient_) - count || count > missing_ || count == 0) {
    return base::InvalidInput("a gradient of {} activations at {}", count, part.offset());
  }
  if (!pieces_.Add(part.offset(), part.offset() + count)) {
    return base::InvalidInput("a gradient of activations at {} comes twice", part.offset());
  }
  const std::span<const float> values = FloatsOf(bytes);
  std::copy(values.begin(), values.end(), gradient_.begin() + part.offset());
  missing_ -= count;
  if (missing_ == 0) changed_.notify_all();
  return {};
}

double Boundary::wait_seconds() const {
  const std::lock_guard lock(mutex_);
  return wait_seconds_.value_or(0.0);
}

bool Boundary::finite() const {
  const std::lock_guard lock(mutex_);
  return finite_;
}

}  // namespace motley::cluster
