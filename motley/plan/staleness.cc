#include "motley/plan/staleness.h"

#include <algorithm>

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

}  // namespace motley::plan
