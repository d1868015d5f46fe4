#include "motley/sim/timeline.h"

#include <algorithm>
#include <cmath>
#include <tuple>

#include "motley/base/check.h"
#include "motley/base/rng.h"

namespace motley::sim {

Timeline::Timeline(Options options)
    : options_(std::move(options)),
      link_seconds_(options_.model_bytes / options_.server_bytes_per_second),
      draws_(options_.devices.size()),
      group_of_(options_.devices.size(), -1) {
  for (std::size_t i = 0; i < options_.devices.size(); ++i) {
    own_link_seconds_.push_back(options_.model_bytes / options_.devices[i].bytes_per_second);
    keys_.push_back(base::Key({options_.seed, i}));
    const double at = options_.devices[i].fails_at;
    if (std::isfinite(at)) failures_.emplace_back(at, i);
  }
  std::sort(failures_.rbegin(), failures_.rend());
}

double Timeline::ReductionSeconds(std::span<const std::size_t> members) const {
  if (members.size() < 2) return 0.0;
  double slowest = std::numeric_limits<double>::infinity();
  for (const std::size_t member : members) {
    slowest = std::min(slowest, options_.devices[member].bytes_per_second);
  }
  const auto n = static_cast<double>(members.size());
  return 2.0 * (n - 1.0) / n * options_.model_bytes / slowest +
         2.0 * (n - 1.0) * options_.latency_seconds;
}

double Timeline::OwnLinkSeconds(std::span<const std::size_t> members) const {
  double slowest = 0.0;
  for (const std::size_t member : members) slowest = std::max(slowest, own_link_seconds_[member]);
  return std::max(0.0, slowest - link_seconds_);
}

double Timeline::ServerLinkSeconds(std::size_t device) const {
  return options_.latency_seconds + link_seconds_ + OwnLinkSeconds({&device, 1});
}

std::pair<double, double> Timeline::CrossingSeconds(std::span<const Work> work) const {
  double bytes = 0.0, slowest = 0.0;
  for (const Work& one : work) {
    const double own = static_cast<double>(one.samples) * options_.head->sample_bytes;
    bytes += own;
    slowest = std::max(slowest, own / options_.devices[one.device].bytes_per_second);
  }
  const double link = bytes / options_.server_bytes_per_second;
  return {link, std::max(0.0, slowest - link)};
}

double Timeline::HeadSeconds(std::span<const Work> work) const {
  std::int64_t samples = 0;
  for (const Work& one : work) samples += one.samples;
  const auto [link, own] = CrossingSeconds(work);
  return 2.0 * (options_.latency_seconds + link + own) + options_.head->curve.At(samples);
}

void Timeline::Begin(int group, double now, std::span<const Work> work, bool alone) {
  MOTLEY_CHECK(group >= 0 && !work.empty(), "{} devices in group {}", work.size(), group);
  if (static_cast<std::size_t>(group) >= steps_.size()) {
    steps_.resize(static_cast<std::size_t>(group) + 1);
  }
  Step& step = steps_[static_cast<std::size_t>(group)];
  MOTLEY_CHECK(!step.under_way, "group {} is in a step", group);
  step.under_way = true;
  under_way_.emplace(updates_, group);
  step.begin = step.computed = now;
  step.read = updates_;
  step.alone = alone;
  step.admitted = false;
  step.members.clear();
  for (const Work& one : work) {
    MOTLEY_CHECK(group_of_[one.device] < 0, "device {} is in a step", one.device);
    group_of_[one.device] = group;
    step.members.push_back(one.device);
  }
  double start = now;
  if (!alone) {
    out_free_ = std::max(now, out_free_) + link_seconds_;
    start = out_free_ + options_.latency_seconds + OwnLinkSeconds(step.members);
  }
  Compute(step, group, start, work);
}

void Timeline::Compute(Step& step, int group, double start, std::span<const Work> work) {
  const double part = options_.head ? options_.head->forward_part : 1.0;
  step.compute_seconds.clear();
  step.compute_seconds.reserve(work.size());
  step.backward_seconds.clear();
  step.waited = 0.0;
  std::int64_t samples = 0;
  for (const Work& one : work) {
    const TimedDevice& device = options_.devices[one.device];
    const double factor = device.service.Factor(keys_[one.device], draws_[one.device]++);
    const double seconds = device.curve.At(one.samples) * factor;
    const double end = device.pace.FinishTime(start, part * seconds);
    step.compute_seconds.push_back(end - start);
    step.computed = std::max(step.computed, end);
    if (options_.head) step.backward_seconds.push_back((1.0 - part) * seconds);
    samples += one.samples;
  }
  if (!options_.head) return SendSum(step, group);
  std::tie(step.crossing_seconds, step.own_crossing_seconds) = CrossingSeconds(work);
  step.head_seconds = options_.head->curve.At(samples);
  Expect(step.computed + options_.latency_seconds + step.own_crossing_seconds, Phase::kActivations,
         group);
}

void Timeline::ComputeBackward(Step& step, int group, double now) {
  out_free_ = std::max(now, out_free_) + step.crossing_seconds;
  const double start = out_free_ + options_.latency_seconds + step.own_crossing_seconds;
  step.waited = start - step.computed;
  for (std::size_t i = 0; i < step.members.size(); ++i) {
    const engine::Pace& pace = options_.devices[step.members[i]].pace;
    const double end = pace.FinishTime(start, step.backward_seconds[i]);
    step.compute_seconds[i] += end - start;
    step.computed = std::max(step.computed, end);
  }
  SendSum(step, group);
}

void Timeline::SendSum(const Step& step, int group) {
  const double summed = step.computed + ReductionSeconds(step.members);
  if (step.alone) {
    Expect(summed, Phase::kReceived, group);
  } else {
    Expect(summed + options_.latency_seconds + OwnLinkSeconds(step.members), Phase::kSum, group);
  }
}

std::optional<int> Timeline::NextGroup() const {
  if (due_.empty()) return std::nullopt;
  return due_.top().group;
}

bool Timeline::MayUpdate(int group) const {
  if (options_.max_staleness == 0) return true;
  // Those who read the model earlier may still update before another one does; counting them in,
  // the oldest is never kept waiting.
  std::int64_t before = 0;
  for (const auto& [read, other] : under_way_) {
    if (other == group) return true;
    if (admitted_ + 1 - read + before++ > options_.max_staleness) return false;
  }
  return true;
}

std::optional<Timeline::Event> Timeline::TakeFailure(double before) {
  if (failures_.empty() || failures_.back().first > before) return std::nullopt;
  const auto [time, device] = failures_.back();
  failures_.pop_back();
  Event event{.group = group_of_[device], .begin = time, .computed = time, .end = time};
  event.lost = device;
  if (event.group < 0) return event;
  Step& step = steps_[static_cast<std::size_t>(event.group)];
  for (const std::size_t member : step.members) group_of_[member] = -1;
  step.under_way = false;
  if (step.admitted) --admitted_;
  under_way_.erase({step.read, event.group});
  std::erase(held_, event.group);
  // Rare: the heap is made anew without it.
  decltype(due_) others;
  for (; !due_.empty(); due_.pop()) {
    if (due_.top().group != event.group) others.push(due_.top());
  }
  due_ = std::move(others);
  AdmitHeld(time);
  return event;
}

std::optional<Timeline::Event> Timeline::Next() {
  while (!due_.empty()) {
    const auto [now, phase, turn, group] = due_.top();
    if (auto failure = TakeFailure(now)) return failure;
    due_.pop();
    Step& step = steps_[static_cast<std::size_t>(group)];
    switch (phase) {
      case Phase::kActivations:
        in_free_ = std::max(now, in_free_) + step.crossing_seconds;
        head_free_ = std::max(in_free_, head_free_) + step.head_seconds;
        Expect(head_free_, Phase::kHead, group);
        break;
      case Phase::kHead: {
        ComputeBackward(step, group, now);
        Event event{.group = group, .begin = step.begin, .computed = now, .end = now};
        event.head = true;
        return event;
      }
      case Phase::kSum:
        in_free_ = std::max(now, in_free_) + link_seconds_;
        Expect(in_free_, Phase::kReceived, group);
        break;
      case Phase::kReceived:
        held_.push_back(group);
        AdmitHeld(now);
        break;
      case Phase::kUpdated:
        return Update(group, now);
    }
  }
  return std::nullopt;
}

void Timeline::AdmitHeld(double now) {
  const auto may = [this](int group) { return MayUpdate(group); };
  while (true) {
    const auto free = std::find_if(held_.begin(), held_.end(), may);
    if (free == held_.end()) return;
    const int group = *free;
    held_.erase(free);
    Admit(group, now);
  }
}

void Timeline::Admit(int group, double now) {
  Step& step = steps_[static_cast<std::size_t>(group)];
  step.admitted = true;
  ++admitted_;
  under_way_.erase({step.read, group});
  if (!step.alone) now = server_free_ = std::max(now, server_free_) + options_.server_seconds;
  due_.push({now, Phase::kUpdated, turns_++, group});
}

Timeline::Event Timeline::Update(int group, double end) {
  Step& step = steps_[static_cast<std::size_t>(group)];
  for (const std::size_t member : step.members) group_of_[member] = -1;
  step.under_way = false;
  Event event{.group = group,
              .begin = step.begin,
              .computed = step.computed - step.waited,
              .end = end,
              .staleness = updates_ - step.read,
              .compute_seconds = std::move(step.compute_seconds)};
  ++updates_;
  return event;
}

}  // namespace motley::sim
