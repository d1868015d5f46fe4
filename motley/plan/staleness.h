#ifndef MOTLEY_PLAN_STALENESS_H_
#define MOTLEY_PLAN_STALENESS_H_

#include <cstdint>
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

}  // namespace motley::plan

#endif  // MOTLEY_PLAN_STALENESS_H_
