#include "motley/sim/timeline.h"

#include <algorithm>
#include <cmath>

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
  step.members.clear();
  step.compute_seconds.clear();
  step.compute_seconds.reserve(work.size());
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
  for (const Work& one : work) {
    const TimedDevice& device = options_.devices[one.device];
    const double factor = device.service.Factor(keys_[one.device], draws_[one.device]++);
    const double end = device.pace.FinishTime(start, device.curve.At(one.samples) * factor);
    step.compute_seconds.push_back(end - start);
    step.computed = std::max(step.computed, end);
  }
  double arrival = step.computed + ReductionSeconds(step.members);
  if (!alone) arrival += options_.latency_seconds + OwnLinkSeconds(step.members);
  arrivals_.emplace(arrival, group);
}

std::optional<int> Timeline::NextGroup() const {
  for (const auto& [received, group] : held_) {
    if (MayUpdate(group)) return group;
  }
  if (arrivals_.empty()) return std::nullopt;
  return arrivals_.top().second;
}

bool Timeline::MayUpdate(int group) const {
  if (options_.max_staleness == 0) return true;
  // Those who read the model earlier may still update before another one does; counting them in,
  // the oldest is never kept waiting.
  std::int64_t before = 0;
  for (const auto& [read, other] : under_way_) {
    if (other == group) return true;
    if (updates_ + 1 - read + before++ > options_.max_staleness) return false;
  }
  return true;
}

std::optional<Timeline::Event> Timeline::TakeFailure(double before) {
  if (failures_.empty() || failures_.back().first > before) return std::nullopt;
  const auto [time, device] = failures_.back();
  failures_.pop_back();
  last_event_ = time;
  Event event{.group = group_of_[device], .begin = time, .computed = time, .end = time};
  event.lost = device;
  if (event.group < 0) return event;
  Step& step = steps_[static_cast<std::size_t>(event.group)];
  for (const std::size_t member : step.members) group_of_[member] = -1;
  step.under_way = false;
  under_way_.erase({step.read, event.group});
  std::erase_if(held_, [&](const auto& held) { return held.second == event.group; });
  // Rare: the heap is made anew without it.
  decltype(arrivals_) others;
  for (; !arrivals_.empty(); arrivals_.pop()) {
    if (arrivals_.top().second != event.group) others.push(arrivals_.top());
  }
  arrivals_ = std::move(others);
  return event;
}

std::optional<Timeline::Event> Timeline::Next() {
  while (true) {
    const auto free = std::find_if(held_.begin(), held_.end(),
                                   [this](const auto& held) { return MayUpdate(held.second); });
    if (free != held_.end()) {
      const double end = std::max(last_event_, server_free_) + options_.server_seconds;
      if (auto failure = TakeFailure(end)) return failure;
      const int group = free->second;
      held_.erase(free);
      return Update(group, end);
    }
    if (arrivals_.empty()) return std::nullopt;
    const auto [arrival, group] = arrivals_.top();
    const bool alone = steps_[static_cast<std::size_t>(group)].alone, may = MayUpdate(group);
    const double received = alone ? arrival : std::max(arrival, in_free_) + link_seconds_;
    const double updated =
        alone ? arrival : std::max(received, server_free_) + options_.server_seconds;
    if (auto failure = TakeFailure(may ? updated : received)) return failure;
    arrivals_.pop();
    if (!alone) in_free_ = received;
    if (may) return Update(group, updated);
    held_.emplace_back(received, group);
  }
}

Timeline::Event Timeline::Update(int group, double end) {
  Step& step = steps_[static_cast<std::size_t>(group)];
  last_event_ = end;
  if (!step.alone) server_free_ = end;
  for (const std::size_t member : step.members) group_of_[member] = -1;
  step.under_way = false;
  under_way_.erase({step.read, group});
  Event event{.group = group,
              .begin = step.begin,
              .computed = step.computed,
              .end = end,
              .staleness = updates_ - step.read,
              .compute_seconds = std::move(step.compute_seconds)};
  ++updates_;
  return event;
}

}  // namespace motley::sim
