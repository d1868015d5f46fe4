#ifndef MOTLEY_APPS_MOTLEY_PROGRESS_H_
#define MOTLEY_APPS_MOTLEY_PROGRESS_H_

#include <cstdint>
#include <mutex>
#include <optional>
#include <string>

#include "apps/motley/console.h"
#include "motley/base/clock.h"
#include "motley/run/trainer.h"

namespace motley::app {

// "epoch 3/30  step 1200/9000  loss 0.412  acc 0.861  2143 samples/s  ETA 14m02s", without the
// least important parts where `width` columns do not hold them all.
std::string ProgressLine(const run::Progress& progress, std::optional<std::int64_t> epochs,
                         int width);

// Shows a training run to somebody who watches: one line that updates itself on a terminal; plain
// lines, at most one in five seconds and one per epoch, elsewhere.
//
// Thread safety: all calls from any thread.
class ProgressView {
 public:
  ProgressView(Console console, const base::Clock& clock);

  // How many epochs there will be at most; none: unknown.
  void set_epochs(std::optional<std::int64_t> epochs);

  void OnStep(const run::Progress& progress);
  void OnEpoch(std::uint64_t epoch, const run::Evaluation& test);
  // A line of its own, below what was shown so far.
  void Line(const std::string& text);

 private:
  void PutLine(const std::string& text);
  // Never throws: a reader who went away does not end a run. The stream keeps that it failed.
  void Put(const std::string& text);
  double Elapsed() const { return clock_.Now() - start_; }

  const Console console_;
  const base::Clock& clock_;
  const double start_;
  std::mutex mutex_;
  std::optional<std::int64_t> epochs_;
  double next_shown_ = 0.0;
  bool updating_line_shown_ = false;
  std::optional<run::Progress> last_;
};

}  // namespace motley::app

#endif  // MOTLEY_APPS_MOTLEY_PROGRESS_H_
