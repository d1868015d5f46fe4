#include "motley/cluster/coordinator_impl.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "motley/cluster/job.h"
#include "motley/plan/shares.h"

namespace motley::cluster {
namespace {

// How often an interrupt is looked for while waiting.
constexpr double kLookSeconds = 0.05;
// A model may have to travel over a slow network.
constexpr double kLoadSeconds = 300.0;
constexpr double kFormSeconds = 15.0;
constexpr int kMaxFailedForms = 3;
// Steps whose samples are named to the workers ahead of time.
constexpr int kAhead = 2;

template <typename Range>
std::string Names(const Range& sessions) {
  std::vector<std::string> names;
  for (const SessionPtr& session : sessions) names.push_back(session->name);
  return fmt::format("{}", fmt::join(names, ", "));
}

void Fill(std::uint64_t epoch, std::int64_t begin, std::int64_t end, proto::Range& range) {
  range.set_epoch(epoch);
  range.set_begin(begin);
  range.set_end(end);
}

}  // namespace

Coordinator::Impl::Impl(const CoordinatorOptions& options, const proto::Job& job,
                        graph::Graph graph, const data::DataPair& data, run::TrainState& state,
                        data::Ledger ledger, plan::Controller& controller, const base::Clock& clock,
                        const CoordinatorHooks& hooks)
    : options_(options),
      graph_(std::move(graph)),
      data_(data),
      controller_(controller),
      clock_(clock),
      hooks_(hooks),
      job_(job),
      ledger_(std::move(ledger)),
      model_(graph_, std::move(state.weights), std::move(state.velocity), state.buffers),
      model_step_(state.step),
      step_(state.step),
      desk_(options_, job_, data_, model_, clock_, hooks_),
      service_(desk_, traffic_, options.heartbeat_seconds) {
  ShowProgress();
}

Coordinator::Impl::~Impl() { Close(); }

// --- Members ------------------------------------------------------------------------------------

base::Status Coordinator::Impl::Gather() {
  while (true) {
    Drain();
    RemoveGone();
    if (Interrupted()) return base::Cancelled("interrupted");
    const std::vector<SessionPtr> joiners = Joiners();
    const std::size_t wanted = started_ ? 1 : static_cast<std::size_t>(options_.min_workers);
    if (members_.size() + joiners.size() < wanted) {
      if (!waiting_told_) {
        const std::size_t missing = wanted - members_.size() - joiners.size();
        desk_.Event("waiting",
                    fmt::format("waiting for {} {}", missing, missing == 1 ? "worker" : "workers"),
                    {});
      }
      waiting_told_ = true;
      desk_.WaitForNews(kLookSeconds);
      continue;
    }
    waiting_told_ = false;
    if (!joiners.empty()) {
      if (model_step_ != step_) MOTLEY_RETURN_IF_ERROR(FetchState());
      if (!Admit(joiners)) continue;
    }
    if (options_.gloo && !formed_ && !FormGroup()) continue;
    started_ = true;
    return {};
  }
}

void Coordinator::Impl::RemoveGone() {
  bool changed = false;
  for (const SessionPtr& session : desk_.sessions()) {
    if (!session->leaving || session->told) continue;
    proto::Order order = NewOrder();
    order.mutable_stop()->set_reason("left");
    Send(session, std::move(order));
    session->told = true;
  }
  std::vector<SessionPtr> staying;
  for (const SessionPtr& member : members_) {
    if (!member->closed() && !member->leaving) {
      staying.push_back(member);
      continue;
    }
    changed = true;
    member->share = 0;
    const std::string reason = member->leaving ? "left" : member->reason();
    Tell(plan::DeviceLost{member->name, reason});
  }
  if (!changed) return;
  members_ = std::move(staying);
  formed_ = false;
  NextGeneration();
}

std::vector<SessionPtr> Coordinator::Impl::Joiners() const {
  std::vector<SessionPtr> joiners;
  for (const SessionPtr& session : desk_.sessions()) {
    const bool member = std::find(members_.begin(), members_.end(), session) != members_.end();
    if (session->ready && !session->leaving && !session->closed() && !member) {
      joiners.push_back(session);
    }
  }
  return joiners;
}

bool Coordinator::Impl::Admit(const std::vector<SessionPtr>& joiners) {
  NextGeneration();
  for (const SessionPtr& session : joiners) {
    proto::Order order = NewOrder();
    order.mutable_load();
    Send(session, std::move(order));
    SendModel(session);
  }
  Await(joiners, kLoadSeconds);
  for (const SessionPtr& session : joiners) {
    if (session->closed() || !session->done) continue;
    members_.push_back(session);
    session->state = "working";
    Tell(plan::DeviceJoined{session->name});
    desk_.Event(
        "joined",
        fmt::format("{} joined from {} ({}); {} {} now", session->name, session->peer,
                    session->device, members_.size(), members_.size() == 1 ? "works" : "work"),
        {{"worker", session->name}, {"peer", session->peer}, {"device", session->device}});
  }
  // By rank of a launcher, then in the order of joining: the order in which gradients are summed.
  std::stable_sort(members_.begin(), members_.end(), [](const auto& a, const auto& b) {
    return static_cast<unsigned>(a->rank) < static_cast<unsigned>(b->rank);
  });
  formed_ = false;
  NextGeneration();
  return !members_.empty();
}

void Coordinator::Impl::SendModel(const SessionPtr& session) {
  const StepKey key{generation_, step_};
  const auto push = [&](proto::Array array, const ModelArray& floats, int parts) {
    for (int i = 0; i < parts; ++i) {
      const Parts::Part& part = model_.parts()[i];
      session->parts.Push({key, array, part.offset, part.size, floats});
    }
  };
  push(proto::ARRAY_MODEL, model_.model(), model_.parts().count());
  if (!options_.gloo) return;
  push(proto::ARRAY_VELOCITY, std::make_shared<const std::vector<float>>(model_.velocity()),
       model_.parts().parameter_parts());
}

bool Coordinator::Impl::FormGroup() {
  NextGeneration();
  proto::Order order = NewOrder();
  for (const SessionPtr& member : members_) order.mutable_form()->add_members(member->name);
  for (std::size_t i = 0; i < members_.size(); ++i) {
    order.mutable_form()->set_rank(static_cast<int>(i));
    Send(members_[i], order);
  }
  const std::size_t wanted = members_.size();
  formed_ = Await(members_, kFormSeconds) == Outcome::kDone;
  if (!formed_) NextGeneration();
  const auto alive = [](const SessionPtr& member) { return !member->closed(); };
  const bool all_alive =
      std::count_if(members_.begin(), members_.end(), alive) == static_cast<std::ptrdiff_t>(wanted);
  failed_forms_ = formed_ || !all_alive ? 0 : failed_forms_ + 1;
  if (failed_forms_ >= kMaxFailedForms) {
    // Two of them do not reach each other, though both reach us. Any order of going comes to an
    // end: a group of one forms itself.
    desk_.SendAway(members_.back(),
                   "the members cannot form a group; see whether all of them "
                   "reach each other");
    failed_forms_ = 0;
  }
  return formed_;
}

base::Status Coordinator::Impl::FetchState() {
  for (const SessionPtr& member : std::vector<SessionPtr>(members_)) {
    if (member->closed()) continue;
    desk_.ExpectUpload({generation_, step_}, member->name);
    proto::Order order = NewOrder();
    order.mutable_save();
    Send(member, std::move(order));
    const auto outcome = Await({member}, kLoadSeconds, [this] { return desk_.UploadComplete(); });
    Desk::Upload upload = desk_.TakeUpload();
    if (outcome == Outcome::kDone) {
      model_.Replace(std::move(upload.model), std::move(upload.velocity));
      model_step_ = step_;
      return {};
    }
    NextGeneration();
  }
  return base::Unavailable("all workers that had the model of step {} are gone", step_);
}

// --- Steps --------------------------------------------------------------------------------------

base::Result<run::Update> Coordinator::Impl::Step(const optim::SgdOptions& sgd) {
  suspects_ = 0;
  const double began = clock_.Now();
  while (true) {
    MOTLEY_RETURN_IF_ERROR(Gather());
    const auto ticket = ledger_.Take(job_.batch());
    MOTLEY_CHECK(ticket.has_value(), "epoch {} is complete", ledger_.epoch());
    auto update = Attempt(*ticket, sgd);
    if (update && update->not_finite.empty()) {
      MOTLEY_RETURN_IF_ERROR(ledger_.Commit(*ticket));
      update->wait_seconds = std::max(0.0, clock_.Now() - began - update->compute_seconds);
      return std::move(*update);
    }
    model_.Discard();
    MOTLEY_RETURN_IF_ERROR(ledger_.GiveBack(*ticket));
    NextGeneration();
    if (update) return std::move(*update);
    formed_ = false;  // a collective that was broken off cannot be used again
  }
}

std::optional<run::Update> Coordinator::Impl::Attempt(const data::Ticket& ticket,
                                                      const optim::SgdOptions& sgd) {
  const double began = clock_.Now();
  const std::vector<std::int64_t> shares = Cut(ticket.size());
  BeginReduction(shares, ticket.size(), sgd);
  proto::Order order = TrainOrder(ticket, sgd);
  std::int64_t at = ticket.begin;
  for (std::size_t i = 0; i < members_.size(); ++i) {
    proto::Train& train = *order.mutable_train();
    Fill(ticket.epoch, at, at + shares[i], *train.mutable_range());
    train.clear_next();
    const std::int64_t from_begin = at - ticket.begin;
    for (int ahead = 1; ahead <= kAhead; ++ahead) {
      const std::int64_t begin = at + ahead * ticket.size();
      const bool whole = begin - from_begin + ticket.size() <= ledger_.size();
      if (whole && shares[i] > 0) Fill(ticket.epoch, begin, begin + shares[i], *train.add_next());
    }
    at += shares[i];
    members_[i]->share = shares[i];
    Send(members_[i], order);
  }
  const auto summed = [this] { return options_.gloo || model_.Complete(); };
  if (Await(members_, StepLimit(), summed) != Outcome::kDone) return std::nullopt;
  if (!CheckCounts(shares)) return std::nullopt;

  run::Update update;
  update.not_finite = JudgeGradients();
  if (update.not_finite.empty() && broken_) return std::nullopt;
  if (update.not_finite.empty() && !options_.gloo) update.not_finite = model_.not_finite();
  if (!update.not_finite.empty()) return update;
  return Commit(ticket, began);
}

void Coordinator::Impl::BeginReduction(const std::vector<std::int64_t>& shares,
                                       std::int64_t samples, const optim::SgdOptions& sgd) {
  if (options_.gloo) return;
  ModelServer::Step step{.key = {generation_, step_},
                         .contributors = {},
                         .samples = samples,
                         .sgd = sgd,
                         .on_part = {},
                         .on_complete = [this] { desk_.Wake(); }};
  for (std::size_t i = 0; i < members_.size(); ++i) {
    if (shares[i] > 0) step.contributors.push_back(members_[i]->name);
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

proto::Order Coordinator::Impl::TrainOrder(const data::Ticket& ticket,
                                           const optim::SgdOptions& sgd) const {
  proto::Order order = NewOrder();
  proto::Train& train = *order.mutable_train();
  train.set_samples(ticket.size());
  train.mutable_sgd()->set_learning_rate(sgd.learning_rate);
  train.mutable_sgd()->set_momentum(sgd.momentum);
  train.mutable_sgd()->set_weight_decay(sgd.weight_decay);
  train.mutable_sgd()->set_nesterov(sgd.nesterov);
  return order;
}

bool Coordinator::Impl::CheckCounts(const std::vector<std::int64_t>& shares) {
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

run::Update Coordinator::Impl::Commit(const data::Ticket& ticket, double began) {
  run::Update update;
  plan::StepDone event{step_ + 1, {}};
  for (const SessionPtr& member : members_) {
    const proto::Done& done = *member->done;
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
    event.parts.push_back({member->name, done.samples(), done.compute_seconds()});
  }
  MOTLEY_CHECK(update.samples == ticket.size(), "{} of {} samples", update.samples, ticket.size());
  if (!options_.gloo) {
    model_.Commit();
    ++model_step_;
  }
  ++step_;
  const double seconds = clock_.Now() - began;
  usual_seconds_ = usual_seconds_ == 0.0 ? seconds : 0.9 * usual_seconds_ + 0.1 * seconds;
  last_loss_ = update.loss_sum / static_cast<double>(update.samples);
  Tell(event);
  ShowProgress();
  return update;
}

void Coordinator::Impl::StartNextEpoch() {
  MOTLEY_CHECK(ledger_.Complete(), "epoch {} is not complete", ledger_.epoch());
  ledger_ = data::Ledger(ledger_.epoch() + 1, ledger_.size());
}

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
    const double limit = std::max(3600.0, StepLimit());
    const Outcome outcome = Await(members_, limit, {}, /*interruptible=*/true);
    if (outcome == Outcome::kDone && CheckCounts(shares)) break;
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
      session->state = "ready";
      break;
    case proto::Report::kLeave:
      session->leaving = true;
      session->state = "leaving";
      break;
    case proto::Report::kDone:
      if (now(item.report.done()) && item.report.done().step() == step_) {
        session->done = item.report.done();
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
  if (!plan) return;
  plan_ = std::move(*plan);
  std::vector<std::string> shares;
  for (const plan::Share& share : plan_.shares) {
    shares.push_back(fmt::format("{} {}", share.device, share.samples));
  }
  desk_.Event("plan", fmt::format("shares: {} ({})", fmt::join(shares, ", "), plan_.reason),
              {{"reason", plan_.reason}, {"shares", fmt::format("{}", fmt::join(shares, ", "))}});
}

double Coordinator::Impl::StepLimit() const {
  return std::max(options_.step_seconds, 20.0 * usual_seconds_);
}

void Coordinator::Impl::ShowProgress() {
  proto::StatusReply status;
  status.set_model(graph_.name());
  status.set_data(job_.data());
  status.set_phase(members_.empty() ? "waiting" : "training");
  status.set_epoch(ledger_.epoch());
  status.set_step(step_);
  status.set_samples(static_cast<std::int64_t>(ledger_.epoch()) * ledger_.size() +
                     ledger_.committed());
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
