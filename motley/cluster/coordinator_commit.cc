// What came of a step: whether it counts, and the account of it.
#include <algorithm>
#include <cmath>
#include <utility>

#include "motley/cluster/coordinator_impl.h"
#include "motley/run/update.h"

namespace motley::cluster {
namespace {

constexpr double kShortEventSeconds = 10.0;

// The samples of a part that a member has done.
std::vector<std::pair<std::int64_t, std::int64_t>> DoneOf(const proto::Done& done,
                                                          std::int64_t samples) {
  std::vector<std::pair<std::int64_t, std::int64_t>> ranges;
  for (const proto::Span& span : done.done()) ranges.emplace_back(span.begin(), span.end());
  if (ranges.empty() && done.samples() == samples && samples > 0) ranges.emplace_back(0, samples);
  return ranges;
}

}  // namespace

bool Coordinator::Impl::CheckDone(const Group& group) {
  bool right = true;
  for (std::size_t i = 0; i < group.members.size(); ++i) {
    const SessionPtr& member = group.members[i];
    const proto::Done& done = *member->done;
    const std::int64_t samples = group.parts[i].samples();
    std::int64_t counted = 0, position = 0;
    bool sorted = true;
    for (const auto& [begin, end] : DoneOf(done, samples)) {
      sorted = sorted && begin >= position && end > begin && end <= samples;
      if (!sorted) break;
      position = end;
      counted += end - begin;
    }
    const bool may_stop = group.deadline > 0.0;
    const bool fits = sorted && counted == done.samples() && (may_stop || counted == samples);
    const bool sent =
        options_.gloo || samples == 0 || model_.SamplesOf(member->name) == done.samples();
    if (fits && sent) continue;
    right = false;
    SendAway(member, fmt::format("it did {} samples instead of {}", done.samples(), samples));
  }
  return right;
}

bool Coordinator::Impl::CheckEvaluated(const std::vector<std::int64_t>& shares) {
  bool right = true;
  std::vector<SessionPtr> bad;
  for (std::size_t i = 0; i < members_.size(); ++i) {
    const proto::Done& done = *members_[i]->done;
    if (!std::isfinite(done.loss_sum())) bad.push_back(members_[i]);
    if (done.samples() == shares[i]) continue;
    right = false;
    SendAway(members_[i],
             fmt::format("it did {} samples instead of {}", done.samples(), shares[i]));
  }
  return !SendSuspectsAway(bad, "its loss in the test is not finite, and the others' is") && right;
}

bool Coordinator::Impl::SendSuspectsAway(const std::vector<SessionPtr>& bad,
                                         const std::string& reason) {
  // Some of them may be broken machines; when it happens to everybody, it is the training.
  if (bad.size() == members_.size()) return false;
  for (const SessionPtr& member : bad) SendAway(member, reason);
  suspects_ = suspects_ || !bad.empty();
  return !bad.empty();
}

bool Coordinator::Impl::JudgeGradients(const Group& group, run::Update& update) {
  std::vector<SessionPtr> bad;
  for (const SessionPtr& member : group.members) {
    if (!member->done) continue;
    if (!member->done->finite() || !std::isfinite(member->done->loss_sum())) bad.push_back(member);
  }
  if (SendSuspectsAway(bad, "its gradient is not finite, and the others' are")) return false;
  if (!bad.empty()) update.not_finite = "the loss or a gradient";
  return true;
}

run::Update Coordinator::Impl::Commit(int number, Group& group) {
  run::Update update;
  update.group = number;
  update.staleness = step_ - group.version;
  plan::StepDone event{.step = step_ + 1, .group = number, .staleness = update.staleness};
  const double now = clock_.Now();
  const std::int64_t planned = SamplesOf(group.parts);
  for (std::size_t i = 0; i < group.members.size(); ++i) {
    const SessionPtr& member = group.members[i];
    const proto::Done& done = *member->done;
    const auto committed = pools_.Commit(group.parts[i], DoneOf(done, group.parts[i].samples()));
    MOTLEY_CHECK(committed.ok(), "{}", committed.message());
    update.samples += done.samples();
    update.loss_sum += done.loss_sum();
    update.correct += done.correct();
    update.compute_seconds = std::max(update.compute_seconds, done.compute_seconds());
    Account(member, now);
    if (group.parts[i].samples() > 0) Learn(*member, group, now);
    event.parts.push_back({member->name, done.samples(), done.compute_seconds(), done.pressure(),
                           ExchangeSeconds(group, member)});
  }
  if (head_ != nullptr) {
    const HeadServer::Outcome head = head_->outcome(number)->value();
    update.loss_sum = head.loss_sum;
    update.correct = head.correct;
    update.compute_seconds += head.seconds;
    head_->Commit(number);
  }
  update.compute_spread = plan::ComputeSpread(event);
  event.short_step = update.samples < planned;
  if (event.short_step) TellShortStep(update, planned);
  const ModelServer::Norms norms = options_.gloo ? ReportedNorms(group) : model_.norms(number);
  noise_.Add(norms.contributors, norms.total_squared);
  event.noise = noise_.value();
  if (!options_.gloo) {
    const std::vector<float> sum = watch_.Sample(model_.sum(number));
    model_.Commit(number);
    ++model_step_;
    const auto sgd = run::ForFewer(group.sgd, update.samples, planned);
    update.coordinate_momentum =
        watch_.Add(update.staleness, sum, update.samples, static_cast<double>(sgd.learning_rate),
                   watch_.Sample(model_.weights()));
  }
  ++step_;
  CommitAtShards(number, {group.generation, step_});
  group.busy = false;
  group.version = step_;
  suspects_ = false;
  ForgetClaims();
  ++group.steps_of_plan;
  for (std::size_t i = 0; i < group.members.size(); ++i) {
    const SessionPtr& member = group.members[i];
    member->version = step_;
    member->committed = update.samples;
    if (options_.gloo) continue;
    const bool shares = group.parts[i].samples() > 0;
    if (!group.alone || !shares) SendModel(member, {group.generation, step_}, /*whole=*/!shares);
    CheckTaken(member);
  }
  group.parts.clear();
  const double seconds = now - group.began;
  usual_seconds_ = usual_seconds_ == 0.0 ? seconds : 0.9 * usual_seconds_ + 0.1 * seconds;
  if (update.samples > 0) last_loss_ = update.loss_sum / static_cast<double>(update.samples);
  event.seconds = seconds;
  Tell(event);
  ShowProgress();
  return update;
}

ModelServer::Norms Coordinator::Impl::ReportedNorms(const Group& group) {
  ModelServer::Norms norms;
  for (const SessionPtr& member : group.members) {
    norms.contributors.push_back({member->done->samples(), member->done->squared()});
    norms.total_squared += member->done->sum_squared();
  }
  return norms;
}

double Coordinator::Impl::ExchangeSeconds(const Group& group, const SessionPtr& member) const {
  // In a ring, at a merged head and with hosts of the model, members wait for others meanwhile.
  if (options_.gloo || head_ != nullptr || job_.shards() > 1) return -1.0;
  const double there = std::max(member->answered, member->delivered.load());
  return std::max(0.0, there - group.began - member->done->compute_seconds());
}

void Coordinator::Impl::Account(const SessionPtr& member, double now) {
  const proto::Done& done = *member->done;
  member->samples += done.samples();
  if (done.compute_seconds() > 0) {
    member->rate = static_cast<double>(done.samples()) / done.compute_seconds();
  }
  MemberTotal& total = totals_[member->name];
  total.samples += done.samples();
  total.compute_seconds += done.compute_seconds();
  total.wait_seconds += done.wait_seconds();
  AccountPresence(member, now);
}

void Coordinator::Impl::AccountPresence(const SessionPtr& member, double now) {
  const proto::Done& done = *member->done;
  MemberTotal& total = totals_[member->name];
  total.name = member->name;
  total.device = member->device;
  total.present_seconds += now - std::exchange(member->accounted, now);
  if (member->said.has_power()) {
    total.power = plan::PowerProfile{member->said.watts_idle(), member->said.watts_busy()};
  } else if (done.has_joules() && !member->said.meter().empty()) {
    const auto readers =
        std::count_if(members_.begin(), members_.end(), [&](const SessionPtr& other) {
          return !other->said.meter().empty() && other->said.machine() == member->said.machine();
        });
    const auto part = [&](double now_at, double& before) {
      return std::max(0.0, now_at - std::exchange(before, now_at)) /
             static_cast<double>(std::max<std::ptrdiff_t>(1, readers));
    };
    total.joules += part(done.joules(), member->joules);
    total.joules_busy += part(done.joules_busy(), member->joules_busy);
    total.meter = member->said.meter();
  }
}

void Coordinator::Impl::TellShortStep(const run::Update& update, std::int64_t planned) {
  ++short_steps_;
  // A device that is slow for a while makes many of them.
  const double now = clock_.Now();
  if (now < next_short_event_) return;
  next_short_event_ = now + kShortEventSeconds;
  desk_.Event(
      "short_step",
      fmt::format("step {}: {} of {} samples were done in time; the rest is computed in "
                  "later steps, and the learning rate of this one is scaled by {:.3f} ({} "
                  "such steps so far)",
                  step_ + 1, update.samples, planned,
                  static_cast<double>(update.samples) / static_cast<double>(planned), short_steps_),
      {{"samples", std::to_string(update.samples)},
       {"of", std::to_string(planned)},
       {"so_far", std::to_string(short_steps_)}});
}

}  // namespace motley::cluster
