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
// That may wait for a member: one reads them at once, but many steps may be broken off meanwhile.
constexpr std::size_t kMaxOrders = 1000;

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

// The first `count`, of the body, and what follows, of the head.
std::vector<float> First(std::vector<float> all, std::int64_t count) {
  all.resize(static_cast<std::size_t>(count));
  return all;
}

std::vector<float> After(const std::vector<float>& all, std::int64_t count) {
  return {all.begin() + count, all.end()};
}

std::unique_ptr<HeadServer> MakeHead(std::optional<MergedHead>& merged,
                                     const run::TrainState& state, std::uint64_t seed,
                                     int update_threads) {
  if (!merged) return nullptr;
  const std::int64_t body = merged->halves.body.parameter_count();
  return std::make_unique<HeadServer>(std::move(merged->device), After(state.weights, body),
                                      After(state.velocity, body), seed, update_threads);
}

}  // namespace

Coordinator::Impl::Impl(const CoordinatorOptions& options, const proto::Job& job,
                        graph::Graph graph, std::optional<MergedHead> merged,
                        const data::DataPair& data, run::TrainState& state, run::Pools pools,
                        plan::Controller& controller, const base::Clock& clock,
                        const CoordinatorHooks& hooks)
    : options_(options),
      graph_(std::move(graph)),
      data_(data),
      controller_(controller),
      clock_(clock),
      hooks_(hooks),
      job_(job),
      pools_(std::move(pools)),
      halves_(merged ? std::optional(merged->halves) : std::nullopt),
      head_(MakeHead(merged, state, job.seed(), options.update_threads)),
      model_(halves_ ? halves_->body : graph_,
             First(std::move(state.weights), (halves_ ? halves_->body : graph_).parameter_count()),
             First(std::move(state.velocity), (halves_ ? halves_->body : graph_).parameter_count()),
             state.buffers, options.update_threads, job.shards()),
      model_step_(state.step),
      step_(state.step),
      // A job that goes on takes whoever comes back; devices of this process always come.
      started_(state.step > 0 && !options.listen.empty()),
      watch_(model_.weights()),
      desk_(options_, job_, data_, model_, head_.get(), clock_, hooks_),
      service_(desk_, traffic_, options.heartbeat_seconds) {
  ShowProgress();
}

Coordinator::Impl::~Impl() {
  Close();
  head_ = nullptr;  // it wakes the desk
}

// --- Steps --------------------------------------------------------------------------------------

base::Result<run::Update> Coordinator::Impl::Step(const optim::SgdOptions& sgd) {
  const double called = clock_.Now();
  while (true) {
    MOTLEY_RETURN_IF_ERROR(Gather());
    // The private pools of those who were there when the epoch began.
    if (ledger().committed() == 0 && !AnyBusy() && KnownPools() != pools_.pools()) {
      const std::vector<run::PrivatePool> pools = KnownPools();
      std::int64_t size = pools_.public_size();
      for (const run::PrivatePool& pool : pools) size += pool.size;
      pools_ = run::Pools(data::Ledger(ledger().epoch(), size), pools_.public_size(), pools);
    }
    // Before other groups are formed, those who are at work finish.
    const bool formed = Grouped() && ShardsFormed();
    if (formed) {
      for (auto& [number, group] : groups_) {
        if (!group.busy) Begin(number, group, sgd);
      }
    }
    if (!AnyBusy()) {
      if (!formed) continue;  // a shard was lost just now
      ForgoUnreachable();
      return run::Update{};
    }
    const auto [number, outcome] = AwaitStep();
    Group& group = groups_.at(number);
    if (head_ != nullptr) MOTLEY_RETURN_IF_ERROR(HeadStatus(number));
    std::optional<run::Update> update;
    if (outcome == Outcome::kDone) update = Finish(number, group);
    if (update && update->not_finite.empty()) {
      const double seconds = clock_.Now() - std::min(called, group.began);
      update->wait_seconds = std::max(0.0, seconds - update->compute_seconds);
      return std::move(*update);
    }
    Abandon(number, group);
    if (update) return std::move(*update);
    formed_ = false;  // a collective that was broken off cannot be used again
  }
}

std::int64_t Coordinator::Impl::SamplesOf(const Assignment& parts) {
  std::int64_t samples = 0;
  for (const run::Pools::Part& part : parts) samples += part.samples();
  return samples;
}

std::vector<run::Pools::Device> Coordinator::Impl::PlannedDevices(
    const std::vector<SessionPtr>& members) const {
  std::vector<run::Pools::Device> devices;
  for (const SessionPtr& member : members) {
    devices.push_back({member->name, 0});
    for (const plan::Share& share : plan_.shares) {
      if (share.device != member->name) continue;
      devices.back().share = share.samples;
      devices.back().most = share.most;
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

std::int64_t Coordinator::Impl::PlannedBatch(int number) const {
  std::int64_t planned = 0;
  for (const plan::Share& share : plan_.shares) {
    if (options_.gloo || share.group == number) planned += share.samples;
  }
  // A plan for devices that are gone: anything is better than nothing.
  return planned > 0 ? std::min(planned, job_.batch()) : job_.batch();
}

void Coordinator::Impl::ForgoUnreachable() {
  for (const auto& [device, samples] : pools_.ForgoOf(PlannedDevices(members_))) {
    desk_.Event("unreachable",
                fmt::format("{} private samples of {} were not trained on in epoch {}: it is away",
                            samples, device, ledger().epoch() + 1),
                {{"device", device}, {"samples", std::to_string(samples)}});
  }
}

bool Coordinator::Impl::AnyBusy() const {
  return std::any_of(groups_.begin(), groups_.end(),
                     [](const auto& one) { return one.second.busy; });
}

bool Coordinator::Impl::Begin(int number, Group& group, const optim::SgdOptions& wanted) {
  const std::int64_t multiple = std::max<std::int64_t>(1, job_.bn_batch());
  const auto take = [&](run::Pools& pools, int which, const Group& whose) {
    return pools.Take(PlannedBatch(which), multiple, PlannedDevices(whose.members), groups());
  };
  const std::int64_t possible =
      std::min(PlannedBatch(number), pools_.ReachableBy(PlannedDevices(group.members)));
  group.parts = take(pools_, number, group);
  if (SamplesOf(group.parts) == 0) return false;
  group.busy = true;
  group.asked = group.heard = false;
  group.alone = groups_.size() == 1;
  group.began = clock_.Now();
  const double deadline = DeadlineOf(number, group);
  // With a merged head all wait for all samples: a part of them is of no use.
  group.deadline = head_ == nullptr ? deadline : 0.0;
  group.allowed = LimitOf(number, group, deadline);
  group.limit = group.began + group.allowed;
  optim::SgdOptions sgd = wanted;
  sgd.learning_rate *= static_cast<float>(plan_.learning_rate_factor);
  // Below 1 where memory is too small for the private samples of a whole step.
  sgd.learning_rate *= static_cast<float>(SamplesOf(group.parts)) / static_cast<float>(possible);
  if (plan_.momentum) sgd.momentum = static_cast<float>(*plan_.momentum);
  group.sgd = sgd;
  BeginReduction(number, group, sgd);
  if (head_ != nullptr) {
    optim::SgdOptions fresh = sgd;
    fresh.momentum = wanted.momentum;  // never stale: nothing of it has to be corrected
    BeginHead(number, group, fresh);
  }
  proto::Order order = TrainOrder(group, sgd);
  // What the next steps will probably be, so that their samples can be prepared: the other groups
  // take theirs in between.
  std::vector<Assignment> ahead;
  run::Pools forecast = pools_;
  for (int i = 0; i < kAhead; ++i) {
    for (const auto& [other, whose] : groups_) {
      if (other != number) take(forecast, other, whose);
    }
    ahead.push_back(take(forecast, number, group));
  }
  for (std::size_t i = 0; i < group.members.size(); ++i) {
    proto::Train& train = *order.mutable_train();
    train.clear_part();
    train.clear_next();
    Fill(group.parts[i], *train.mutable_part());
    for (const Assignment& later : ahead) {
      if (later[i].samples() > 0) Fill(later[i], *train.add_next());
    }
    group.members[i]->share = group.parts[i].samples();
    Send(group.members[i], order);
  }
  return true;
}

void Coordinator::Impl::BeginReduction(int number, Group& group, const optim::SgdOptions& sgd) {
  if (options_.gloo) return;
  ModelServer::Step step{.key = {group.generation, group.version},
                         .contributors = {},
                         .samples = SamplesOf(group.parts),
                         .sgd = sgd,
                         .on_part = {},
                         .on_complete = [this] { desk_.Wake(); },
                         .hosts = HostNames(),
                         .on_sum = {}};
  for (std::size_t i = 0; i < group.members.size(); ++i) {
    if (group.parts[i].samples() > 0) {
      step.contributors.push_back({group.members[i]->name, group.parts[i].samples()});
    }
  }
  if (group.alone) {
    // Whoever has sent its gradient has the present model. One without a share may not: it gets the
    // next one whole, after it has said that it is done.
    std::vector<SessionPtr> readers;
    for (std::size_t i = 0; i < group.members.size(); ++i) {
      if (group.parts[i].samples() > 0) readers.push_back(group.members[i]);
    }
    const StepKey next{group.generation, group.version + 1};
    step.on_part = [this, next, readers, hosts = step.hosts](int index, const ModelArray& floats) {
      const auto range = static_cast<std::size_t>(model_.parts().RangeOf(index));
      if (range < hosts.size() && !hosts[range].empty()) return;  // who sends it
      const Parts::Part& part = model_.parts()[index];
      for (const SessionPtr& member : readers) {
        member->parts.Push({next, proto::ARRAY_MODEL, part.offset, part.size, floats});
      }
    };
  }
  BeginAtShards(number, group, step);
  model_.Begin(number, std::move(step));
}

proto::Order Coordinator::Impl::TrainOrder(const Group& group, const optim::SgdOptions& sgd) const {
  proto::Order order = NewOrder(group);
  proto::Train& train = *order.mutable_train();
  train.set_samples(SamplesOf(group.parts));
  Fill(sgd, *train.mutable_sgd());
  train.set_deadline_seconds(group.deadline);
  return order;
}

std::pair<int, Coordinator::Impl::Outcome> Coordinator::Impl::AwaitStep() {
  while (true) {
    Drain();
    std::optional<std::pair<double, int>> first;
    for (auto& [number, group] : groups_) {
      if (!group.busy) continue;
      const auto outcome = Look(number, group);
      if (outcome == Outcome::kBroken) return {number, *outcome};
      if (!outcome || !MayCommit(number)) continue;
      double ended = 0.0;
      for (const SessionPtr& member : group.members) ended = std::max(ended, member->answered);
      if (!first || std::pair(ended, number) < *first) first = {ended, number};
    }
    if (first) return {first->second, Outcome::kDone};
    desk_.WaitForNews(kLookSeconds);
  }
}

std::optional<Coordinator::Impl::Outcome> Coordinator::Impl::Look(int number, Group& group) {
  if (ShardsBroken()) return Outcome::kBroken;
  bool all_done = true, all_crossed = head_ != nullptr, bad = false;
  for (const SessionPtr& member : group.members) {
    // What is wrong with a host was looked at above.
    if (member->closed() || (member->broken && ranges_.empty())) return Outcome::kBroken;
    all_done = all_done && member->done;
    all_crossed = all_crossed && (member->done || head_->HasAll(member->name));
    bad = bad || (member->done && !member->done->finite());
  }
  // Who has computed nonsense does not send the rest of it. With a merged head the others wait for
  // that at the boundary, so nobody waits for them.
  const bool complete = options_.gloo || model_.Complete(number);
  const bool answered = head_ == nullptr || head_->outcome(number);
  if (all_done && (bad || (complete && answered))) return Outcome::kDone;
  if (all_crossed && (bad || !HeadIsWell(number))) return Outcome::kDone;
  if (head_ != nullptr && HeadIsAtWork(number, group)) {
    group.limit = clock_.Now() + group.allowed;  // the backward pass comes after it
  }
  if (clock_.Now() <= group.limit || HearOfHosts(group)) return std::nullopt;
  // In a ring all wait for one. Who does not answer then does not form the next group either.
  const auto at_work = [](const SessionPtr& member) { return !member->done; };
  if (options_.gloo && std::all_of(group.members.begin(), group.members.end(), at_work)) {
    ++failed_groups_;
    return Outcome::kBroken;
  }
  bool blamed = false;
  for (const SessionPtr& member : group.members) {
    // To say that it is done is not enough: its gradient must come.
    const bool crossed = head_ == nullptr || head_->HasAll(member->name);
    if (member->done && crossed && (options_.gloo || model_.HasAll(member->name))) continue;
    // It may be waiting for others at the boundary.
    if (head_ != nullptr && crossed && !head_->outcome(number)) continue;
    blamed = true;
    SendAway(member,
             fmt::format("alive, but not finished after {:.0f} s", clock_.Now() - group.began));
  }
  if (!blamed && AskHosts(number, group)) return std::nullopt;
  if (!blamed) SendSlowHostsAway(number, group);
  return Outcome::kBroken;
}

bool Coordinator::Impl::MayCommit(int number) const {
  if (options_.max_staleness == 0) return true;
  // Those who read the model earlier may still commit before another one does; counting them in,
  // the oldest is never kept waiting.
  const auto before = [](const auto& a, const auto& b) {
    return std::pair(a.second.version, a.first) < std::pair(b.second.version, b.first);
  };
  for (const auto& other : groups_) {
    if (!other.second.busy || other.first == number) continue;
    std::int64_t stale = step_ + 1 - other.second.version;
    for (const auto& third : groups_) {
      if (third.second.busy && third.first != number && before(third, other)) ++stale;
    }
    const bool older = before(*groups_.find(number), other);
    if (!older && stale > options_.max_staleness) return false;
  }
  return true;
}

std::optional<run::Update> Coordinator::Impl::Finish(int number, Group& group) {
  run::Update update;
  // First, because then nobody waits for the gradients of the others: they may be on their way.
  if (!JudgeGradients(group, update)) return std::nullopt;
  if (!update.not_finite.empty()) return update;
  if (head_ != nullptr && !HeadIsWell(number)) {
    update.not_finite = head_->outcome(number)->value().not_finite;
    return update;
  }
  if (!CheckDone(group) || !CheckSums(number, group)) return std::nullopt;
  const auto nothing = [](const SessionPtr& member) { return member->done->samples() == 0; };
  group.hurried = std::all_of(group.members.begin(), group.members.end(), nothing);
  if (group.hurried) return std::nullopt;  // again, and with all the time they need
  if (!options_.gloo) {
    update.not_finite = model_.Prepare(number);
  } else if (!std::all_of(group.members.begin(), group.members.end(), [](const SessionPtr& member) {
               return std::isfinite(member->done->sum_squared());
             })) {
    update.not_finite = "the sum of the gradients";
  }
  if (!update.not_finite.empty()) return update;
  return Commit(number, group);
}

void Coordinator::Impl::Abandon(int number, Group& group) {
  Discard(number);
  for (const run::Pools::Part& part : group.parts) {
    const auto given = pools_.GiveBack(part);
    MOTLEY_CHECK(given.ok(), "{}", given.message());
  }
  group.parts.clear();
  group.busy = false;
  NextGeneration(group);
}

void Coordinator::Impl::StartNextEpoch() { pools_.StartNextEpoch(KnownPools()); }

base::Result<run::Evaluation> Coordinator::Impl::Evaluate() {
  while (true) {
    MOTLEY_RETURN_IF_ERROR(Gather());
    // All of them, and all with the same model: what a group is at is given up.
    for (auto& [number, group] : groups_) {
      if (group.busy) Abandon(number, group);
    }
    const auto stale = [this](const SessionPtr& member) { return member->version != step_; };
    if (std::any_of(members_.begin(), members_.end(), stale)) {
      for (const SessionPtr& member : members_) member->group = -1;
      continue;  // to be put into groups anew, with the present model
    }
    if (head_ != nullptr) SendHead();
    const std::vector<std::int64_t> shares = Cut(data_.test->size());
    std::int64_t at = 0;
    for (std::size_t i = 0; i < members_.size(); ++i) {
      proto::Order order = NewOrder(groups_.at(members_[i]->group));
      order.mutable_evaluate()->set_begin(at);
      order.mutable_evaluate()->set_end(at + shares[i]);
      at += shares[i];
      Send(members_[i], std::move(order));
    }
    const Outcome outcome = Await(members_, LongestTest(shares), {}, /*interruptible=*/true);
    if (outcome == Outcome::kDone && CheckEvaluated(shares)) break;
    NextGenerations();
    formed_ = formed_ && outcome == Outcome::kInterrupted;
    if (shards_break_ != kNever) shards_break_ = clock_.Now();  // nobody else will tell more
    if (outcome == Outcome::kInterrupted) return base::Cancelled("evaluation interrupted");
  }
  suspects_ = false;
  ForgetClaims();
  run::Evaluation test{.samples = data_.test->size()};
  std::int64_t correct = 0;
  for (const SessionPtr& member : members_) {
    if (member->done->samples() > 0) {
      member->tested =
          member->done->compute_seconds() / static_cast<double>(member->done->samples());
    }
    test.loss += member->done->loss_sum();
    correct += member->done->correct();
    AccountPresence(member, clock_.Now());
    totals_[member->name].test_seconds += member->done->compute_seconds();
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
  if (head_ != nullptr) {
    const HeadServer::State head = head_->state();
    state.weights.insert(state.weights.end(), head.weights.begin(), head.weights.end());
    state.velocity.insert(state.velocity.end(), head.velocity.begin(), head.velocity.end());
  }
  state.private_pools = pools_.pools();
  return {};
}

void Coordinator::Impl::NextGeneration(Group& group) {
  group.generation = ++generation_;
  desk_.BeginGeneration(generation_, group.members);
  for (const SessionPtr& member : group.members) {
    proto::Order order = NewOrder(group);
    order.mutable_abort();
    Send(member, std::move(order));
  }
}

void Coordinator::Impl::NextGenerations() {
  for (auto& [number, group] : groups_) NextGeneration(group);
}

// --- Orders -------------------------------------------------------------------------------------

proto::Order Coordinator::Impl::NewOrder(const Group& group) {
  proto::Order order;
  order.set_generation(group.generation);
  order.set_step(group.version);
  return order;
}

void Coordinator::Impl::Send(const SessionPtr& session, proto::Order order) {
  session->done.reset();
  session->broken = false;
  order.set_committed(session->committed);
  session->ordered = {order.generation(), order.step()};
  session->orders.Push(std::move(order));
  if (session->orders.size() > kMaxOrders) SendAway(session, "it does not take its orders");
}

void Coordinator::Impl::SendStop(const SessionPtr& session, const std::string& reason) {
  proto::Order order;
  order.set_generation(generation_);
  order.set_step(step_);
  order.mutable_stop()->set_reason(reason);
  Send(session, std::move(order));
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
  for (auto& [number, group] : groups_) group.steps_of_plan = 0;
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
  status.set_groups(groups());
  status.set_shards(job_.shards());
  status.set_test_accuracy(last_test_.samples > 0 ? last_test_.accuracy : -1.0);
  if (usual_seconds_ > 0.0) {
    const auto at_once = static_cast<double>(groups_.size()) * static_cast<double>(job_.batch());
    status.set_samples_per_second(at_once / usual_seconds_);
  }
  desk_.Show(status);
}

std::vector<MemberTotal> Coordinator::Impl::totals() const {
  std::vector<MemberTotal> all;
  for (const auto& [name, total] : totals_) all.push_back(total);
  return all;
}

}  // namespace motley::cluster
