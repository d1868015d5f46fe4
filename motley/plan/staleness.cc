#include "motley/plan/staleness.h"

#include <algorithm>
#include <cmath>

#include "motley/base/check.h"

namespace motley::plan {

void StalenessHistogram::Add(std::int64_t staleness) {
  MOTLEY_CHECK(staleness >= 0, "a staleness of {}", staleness);
  const auto at = static_cast<std::size_t>(staleness);
  if (at >= counts_.size()) counts_.resize(at + 1);
  ++counts_[at];
  ++total_;
}

void StalenessHistogram::Fade() {
  total_ = 0;
  for (std::int64_t& count : counts_) {
    count /= 2;
    total_ += count;
  }
  while (!counts_.empty() && counts_.back() == 0) counts_.pop_back();
}

double StalenessHistogram::mean() const {
  double sum = 0.0;
  for (std::size_t i = 0; i < counts_.size(); ++i) {
    sum += static_cast<double>(i) * static_cast<double>(counts_[i]);
  }
  return total_ == 0 ? 0.0 : sum / static_cast<double>(total_);
}

std::vector<double> StalenessHistogram::parts() const {
  std::vector<double> parts;
  for (const std::int64_t count : counts_) {
    parts.push_back(static_cast<double>(count) / static_cast<double>(total_));
  }
  return parts;
}

void UpdateIntervals::Add(int group, double now_seconds) {
  const auto [last, first] = last_.try_emplace(group, now_seconds);
  if (first) return;
  const double interval = now_seconds - last->second;
  MOTLEY_CHECK(interval >= 0.0, "an update {} s before the last one", -interval);
  last->second = now_seconds;
  ++count_;
  sum_ += interval;
  sum_of_squares_ += interval * interval;
}

double UpdateIntervals::mean_seconds() const {
  return count_ == 0 ? 0.0 : sum_ / static_cast<double>(count_);
}

double UpdateIntervals::sigma() const {
  const double mean = mean_seconds();
  if (count_ < 2 || mean == 0.0) return 0.0;
  const double variance = sum_of_squares_ / static_cast<double>(count_) - mean * mean;
  return std::sqrt(std::log1p(std::max(0.0, variance) / (mean * mean)));
}

}  // namespace motley::plan
