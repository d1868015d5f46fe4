#ifndef MOTLEY_RUN_RATE_H_
#define MOTLEY_RUN_RATE_H_

#include <cstdint>
#include <deque>

namespace motley::run {

// Samples per second over the last few seconds: steady enough to read, quick enough to show a
// machine slowing down.
class Rate {
 public:
  // Begins anew after a pause that is no part of the speed (an evaluation, a checkpoint). The last
  // value stands until there is a new one.
  void Restart(double seconds, std::int64_t samples) { points_ = {{seconds, samples}}; }

  // `samples` counts from any fixed start; both values only grow.
  void Add(double seconds, std::int64_t samples) {
    // Points closer than this are merged, so that fast steps do not fill the memory.
    constexpr double kWindow = 5.0, kSpacing = 0.05;
    const std::size_t count = points_.size();
    if (count > 1 && seconds - points_[count - 2].seconds < kSpacing) points_.pop_back();
    points_.push_back({seconds, samples});
    while (points_.size() > 2 && points_[1].seconds <= seconds - kWindow) points_.pop_front();
    const double span = points_.back().seconds - points_.front().seconds;
    if (span > 0.0) {
      value_ = static_cast<double>(points_.back().samples - points_.front().samples) / span;
    }
  }

  // 0 before anything is known.
  double value() const { return value_; }

 private:
  struct Point {
    double seconds = 0.0;
    std::int64_t samples = 0;
  };
  std::deque<Point> points_;
  double value_ = 0.0;
};

}  // namespace motley::run

#endif  // MOTLEY_RUN_RATE_H_
