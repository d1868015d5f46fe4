#include "motley/cluster/coordinator_impl.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "motley/cluster/job.h"
#include "motley/plan/shares.h"

namespace motley::cluster {
namespace {

// Steps whose samples are named to the workers ahead of time.
constexpr int kAhead = 2;
// A member that needs so many times what was planned stops and hands in what it has;
constexpr double kPatience = 5.0, kLeastDeadline = 0.25;
constexpr std::int64_t kSettleSteps = 2;  // of a new plan, without such a limit
// one that does not even do that, because it cannot stop or hardly moves, is sent away after so
// many times of this. It may come back, and is then probed anew.
constexpr double kHardPatience = 3.0, kGraceSeconds = 2.0;
constexpr double kShortEventSeconds = 10.0;

// Positions in a pool that begins at `zero`.
void Fill(const std::vector<data::Ticket>& tickets, std::int64_t zero,
          google::protobuf::RepeatedPtrField<proto::Range>& ranges) {
  for (const data::Ticket& ticket : tickets) {
    proto::Range& range = *ranges.Add();
    range.set_epoch(ticket.epoch);
    range.set_begin(ticket.begin - zero);
    range.set_end(ticket.end - zero);
  }
}

void Fill(const run::Pools::Part& from, proto::Train::Part& part) {
  Fill(from.public_tickets, 0, *part.mutable_open());
  Fill(from.private_tickets, from.private_begin, *part.mutable_own());
}

// The samples of a part that a member has done.
std::vector<std::pair<std::int64_t, std::int64_t>> DoneOf(const proto::Done& done,
                                                          std::int64_t samples) {
  std::vector<std::pair<std::int64_t, std::int64_t>> ranges;
  for (const proto::Span& span : done.done()) ranges.emplace_back(span.begin(), span.end());
  if (ranges.empty() && done.samples() == samples && samples > 0) ranges.emplace_back(0, samples);
  return ranges;
}

}  // namespace

Coordinator::Impl::Impl(const CoordinatorOptions& options, const proto::Job& job,
                        graph::Graph graph, const data::DataPair& data, run::TrainState& state,
                        run::Pools pools, plan::Controller& controller, const base::Clock& clock,
                        const CoordinatorHooks& hooks)
    : options_(options),
      graph_(std::move(graph)),
      data_(data),
      controller_(controller),
      clock_(clock),
      hooks_(hooks),
      job_(job),
      pools_(std::move(pools)),
      model_(graph_, std::move(state.weights), std::move(state.velocity), state.buffers),
      model_step_(state.step),
      step_(state.step),
      desk_(options_, job_, data_, model_, clock_, hooks_),
      service_(desk_, traffic_, options.heartbeat_seconds) {
  ShowProgress();
}

Coordinator::Impl::~Impl() { Close(); }

// --- Steps --------------------------------------------------------------------------------------

base::Result<run::Update> Coordinator::Impl::Step(const optim::SgdOptions& sgd) {
  suspects_ = 0;
  const double began = clock_.Now();
  while (true) {
    MOTLEY_RETURN_IF_ERROR(Gather());
    // The private pools of those who were there when the epoch began.
    if (ledger().committed() == 0 && KnownPools() != pools_.pools()) {
      const std::vector<run::PrivatePool> pools = KnownPools();
      std::int64_t size = pools_.public_size();
      for (const run::PrivatePool& pool : pools) size += pool.size;
      pools_ = run::Pools(data::Ledger(ledger().epoch(), size), pools_.public_size(), pools);
    }
    const Assignment parts =
        pools_.Take(PlannedBatch(), std::max<std::int64_t>(1, job_.bn_batch()), PlannedDevices());
    if (SamplesOf(parts) == 0) {
      ForgoUnreachable();
      return run::Update{};
    }
    auto update = Attempt(parts, sgd);
    if (update && update->not_finite.empty()) {
      update->wait_seconds = std::max(0.0, clock_.Now() - began - update->compute_seconds);
      return std::move(*update);
    }
    model_.Discard();
    for (const run::Pools::Part& part : parts) MOTLEY_RETURN_IF_ERROR(pools_.GiveBack(part));
    NextGeneration();
    if (update) return std::move(*update);
    formed_ = false;  // a collective that was broken off cannot be used again
  }
}

std::int64_t Coordinator::Impl::SamplesOf(const Assignment& parts) {
  std::int64_t samples = 0;
  for (const run::Pools::Part& part : parts) samples += part.samples();
  return samples;
}

std::vector<run::Pools::Device> Coordinator::Impl::PlannedDevices() const {
  std::vector<run::Pools::Device> devices;
  for (const SessionPtr& member : members_) {
    devices.push_back({member->name, 0});
    for (const plan::Share& share : plan_.shares) {
      if (share.device == member->name) devices.back().share = share.samples;
    }
    // With other private samples than those that this epoch counts with, it waits for the next.
    const auto counted =
        std::find_if(pools_.pools().begin(), pools_.pools().end(),
                     [&](const run::PrivatePool& pool) { return pool.device == member->name; });
    if (counted != pools_.pools().end() && (counted->size != member->said.private_samples() ||
                                            counted->sha256 != member->said.private_sha256())) {
      devices.back().name.clear();
    }
  }
  return devices;
}

std::int64_t Coordinator::Impl::PlannedBatch() const {
  std::int64_t planned = 0;
  for (const plan::Share& share : plan_.shares) planned += share.samples;
  // A plan for devices that are gone: anything is better than nothing.
  return planned > 0 ? std::min(planned, job_.batch()) : job_.batch();
}

void Coordinator::Impl::ForgoUnreachable() {
  for (const auto& [device, samples] : pools_.ForgoOf(PlannedDevices())) {
    desk_.Event("unreachable",
                fmt::format("{} private samples of {} were not trained on in epoch {}: it is away",
                            samples, device, ledger().epoch() + 1),
                {{"device", device}, {"samples", std::to_string(samples)}});
  }
}

std::optional<run::Update> Coordinator::Impl::Attempt(const Assignment& parts,
                                                      const optim::SgdOptions& wanted) {
  const double began = clock_.Now();
  optim::SgdOptions sgd = wanted;
  sgd.learning_rate *= static_cast<float>(plan_.learning_rate_factor);
  const std::int64_t samples = SamplesOf(parts);
  deadline_ = DeadlineOf(samples);
  BeginReduction(parts, sgd);
  proto::Order order = TrainOrder(samples, sgd);
  // What the next steps will probably be, so that their samples can be prepared.
  std::vector<Assignment> ahead;
  run::Pools forecast = pools_;
  for (int i = 0; i < kAhead; ++i) {
    ahead.push_back(forecast.Take(PlannedBatch(), std::max<std::int64_t>(1, job_.bn_batch()),
                                  PlannedDevices()));
  }
  for (std::size_t i = 0; i < members_.size(); ++i) {
    proto::Train& train = *order.mutable_train();
    train.clear_part();
    train.clear_next();
    Fill(parts[i], *train.mutable_part());
    for (const Assignment& later : ahead) {
      if (later[i].samples() > 0) Fill(later[i], *train.add_next());
    }
    members_[i]->share = parts[i].samples();
    Send(members_[i], order);
  }
  const auto summed = [this] { return options_.gloo || model_.Complete(); };
  if (Await(members_, StepLimit(), summed) != Outcome::kDone) return std::nullopt;
  if (!CheckDone(parts)) return std::nullopt;
  const auto nothing = [](const SessionPtr& member) { return member->done->samples() == 0; };
  hurried_ = std::all_of(members_.begin(), members_.end(), nothing);
  if (hurried_) return std::nullopt;  // again, and with all the time they need

  run::Update update;
  update.not_finite = JudgeGradients();
  if (update.not_finite.empty() && broken_) return std::nullopt;
  if (update.not_finite.empty() && !options_.gloo) update.not_finite = model_.not_finite();
  if (!update.not_finite.empty()) return update;
  return Commit(parts, began);
}

void Coordinator::Impl::BeginReduction(const Assignment& parts, const optim::SgdOptions& sgd) {
  if (options_.gloo) return;
  ModelServer::Step step{.key = {generation_, step_},
                         .contributors = {},
                         .samples = SamplesOf(parts),
                         .sgd = sgd,
                         .on_part = {},
                         .on_complete = [this] { desk_.Wake(); }};
  for (std::size_t i = 0; i < members_.size(); ++i) {
    if (parts[i].samples() > 0) {
      step.contributors.push_back({members_[i]->name, parts[i].samples()});
    }
  }
  const StepKey next{generation_, step_ + 1};
  step.on_part = [this, next, members = members_](int index, const ModelArray& floats) {
    const Parts::Part& part = model_.parts()[index];
    for (const SessionPtr& member : members) {
      member->parts.Push({next, proto::ARRAY_MODEL, part.offset, part.size, floats});
    }
  };
  model_.Begin(std::move(step));
}

proto::Order Coordinator::Impl::TrainOrder(std::int64_t samples,
                                           const optim::SgdOptions& sgd) const {
  proto::Order order = NewOrder();
  proto::Train& train = *order.mutable_train();
  train.set_samples(samples);
  train.mutable_sgd()->set_learning_rate(sgd.learning_rate);
  train.mutable_sgd()->set_momentum(sgd.momentum);
  train.mutable_sgd()->set_weight_decay(sgd.weight_decay);
  train.mutable_sgd()->set_nesterov(sgd.nesterov);
  train.set_deadline_seconds(deadline_);
  return order;
}

double Coordinator::Impl::DeadlineOf(std::int64_t samples) const {
  // Steps of a new size compile, and their samples may still be on their way.
  const bool usual = steps_of_plan_ >= kSettleSteps && samples == PlannedBatch();
  if (plan_.predicted_seconds <= 0.0 || !usual || hurried_) return 0.0;
  return std::max(kLeastDeadline, kPatience * plan_.predicted_seconds);
}

bool Coordinator::Impl::CheckDone(const Assignment& parts) {
  bool right = true;
  for (std::size_t i = 0; i < members_.size(); ++i) {
    const proto::Done& done = *members_[i]->done;
    const std::int64_t samples = parts[i].samples();
    std::int64_t counted = 0, position = 0;
    bool sorted = true;
    for (const auto& [begin, end] : DoneOf(done, samples)) {
      sorted = sorted && begin >= position && end > begin && end <= samples;
      position = end;
      counted += end - begin;
    }
    const bool may_stop = deadline_ > 0.0;
    const bool fits = sorted && counted == done.samples() && (may_stop || counted == samples);
    const bool sent = options_.gloo || !done.finite() || samples == 0 ||
                      model_.SamplesOf(members_[i]->name) == done.samples();
    if (fits && sent) continue;
    right = false;
    desk_.SendAway(members_[i],
                   fmt::format("it did {} samples instead of {}", done.samples(), samples));
  }
  return right;
}

bool Coordinator::Impl::CheckEvaluated(const std::vector<std::int64_t>& shares) {
  bool right = true;
  for (std::size_t i = 0; i < members_.size(); ++i) {
    const std::int64_t samples = members_[i]->done->samples();
    if (samples == shares[i]) continue;
    right = false;
    desk_.SendAway(members_[i], fmt::format("it did {} samples instead of {}", samples, shares[i]));
  }
  return right;
}

std::string Coordinator::Impl::JudgeGradients() {
  std::vector<SessionPtr> bad;
  for (const SessionPtr& member : members_) {
    if (!member->done->finite() || !std::isfinite(member->done->loss_sum())) bad.push_back(member);
  }
  if (bad.empty()) return {};
  // One of several may be a broken machine; when it happens to more of them, it is the training.
  if (bad.size() > 1 || members_.size() == 1 || suspects_ > 0) return "the loss or a gradient";
  ++suspects_;
  broken_ = true;
  desk_.SendAway(bad.front(), "its gradient is not finite, and the others' are");
  return {};
}

run::Update Coordinator::Impl::Commit(const Assignment& parts, double began) {
  run::Update update;
  plan::StepDone event{.step = step_ + 1};
  const double now = clock_.Now();
  for (std::size_t i = 0; i < members_.size(); ++i) {
    const SessionPtr& member = members_[i];
    const proto::Done& done = *member->done;
    const auto committed = pools_.Commit(parts[i], DoneOf(done, parts[i].samples()));
    MOTLEY_CHECK(committed.ok(), "{}", committed.message());
    update.samples += done.samples();
    update.loss_sum += done.loss_sum();
    update.correct += done.correct();
    update.compute_seconds = std::max(update.compute_seconds, done.compute_seconds());
    member->samples += done.samples();
    if (done.compute_seconds() > 0) {
      member->rate = static_cast<double>(done.samples()) / done.compute_seconds();
    }
    traffic_.Gradient(done.group_bytes());
    MemberTotal& total = totals_[member->name];
    total.name = member->name;
    total.device = member->device;
    total.samples += done.samples();
    total.compute_seconds += done.compute_seconds();
    total.wait_seconds += done.wait_seconds();
    total.present_seconds += now - std::exchange(member->accounted, now);
    if (member->said.has_power()) {
      total.power = plan::PowerProfile{member->said.watts_idle(), member->said.watts_busy()};
    } else if (done.has_joules()) {
      total.joules += std::max(0.0, done.joules() - std::exchange(member->joules, done.joules()));
      total.measured = true;
    }
    event.parts.push_back({member->name, done.samples(), done.compute_seconds(), done.pressure()});
  }
  if (const std::int64_t planned = SamplesOf(parts); update.samples < planned) {
    event.short_step = true;
    ++short_steps_;
    // A device that is slow for a while makes many of them.
    if (now >= next_short_event_) {
      next_short_event_ = now + kShortEventSeconds;
      desk_.Event(
          "short_step",
          fmt::format("step {}: {} of {} samples were done in time; the rest is computed in later "
                      "steps, and the learning rate of this one is scaled by {:.3f} ({} such steps "
                      "so far)",
                      step_ + 1, update.samples, planned,
                      static_cast<double>(update.samples) / static_cast<double>(planned),
                      short_steps_),
          {{"samples", std::to_string(update.samples)},
           {"of", std::to_string(planned)},
           {"so_far", std::to_string(short_steps_)}});
    }
  }
  if (!options_.gloo) {
    const ModelServer::Norms norms = model_.norms();
    noise_.Add(norms.contributors, norms.total_squared);
    event.noise = noise_.value();
    model_.Commit();
    ++model_step_;
  }
  ++step_;
  ++steps_of_plan_;
  committed_ = update.samples;
  const double seconds = now - began;
  usual_seconds_ = usual_seconds_ == 0.0 ? seconds : 0.9 * usual_seconds_ + 0.1 * seconds;
  if (update.samples > 0) last_loss_ = update.loss_sum / static_cast<double>(update.samples);
  event.seconds = seconds;
  Tell(event);
  ShowProgress();
  return update;
}

void Coordinator::Impl::StartNextEpoch() { pools_.StartNextEpoch(KnownPools()); }

base::Result<run::Evaluation> Coordinator::Impl::Evaluate() {
  while (true) {
    MOTLEY_RETURN_IF_ERROR(Gather());
    const std::vector<std::int64_t> shares = Cut(data_.test->size());
    std::int64_t at = 0;
    for (std::size_t i = 0; i < members_.size(); ++i) {
      proto::Order order = NewOrder();
      order.mutable_evaluate()->set_begin(at);
      order.mutable_evaluate()->set_end(at + shares[i]);
      at += shares[i];
      Send(members_[i], std::move(order));
    }
    // Nobody knows how long the test set takes; a member is alive as long as it says so.
    deadline_ = 0.0;
    const double limit = std::max(3600.0, StepLimit());
    const Outcome outcome = Await(members_, limit, {}, /*interruptible=*/true);
    if (outcome == Outcome::kDone && CheckEvaluated(shares)) break;
    NextGeneration();
    formed_ = formed_ && outcome == Outcome::kInterrupted;
    if (outcome == Outcome::kInterrupted) return base::Cancelled("evaluation interrupted");
  }
  run::Evaluation test{.samples = data_.test->size()};
  std::int64_t correct = 0;
  for (const SessionPtr& member : members_) {
    test.loss += member->done->loss_sum();
    correct += member->done->correct();
  }
  test.loss /= static_cast<double>(test.samples);
  test.accuracy = static_cast<double>(correct) / static_cast<double>(test.samples);
  last_test_ = test;
  ShowProgress();
  return test;
}

base::Status Coordinator::Impl::Capture(run::TrainState& state) {
  if (model_step_ != step_) {
    Drain();
    MOTLEY_RETURN_IF_ERROR(FetchState());
  }
  const auto weights = model_.weights(), buffers = model_.buffers();
  state.weights.assign(weights.begin(), weights.end());
  state.buffers.assign(buffers.begin(), buffers.end());
  state.velocity = model_.velocity();
  state.private_pools = pools_.pools();
  return {};
}

void Coordinator::Impl::NextGeneration() {
  ++generation_;
  broken_ = false;
  desk_.BeginGeneration(generation_);
  for (const SessionPtr& member : members_) {
    proto::Order order = NewOrder();
    order.mutable_abort();
    Send(member, std::move(order));
  }
}

// --- Reports ------------------------------------------------------------------------------------

Coordinator::Impl::Outcome Coordinator::Impl::Await(const std::vector<SessionPtr>& who,
                                                    double seconds,
                                                    const std::function<bool()>& complete,
                                                    bool interruptible) {
  const double deadline = clock_.Now() + seconds;
  while (true) {
    Drain();
    const auto gone = [](const SessionPtr& session) { return session->closed(); };
    if (broken_ || std::any_of(who.begin(), who.end(), gone)) return Outcome::kBroken;
    const auto done = [](const SessionPtr& session) { return session->done.has_value(); };
    const bool all_done = std::all_of(who.begin(), who.end(), done);
    const bool bad = all_done && std::any_of(who.begin(), who.end(), [](const auto& session) {
                       return !session->done->finite();
                     });
    if (all_done && (bad || !complete || complete())) return Outcome::kDone;
    if (interruptible && Interrupted()) return Outcome::kInterrupted;
    if (clock_.Now() > deadline) {
      for (const SessionPtr& session : who) {
        if (!session->done) {
          desk_.SendAway(session, fmt::format("alive, but not finished after {:.0f} s", seconds));
        }
      }
      return Outcome::kBroken;
    }
    desk_.WaitForNews(kLookSeconds);
  }
}

void Coordinator::Impl::Drain() {
  while (auto item = desk_.Next()) Take(std::move(*item));
}

void Coordinator::Impl::Take(Desk::Item item) {
  const SessionPtr& session = item.session;
  if (item.closed) {
    TellLost(session);
    return;
  }
  const auto now = [this](const auto& report) { return report.generation() == generation_; };
  switch (item.report.kind_case()) {
    case proto::Report::kReady:
      session->ready = true;
      session->said = item.report.ready();
      session->state = "ready";
      break;
    case proto::Report::kLeave:
      session->leaving = true;
      session->state = "leaving";
      break;
    case proto::Report::kDone:
      if (now(item.report.done()) && item.report.done().step() == step_) {
        session->done = item.report.done();
        if (session->loaded == 0.0) session->loaded = clock_.Now();
      }
      break;
    case proto::Report::kFailed:
      if (!item.report.failed().group()) {
        desk_.SendAway(session, "it failed: " + item.report.failed().message());
      } else if (now(item.report.failed())) {
        broken_ = true;
      }
      break;
    default:
      break;
  }
}

void Coordinator::Impl::TellLost(const SessionPtr& session) {
  const bool left = session->leaving;
  const auto others = std::count_if(
      members_.begin(), members_.end(),
      [&](const SessionPtr& member) { return member != session && !member->closed(); });
  desk_.Event(left ? "left" : "lost",
              left ? fmt::format("{} left; {} go on", session->name, others)
                   : fmt::format("{} ({}) is lost: {}; {} go on", session->name, session->peer,
                                 session->reason(), others),
              {{"worker", session->name}, {"peer", session->peer}, {"reason", session->reason()}});
}

bool Coordinator::Impl::Interrupted() const {
  return hooks_.interrupt != nullptr && hooks_.interrupt->load();
}

// --- Orders -------------------------------------------------------------------------------------

proto::Order Coordinator::Impl::NewOrder() const {
  proto::Order order;
  order.set_generation(generation_);
  order.set_step(step_);
  order.set_committed(committed_);
  return order;
}

void Coordinator::Impl::Send(const SessionPtr& session, proto::Order order) {
  session->done.reset();
  session->orders.Push(std::move(order));
}

std::vector<std::int64_t> Coordinator::Impl::Cut(std::int64_t total) const {
  std::vector<std::int64_t> weights(members_.size(), 0);
  for (std::size_t i = 0; i < members_.size(); ++i) {
    for (const plan::Share& share : plan_.shares) {
      if (share.device == members_[i]->name) weights[i] = share.samples;
    }
  }
  // A plan for devices that are gone: anything is better than nothing.
  if (std::accumulate(weights.begin(), weights.end(), std::int64_t{0}) == 0) {
    std::fill(weights.begin(), weights.end(), 1);
  }
  return plan::Apportion(total, weights, std::max<std::int64_t>(1, job_.bn_batch()));
}

void Coordinator::Impl::Tell(const plan::Event& event) {
  auto plan = controller_.OnEvent(event);
  for (const plan::Note& note : controller_.TakeNotes()) {
    if (hooks_.on_note) hooks_.on_note(note);
  }
  if (!plan) return;
  plan_ = std::move(*plan);
  steps_of_plan_ = 0;
}

double Coordinator::Impl::StepLimit() const {
  // What a step needs beyond computing (samples that are fetched, a slow network) is in the usual.
  if (deadline_ > 0.0) {
    return kHardPatience * std::max(deadline_, kPatience * usual_seconds_) + kGraceSeconds;
  }
  return std::max(options_.step_seconds, 20.0 * usual_seconds_);
}

void Coordinator::Impl::ShowProgress() {
  proto::StatusReply status;
  status.set_model(graph_.name());
  status.set_data(job_.data());
  status.set_phase(members_.empty() ? "waiting" : "training");
  status.set_epoch(ledger().epoch());
  status.set_step(step_);
  status.set_samples(static_cast<std::int64_t>(ledger().epoch()) * ledger().size() +
                     ledger().committed());
  status.set_generation(generation_);
  status.set_loss(last_loss_);
  status.set_gloo(options_.gloo);
  status.set_test_accuracy(last_test_.samples > 0 ? last_test_.accuracy : -1.0);
  if (usual_seconds_ > 0.0) {
    status.set_samples_per_second(static_cast<double>(job_.batch()) / usual_seconds_);
  }
  desk_.Show(status);
}

std::vector<MemberTotal> Coordinator::Impl::totals() const {
  std::vector<MemberTotal> all;
  for (const auto& [name, total] : totals_) all.push_back(total);
  return all;
}

}  // namespace motley::cluster
