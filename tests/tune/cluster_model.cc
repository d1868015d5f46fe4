#include "tests/tune/cluster_model.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace motley::tune {

void ClusterModel::Join(const std::string& name, const ModelDevice& device) {
  devices_[name] = device;
  plan::DeviceJoined joined{.device = name,
                            .curve = {},
                            .communication_seconds = device.communication_seconds,
                            .power = device.power,
                            .private_samples = device.private_samples};
  if (device.probed) {
    joined.curve = plan::SpeedCurve{.fixed_seconds = device.fixed_seconds,
                                    .seconds_per_sample = device.seconds_per_sample,
                                    .residual = 0.0,
                                    .cap = device.cap};
  }
  Tell(joined);
}

void ClusterModel::Lose(const std::string& name, const std::string& reason) {
  devices_.erase(name);
  Tell(plan::DeviceLost{name, reason});
}

void ClusterModel::Tell(const plan::Event& event) {
  if (auto plan = balancer_.OnEvent(event)) plans_.push_back(std::move(*plan));
  for (plan::Note& note : balancer_.TakeNotes()) notes_.push_back(std::move(note));
}

void ClusterModel::Step() {
  plan::StepDone done{.step = ++step_, .noise = gradient_noise};
  for (const plan::Share& share : plan().shares) {
    if (share.samples == 0) continue;
    const ModelDevice& device = devices_.at(share.device);
    const double exact =
        device.fixed_seconds + device.seconds_per_sample * static_cast<double>(share.samples);
    const double seconds =
        std::max(1e-6, exact * device.slowdown * (1.0 + noise * rng_.Normal())) + stall;
    done.seconds = std::max(done.seconds, seconds + device.communication_seconds);
    done.parts.push_back({share.device, share.samples, seconds, device.pressure,
                          tells_exchange ? device.communication_seconds : -1.0});
  }
  stall = 0.0;
  Pass(done.seconds);
  step_seconds_ = done.seconds;
  Tell(done);
}

void ClusterModel::Pass(double seconds) {
  for (; beat > 0.0 && seconds > beat; seconds -= beat) {
    clock_.Advance(beat);
    for (const auto& [name, device] : devices_) Tell(plan::DevicePressed{name, device.pressure});
  }
  clock_.Advance(seconds);
}

void ClusterModel::RunSeconds(double seconds, const std::function<void(double now)>& before_step) {
  for (const double end = now() + seconds; now() < end;) {
    if (before_step) before_step(now());
    Step();
  }
}

ClusterModel::Waited ClusterModel::RunToNextPlan(
    double limit_seconds, const std::function<void(double now)>& before_step) {
  Waited waited;
  const double began = now();
  const std::size_t before = plans_.size();
  while (plans_.size() == before && now() - began < limit_seconds) {
    if (before_step) before_step(now());
    Step();
    ++waited.steps;
  }
  waited.seconds = now() - began;
  waited.planned = plans_.size() > before;
  return waited;
}

std::int64_t ClusterModel::ShareOf(const std::string& name) const {
  for (const plan::Share& share : plan().shares) {
    if (share.device == name) return share.samples;
  }
  return 0;
}

std::int64_t ClusterModel::Batch() const {
  std::int64_t sum = 0;
  for (const plan::Share& share : plan().shares) sum += share.samples;
  return sum;
}

int ClusterModel::decisions() const { return static_cast<int>(NotesOf("decision").size()); }

std::vector<plan::Note> ClusterModel::NotesOf(const std::string& event) const {
  std::vector<plan::Note> found;
  for (const plan::Note& note : notes_) {
    if (note.event == event) found.push_back(note);
  }
  return found;
}

bool Says(const plan::Plan& plan, const std::string& words) {
  return plan.reason.find(words) != std::string::npos;
}

double Number(const plan::Note& note, const std::string& name) {
  for (const auto& [key, value] : note.numbers) {
    if (key == name) return value;
  }
  ADD_FAILURE() << note.message << " has no " << name;
  return 0.0;
}

}  // namespace motley::tune
