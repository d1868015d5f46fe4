#ifndef MOTLEY_BASE_CLOCK_H_
#define MOTLEY_BASE_CLOCK_H_

#include <atomic>

namespace motley::base {

// Seconds since an arbitrary start; never goes back. Everything that measures or limits time takes
// a Clock, so that it can be tested without sleeping.
//
// Thread safety: Now() may be called from any thread.
class Clock {
 public:
  virtual ~Clock() = default;
  virtual double Now() const = 0;
};

class RealClock final : public Clock {
 public:
  double Now() const override;
};

// Stands still until told to move.
class VirtualClock final : public Clock {
 public:
  double Now() const override { return now_.load(); }
  void Advance(double seconds) { now_.store(now_.load() + seconds); }

 private:
  std::atomic<double> now_{0.0};
};

}  // namespace motley::base

#endif  // MOTLEY_BASE_CLOCK_H_
