#ifndef MOTLEY_TUNE_MONITOR_H_
#define MOTLEY_TUNE_MONITOR_H_

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace motley::tune {

// Watches how long a device computes against what its speed curve says, and tells a lasting change
// from a spike.
//
// The pace is measured over the last 2 s and at least 7 steps: enough for a change that nobody can
// take for noise. In a hurry half a second and 2 steps do: when the kernel says that somebody else
// wants the processor, more than is usual here. Then the fastest of them counts, so that a single
// slow one means nothing. When the kernel has said so for half a second in the middle of a step,
// and until its end, that step alone does: it is no spike. A small change needs 8 s and 16 steps.
// While nearly all of them agree, or are far from the pace of the plan on the same side of it, the
// pace is their median; else the speed is just changing, and there is none. A device whose speed
// has turned four times in 10 s, spikes of one step left out, is unsteady until it has kept its
// speed for 2.2 s and 8 steps: it is taken at its mean over 8 s, so that plans do not follow it
// back and forth.
//
// Thread safety: none.
class Monitor {
 public:
  // A step that took `ratio` times what the curve says, which ended at `now`.
  // `pressure`: the part of the time in which the kernel let it, or others there, wait.
  void Add(double now, double ratio, double pressure);
  // In the middle of a step: what `pressure` of Add is, lately.
  void Warn(double now, double pressure);
  // When the step that will be added next began: what the kernel said before is not of it.
  void StepBegan(double then);
  // One that had to end at its deadline: no further sign is needed.
  void AddStopped(double now, double ratio);
  // The plan has changed, and takes the device at this pace: what was measured before says nothing
  // about the next steps, but for whether the device is unsteady and what pressure is usual.
  void Forget(double pace);

  // Whether enough was seen to say anything.
  bool Ready(bool hurried) const;
  // How much slower the device is than its curve: 1 as fast, 2 half as fast. Requires Ready of the
  // same.
  double Pace(bool hurried) const;
  // Over the long time, if that has passed at one speed.
  std::optional<double> LongPace() const;
  bool Unsteady() const;
  // Whether the last step was far from the pace of the plan, and nobody can say yet what it means.
  bool Undecided() const;
  // Whether the kernel's own signs show that the device is being slowed down.
  bool pressed() const;
  // What these are, as the end of a sentence; empty without any.
  const char* PressureWords() const;

 private:
  struct Seen {
    double time = 0.0, ratio = 0.0;
    bool sign = false;    // that the device is being slowed down,
    bool warned = false;  // and that before the step had ended
  };
  struct Turn {
    double time = 0.0;
    std::int64_t step = 0;
  };
  // Those of the long time. Every step of every device adds one, and few are looked at: `seen_` has
  // older ones too, until there is no room for another.
  std::span<const Seen> Recent() const;
  // The last of them that decide.
  std::span<const Seen> Window(bool hurried) const;

  // Whether these are of one speed, as far as the noise of a shared machine goes, or at least of no
  // speed near that of the plan.
  bool Clear(const std::vector<double>& ratios) const;
  bool MoreThanUsual(double pressure) const;
  // Whether the last step was one in which the device was slowed down to its end.
  bool Warned() const;
  void See(double now, double ratio, bool sign);
  void FollowTurns(double now, double ratio);

  double planned_ = 1.0;  // pace
  std::vector<Seen> seen_;
  // The last ones, up or down, of which the oldest is overwritten next.
  static constexpr std::size_t kTurns = 4;
  std::array<Turn, kTurns> turns_;
  std::size_t turned_ = 0;
  double extreme_ = 0.0;  // the largest ratio since it turned up, or the smallest since down
  double turn_ = 0.0;     // the ratio below which, or above which, the speed has turned
  bool rising_ = true;
  std::int64_t steps_ = 0;
  double now_ = 0.0;                             // the end of the last step
  double before_[2] = {0.0, 0.0};                // the last two ratios
  double warned_from_ = 0.0, warned_to_ = -1.0;  // since the last step; none: to < from
  std::optional<double> usual_;                  // pressure
  double deviation_ = 0.1;                       // from it, usually: at first unknown
};

}  // namespace motley::tune

#endif  // MOTLEY_TUNE_MONITOR_H_
