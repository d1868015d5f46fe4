#ifndef MOTLEY_TUNE_BALANCER_H_
#define MOTLEY_TUNE_BALANCER_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "motley/base/clock.h"
#include "motley/plan/balance.h"
#include "motley/plan/controller.h"
#include "motley/plan/energy_plan.h"
#include "motley/plan/groups.h"
#include "motley/plan/plan_record.h"
#include "motley/tune/monitor.h"

namespace motley::tune {

enum class Objective { kTime, kEnergy };

struct BalancerOptions {
  std::int64_t batch = 0;
  std::int64_t multiple = 1;        // of shares: train.bn_batch
  int groups = 1;                   // cluster.groups; fewer while there are fewer devices
  std::int64_t public_samples = 0;  // in an epoch
  std::int64_t epochs = 0;          // from now to the end of the job; 0: nobody knows
  bool keep = true;                 // retune while it runs; false: balanced at the start only
  Objective objective = Objective::kTime;
  std::optional<double> deadline_seconds;  // of the job, with kEnergy
  // Of a step, for every device that takes part in it but the first, with kEnergy.
  double moving_joules = 0.0;
};

// tune = "once" and "shares": gives each device the share that it can do in the same time as the
// others, and keeps it so while devices are slowed down and recover.
//
// A device starts with the curve of its probe. While it runs, the curve is scaled by what the
// monitor sees. A new plan is made when it has looked at least 5 % faster than the present one for
// 0.15 s, and not sooner than 2 s and 4 steps after the last; at once when the kernel says that a
// device waits for its processor and the plan would be 20 % faster: after two steps, or after the
// first when the kernel has said so in the middle of it. A device that has no
// share is tried again with a few samples from time to time, rarely enough to cost at most 5 %.
//
// The exchange of gradient and model takes what it took at joining, until the executor tells more:
// then it follows what nine of ten of the last 20 steps took at least, up and down, when that is
// another by 5 % of a step.
//
// Differences that are smaller than that, but last, are refined away: when the devices' median
// compute times differ by more than 2 %, and by more than chance, over 10 steps of a plan, or 20,
// 40, 80 or 160. One that follows another soon needs twice the rest, so that plans do not
// alternate.
//
// With several groups, groups that need the same time for a batch are formed when a device comes or
// goes; meanwhile shares are balanced inside of each, and a gain is one of all groups together.
//
// The batch stays what the job says. When the devices cannot do it (memory, or only a few are
// left), the plan does what they can, and the learning rate follows the gain of the smaller batch,
// or its size where the gradient noise is not known. It is decided anew when the noise becomes
// known, and when it has changed so much that the factor is off by 20 %.
//
// Every plan, those that try a device included, is noted with its reason, what of the private
// samples does not fit into it, and the seconds per step that it predicts, with kEnergy the joules
// as well; some steps later, or when another one replaces it, what came of it.
//
// Thread safety: none.
class Balancer final : public plan::Controller {
 public:
  // The clock outlives the balancer.
  Balancer(const BalancerOptions& options, const base::Clock& clock);

  std::optional<plan::Plan> OnEvent(const plan::Event& event) override;
  std::vector<plan::Note> TakeNotes() override;

 private:
  struct Device {
    std::string name;
    plan::SpeedCurve curve;  // of the probe
    double pace = 1.0;       // by which the curve is scaled in the present plan
    double communication_seconds = 0.0, planned_communication = 0.0;
    std::optional<plan::PowerProfile> power;
    std::int64_t private_samples = 0;
    std::int64_t share = 0;
    int group = 0;
    double next_try = 0.0;  // without a share: when it gets one again
    Monitor monitor;
    // Of the look: seconds, against the curve, and of the steps without them.
    std::vector<double> compute, ratios, besides;
    std::vector<double> exchange;  // seconds, of the last steps whatever the plan, round and round
    std::size_t exchanges = 0;
  };
  // At how the present plan does, over more and more of its steps.
  struct Look {
    std::int64_t steps = 0;  // it ends with so many of each group
    std::vector<double> measured;
    std::vector<double> joules;  // with planned ones
    std::size_t before = 0;      // how many of these were seen before the last decision
  };

  std::optional<plan::Plan> OnStep(const plan::StepDone& step);
  // The curves as they are now, if `measured`, or as the present plan took them.
  std::vector<plan::Candidate> Candidates(const std::vector<double>& paces) const;
  std::vector<double> MeasuredPaces(bool hurried) const;
  double MeasuredPace(const Device& device, bool hurried) const;
  // How much shorter steps could be with these paces: 1.1 is 10 %.
  double Gain(const std::vector<double>& paces) const;
  std::int64_t LeastOf(const Device& device, std::int64_t samples_of_an_epoch) const;
  std::int64_t SamplesOfAnEpoch() const;
  std::int64_t SamplesLeft() const;
  double SecondsLeft() const;  // to the deadline, which there must be
  // The present plan would miss it, and another one may not.
  bool BehindTheDeadline() const;
  // The best shares of the present groups with these paces.
  base::Result<plan::Grouped> BestShares(const std::vector<double>& paces) const;
  // Groups and shares that only follow the private samples, when there are too many of them.
  plan::Grouped SharesByPrivacy(const std::vector<plan::Candidate>& candidates) const;
  int Groups() const;
  plan::Plan PresentPlan(const std::string& reason, double predicted_seconds) const;
  std::string PresentWords() const;  // the shares
  std::string FewSamples() const;    // of a trial
  // What of the private samples does not fit, for people: into a device's memory; into the time, or
  // the joules, that a step would take if they could be done anywhere. Empty when they do.
  std::string TooMuchForMemory() const;
  std::string TooMuchForTheTime(const std::vector<plan::Candidate>& candidates,
                                const plan::Grouped& grouped) const;
  std::string TooMuchForTheEnergy(const plan::EnergyGoal& goal, const plan::EnergyPlan& chosen,
                                  std::vector<plan::EnergyCandidate> powered) const;
  std::string NamesOf(const std::vector<std::size_t>& devices) const;  // the first of many
  // The plan with the fewest joules, and what does not fit into it; none when a device does not
  // state its watts.
  std::optional<plan::EnergyPlan> FewestJoules(const std::vector<plan::Candidate>& candidates,
                                               std::string& misfit) const;
  // Decides anew with these paces.
  plan::Plan Decide(const std::vector<double>& paces, const std::string& reason);
  plan::Plan Adopt(plan::Grouped grouped, std::optional<double> joules, const std::string& reason);
  // The shares as they stand in devices_ now, as a decision.
  plan::Plan NotePlan(const std::string& before, const std::string& reason,
                      const plan::StepCost& predicted);
  std::string WhatChanged(const std::vector<double>& paces, bool hurried) const;
  std::optional<plan::Plan> Retune(double now);
  std::optional<plan::Plan> TryIdle();
  // After the step in which an idle device was tried, which took `ratio` times what its curve says
  // (0: it did nothing), with so many seconds for the exchange (negative: nobody knows).
  plan::Plan JudgeTrial(const plan::StepDone& step, double ratio, double exchange_seconds);
  // Decides the learning rate's factor for steps of so many samples. The words for the reason;
  // empty when it is the whole batch.
  std::string SetLearningRate(std::int64_t samples);
  // When the present factor does not fit the gradient noise.
  std::optional<plan::Plan> FollowNoise();
  double NextTry(const Device& device) const;
  // Looks at the step. When there are enough of them: tells what came of the present plan and, when
  // the devices turn out not to finish together, gives a plan by what they needed.
  std::optional<plan::Plan> Judge(const plan::StepDone& step);
  void BeginLook(std::int64_t steps);
  bool LookAt(const plan::StepDone& step);      // whether these are enough
  double JoulesOf(const plan::StepDone& step);  // by the watts of all and the times it took
  // What was measured at joining, once and while others joined, may be far too much.
  void LowerCommunication();
  // A step in which the exchange with the device took so long, as far as that was told.
  void FollowExchange(Device& device, double seconds) const;
  bool ExchangeHasChanged(const Device& device, double before, double now) const;
  plan::PlanRecord::Seen Seen() const;  // of the present plan
  std::optional<plan::Plan> Refine();
  // By how much the compute times of a group's devices differ in the steps of the look, in the
  // group where that is most.
  double Spread() const;
  // The same of two devices whose difference is more than chance: a device whose times vary much
  // does not hide how far the others are apart.
  double SureSpread() const;
  Device* Find(const std::string& name);

  const BalancerOptions options_;
  const base::Clock& clock_;
  const double start_;
  std::vector<Device> devices_;
  std::size_t last_found_ = 0;
  double planned_at_ = 0.0, planned_seconds_ = 0.0;
  std::optional<double> planned_joules_;  // of a step, where the plan is one for energy
  std::int64_t planned_samples_ = 0;      // of a step
  bool late_anyway_ = false;              // no plan meets the deadline
  std::vector<double> group_seconds_;     // of a step, as planned
  bool regroup_ = false;                  // devices came or went since the groups were formed
  std::optional<double> noise_;           // the gradient noise scale, once it is known
  double rate_factor_ = 1.0;              // of the learning rate in the present plan,
  std::optional<double> rate_noise_;      // for this noise scale,
  std::int64_t rate_steps_ = 0;           // and so many steps old
  std::optional<double> better_since_;    // there is a better plan
  std::int64_t steps_since_ = 0, samples_done_ = 0;
  int steps_unseen_ = 0;                    // since the last look at whether another plan is better
  std::optional<std::size_t> tried_;        // this idle device has a few samples in this step
  std::vector<std::int64_t> tried_before_;  // the shares to go back to
  int tried_steps_ = 0;                     // of its group without it since then
  double refined_at_ = 0.0, refine_rest_ = 0.0;  // when, and for how long not again
  Look look_;
  plan::PlanRecord record_;
  std::vector<plan::Note> notes_;
};

}  // namespace motley::tune

#endif  // MOTLEY_TUNE_BALANCER_H_
