#ifndef MOTLEY_TESTS_TUNE_CLUSTER_MODEL_H_
#define MOTLEY_TESTS_TUNE_CLUSTER_MODEL_H_

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "motley/base/clock.h"
#include "motley/base/rng.h"
#include "motley/tune/balancer.h"

namespace motley::tune {

// What a device of the model truly is; the tests change it while the job runs.
struct ModelDevice {
  double fixed_seconds = 0.0;
  double seconds_per_sample = 0.001;
  double slowdown = 1.0;
  double pressure = 0.0;  // what its kernel would tell
  std::int64_t cap = plan::kNoCap;
  std::int64_t private_samples = 0;
  double communication_seconds = 0.0;
  std::optional<plan::PowerProfile> power;
  bool probed = true;
};

// A cluster on a virtual clock, reduced to what a controller sees of it: a step takes as long as
// its slowest device.
class ClusterModel {
 public:
  explicit ClusterModel(const BalancerOptions& options, std::uint64_t seed = 1)
      : balancer_(options, clock_), rng_(seed) {}

  // Known to the balancer from now on, by the curve of its probe at full speed.
  void Join(const std::string& name, const ModelDevice& device);
  void Lose(const std::string& name, const std::string& reason);
  void End() { Tell(plan::JobEnded{}); }
  ModelDevice& operator[](const std::string& name) { return devices_.at(name); }

  void Step();
  void RunSteps(int steps) {
    for (int i = 0; i < steps; ++i) Step();
  }
  void RunSeconds(double seconds, const std::function<void(double now)>& before_step = {});
  // Goes on until a new plan comes or the limit is over; how many seconds and steps it took.
  struct Waited {
    double seconds = 0.0;
    int steps = 0;
    bool planned = false;
    // "Within 3 s or 10 steps, whichever is later", to the end of the step that is under way then.
    bool InTime() const { return planned && (seconds <= 3.5 || steps <= 10); }
  };
  Waited RunToNextPlan(double limit_seconds = 60.0,
                       const std::function<void(double now)>& before_step = {});

  std::int64_t ShareOf(const std::string& name) const;
  std::int64_t Batch() const;
  const std::vector<plan::Plan>& plans() const { return plans_; }
  const plan::Plan& plan() const { return plans_.back(); }
  int decisions() const;
  const std::vector<plan::Note>& notes() const { return notes_; }
  std::vector<plan::Note> NotesOf(const std::string& event) const;
  double now() const { return clock_.Now(); }
  double step_seconds() const { return step_seconds_; }

  double noise = 0.0;                    // of every compute time: standard deviation
  std::optional<double> gradient_noise;  // what the executor would measure
  double beat = 0.0;           // seconds between two heartbeats, which tell the pressure; 0: none
  bool tells_exchange = true;  // as a ring of devices does not
  double stall = 0.0;  // seconds that the next step of every device takes longer; then 0 again

 private:
  void Tell(const plan::Event& event);
  void Pass(double seconds);

  base::VirtualClock clock_;
  Balancer balancer_;
  base::Rng rng_;
  std::map<std::string, ModelDevice> devices_;
  std::vector<plan::Plan> plans_;
  std::vector<plan::Note> notes_;
  std::int64_t step_ = 0;
  double step_seconds_ = 0.0;
};

// Whether these words are in the plan's reason.
bool Says(const plan::Plan& plan, const std::string& words);

// The number of this name; a failure of the test when there is none.
double Number(const plan::Note& note, const std::string& name);

}  // namespace motley::tune

#endif  // MOTLEY_TESTS_TUNE_CLUSTER_MODEL_H_
