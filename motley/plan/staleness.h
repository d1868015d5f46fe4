#ifndef MOTLEY_PLAN_STALENESS_H_
#define MOTLEY_PLAN_STALENESS_H_

#include <cstdint>
#include <map>
#include <vector>

namespace motley::plan {

// How stale updates were: how many updates of others were applied between a group's read of the
// model and its own.
//
// Thread safety: none.
class StalenessHistogram {
 public:
  // Requires staleness >= 0.
  void Add(std::int64_t staleness);
  // Halves every count, so that what is new weighs more than what is old.
  void Fade();

  // By staleness, from 0; the last one is not 0.
  const std::vector<std::int64_t>& counts() const { return counts_; }
  std::int64_t total() const { return total_; }
  double mean() const;  // 0 when empty
  // Their parts of the total; empty when there is none.
  std::vector<double> parts() const;

 private:
  std::vector<std::int64_t> counts_;
  std::int64_t total_ = 0;
};

// How far apart the updates of one group are, and how much that varies: what staleness depends on
// besides the number of groups. Of all groups together.
//
// Thread safety: none.
class UpdateIntervals {
 public:
  // An update of this group, at this time of any clock. Requires times that do not fall.
  void Add(int group, double now_seconds);
  // The next update of each group ends no interval: something else came between.
  void Interrupt() { last_.clear(); }

  double mean_seconds() const;  // 0 without intervals
  // Of the log-normal distribution with the same mean and variance: what `lognormal:SIGMA` of a
  // virtual device takes. 0 with fewer than two intervals.
  double sigma() const;

 private:
  std::map<int, double> last_;
  std::int64_t count_ = 0;
  double sum_ = 0.0, sum_of_squares_ = 0.0;
};

}  // namespace motley::plan

#endif  // MOTLEY_PLAN_STALENESS_H_
