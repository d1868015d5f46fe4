#ifndef MOTLEY_OPTIM_SCHEDULE_H_
#define MOTLEY_OPTIM_SCHEDULE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "motley/base/status.h"

namespace motley::optim {

// The learning rate as a factor of its base value, over the course of a job. Progress is measured
// in epochs, because steps change their length when the batch does.
//
//   constant
//   step:E1,E2,…[:FACTOR]   times FACTOR (default 0.1) at each of these epochs
//   cosine:E                half a cosine from 1 to 0 over E epochs
// and on top of it a linear warm-up over the first `warmup_steps` steps.
class Schedule {
 public:
  Schedule() = default;
  // Fails with the accepted forms.
  static base::Result<Schedule> Parse(const std::string& text, std::int64_t warmup_steps = 0);

  // `step` counts from 0; `epoch` is fractional.
  double Factor(std::int64_t step, double epoch) const;

 private:
  enum class Kind { kConstant, kStep, kCosine };
  Kind kind_ = Kind::kConstant;
  std::vector<double> milestones_;
  double factor_ = 0.1;
  double length_ = 1.0;
  std::int64_t warmup_steps_ = 0;
};

}  // namespace motley::optim

#endif  // MOTLEY_OPTIM_SCHEDULE_H_
