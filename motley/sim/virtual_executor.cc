#include "motley/sim/virtual_executor.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "motley/data/pooled_dataset.h"
#include "motley/plan/shares.h"
#include "motley/run/evaluate.h"
#include "motley/run/update.h"

namespace motley::sim {
namespace {

// Forward only, against forward and both backward passes.
constexpr double kEvaluationPart = 1.0 / 3.0;

// What a device computes of the net.
plan::SpeedCurve Part(plan::SpeedCurve curve, double part) {
  curve.fixed_seconds *= part;
  curve.seconds_per_sample *= part;
  return curve;
}

double DevicePart(const VirtualExecutor::Options& options) {
  return options.merged_head ? 1.0 - HeadPart(options.merged_head->halves) : 1.0;
}

const graph::Graph& OwnGraph(const VirtualExecutor::Options& options, const graph::Graph& whole) {
  return options.merged_head ? options.merged_head->halves.body : whole;
}

Timeline::Options::Head TimesOfHead(const VirtualExecutor::Options::MergedHead& merged) {
  const graph::Graph& body = merged.halves.body;
  const auto forward = static_cast<double>(body.ForwardFlops());
  return {.curve = Part(merged.server, HeadPart(merged.halves)),
          .sample_bytes =
              static_cast<double>(graph::Count(merged.halves.head.input_shape())) * sizeof(float),
          .forward_part = forward / (forward + static_cast<double>(body.BackwardFlops()))};
}

Timeline::Options TimesOf(const VirtualExecutor::Options& options, const graph::Graph& graph,
                          std::uint64_t seed) {
  Timeline::Options times;
  for (const VirtualDevice& one : options.devices) {
    times.devices.push_back({.curve = Part(one.curve, DevicePart(options)),
                             .pace = one.pace,
                             .service = one.service,
                             .bytes_per_second = one.bytes_per_second});
    if (one.fails_at) times.devices.back().fails_at = *one.fails_at;
  }
  times.latency_seconds = options.latency_seconds;
  times.model_bytes =
      static_cast<double>(graph.parameter_count() + graph.buffer_count()) * sizeof(float);
  times.server_seconds = options.server_seconds;
  times.server_bytes_per_second = options.server_bytes_per_second;
  times.max_staleness = options.max_staleness;
  times.seed = seed;
  if (options.merged_head) times.head = TimesOfHead(*options.merged_head);
  return times;
}

void AddTo(std::span<float> sum, std::span<const float> more) {
  for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += more[i];
}

}  // namespace

VirtualExecutor::VirtualExecutor(Options options, const run::TrainOptions& train,
                                 engine::Device& device, const data::DataPair& data,
                                 base::VirtualClock& clock, run::TrainState& state,
                                 run::Pools pools, plan::Controller& controller)
    : options_(std::move(options)),
      train_(train),
      device_(device),
      data_(data),
      clock_(clock),
      controller_(controller),
      began_(clock.Now()),
      pools_(std::move(pools)),
      own_(static_cast<std::size_t>(OwnGraph(options_, device.graph()).parameter_count())),
      weights_(std::move(state.weights)),
      velocity_(std::move(state.velocity)),
      buffers_(std::move(state.buffers)),
      gradient_(own_),
      part_sums_(buffers_.size()),
      timeline_(TimesOf(options_, OwnGraph(options_, device.graph()), train_.seed)),
      busy_(options_.devices.size()),
      lost_at_(options_.devices.size()),
      step_(state.step) {
  if (options_.merged_head) PrepareHead();
  if (!options_.time_only) watch_.emplace(std::span(weights_).first(own_));
  for (const VirtualDevice& one : options_.devices) {
    Source source;
    std::shared_ptr<const data::Dataset> set = data_.train;
    if (one.secret != nullptr) {
      set = std::make_shared<data::PooledDataset>(data_.train, one.secret);
      source.seed = data::PrivateSeed(train_.seed, one.name);
      source.first_id = data::FirstPrivateId(one.name);
    }
    // Those without private samples share the first loader.
    if (one.secret != nullptr || sources_.empty()) {
      source.loader = std::make_unique<data::Loader>(
          std::move(set), train_.train_transform,
          data::LoaderOptions{.threads = train_.loader_threads, .seed = train_.seed});
    }
    sources_.push_back(std::move(source));
    totals_.push_back({.name = one.name, .kind = one.kind, .power = one.power});
  }
  // All are there before the first step: only the last plan counts.
  std::optional<plan::Plan> plan;
  for (std::size_t i = 0; i < options_.devices.size(); ++i) {
    const VirtualDevice& one = options_.devices[i];
    plan::SpeedCurve curve = Part(one.curve, DevicePart(options_));
    curve.fixed_seconds /= one.pace.speed;
    curve.seconds_per_sample /= one.pace.speed;
    auto next =
        Ask(plan::DeviceJoined{.device = one.name,
                               .curve = curve,
                               .communication_seconds = CommunicationSeconds(i),
                               .power = one.power,
                               .private_samples = one.secret == nullptr ? 0 : one.secret->size()});
    if (next) plan = std::move(next);
  }
  if (plan) TakePlan(std::move(*plan));
}

std::string VirtualExecutor::kind() const {
  return fmt::format("{} virtual devices", options_.devices.size());
}

void VirtualExecutor::StartNextEpoch() {
  pools_.StartNextEpoch(pools_.pools());
  for (Group& group : groups_) group.exhausted = false;
}

double VirtualExecutor::CommunicationSeconds(std::size_t device) const {
  const std::size_t devices = options_.devices.size();
  const auto groups = static_cast<std::size_t>(options_.groups);
  std::vector<std::size_t> members((devices + groups - 1) / groups);
  std::iota(members.begin(), members.end(), std::size_t{0});
  double ring = timeline_.ReductionSeconds(members);
  if (options_.merged_head) {
    std::vector<Timeline::Work> work;
    for (const std::size_t member : members) {
      work.push_back({member, train_.batch / std::ssize(members)});
    }
    ring += timeline_.HeadSeconds(work);
  }
  if (groups == 1) return ring;
  return ring + 2.0 * timeline_.ServerLinkSeconds(device) + options_.server_seconds;
}

std::optional<plan::Plan> VirtualExecutor::Ask(const plan::Event& event) {
  auto plan = controller_.OnEvent(event);
  for (const plan::Note& note : controller_.TakeNotes()) {
    if (options_.on_note) options_.on_note(note);
  }
  return plan;
}

void VirtualExecutor::Tell(const plan::Event& event) {
  if (auto plan = Ask(event)) TakePlan(std::move(*plan));
}

void VirtualExecutor::TakePlan(plan::Plan plan) {
  plan_ = std::move(plan);
  ++plans_;
  std::map<std::string, const plan::Share*> shares;
  int last = 0;
  for (const plan::Share& share : plan_.shares) {
    shares.emplace(share.device, &share);
    last = std::max(last, share.group);
  }
  groups_.assign(static_cast<std::size_t>(last) + 1, {});
  for (std::size_t i = 0; i < options_.devices.size(); ++i) {
    if (lost_at_[i]) continue;
    const std::string& name = options_.devices[i].name;
    // One that the plan does not name has no share, and may have private samples.
    const auto found = shares.find(name);
    const std::int64_t samples = found == shares.end() ? 0 : found->second->samples;
    Group& group =
        groups_[static_cast<std::size_t>(found == shares.end() ? 0 : found->second->group)];
    group.members.push_back(i);
    group.planned.push_back(
        {name, samples, found == shares.end() ? plan::kNoCap : found->second->most});
    group.batch += samples;
  }
  // Without any share the only group computes as it can.
  if (last == 0 && groups_[0].batch == 0) {
    groups_[0].batch = train_.batch;
    for (run::Pools::Device& device : groups_[0].planned) device.share = 1;
  }
}

base::Status VirtualExecutor::BeginIdleGroups() {
  std::vector<int> idle;
  for (std::size_t g = 0; g < groups_.size(); ++g) {
    const Group& group = groups_[g];
    if (group.exhausted || group.batch == 0) continue;
    const bool free = std::none_of(group.members.begin(), group.members.end(),
                                   [this](std::size_t member) { return busy_[member]; });
    if (free) idle.push_back(static_cast<int>(g));
  }
  // While steps of the plan before are under way, there may be more of them than groups, and then
  // no order of their updates would keep the bound.
  if (options_.max_staleness > 0) {
    const auto under_way = std::count_if(flights_.begin(), flights_.end(),
                                         [](const Flight& flight) { return flight.under_way; });
    const auto room = static_cast<std::size_t>(options_.max_staleness + 1 - under_way);
    if (idle.size() > room) idle.resize(room);
  }
  for (std::size_t k = 0; k < idle.size(); ++k) {
    MOTLEY_RETURN_IF_ERROR(
        Begin(idle[k], k + 1 < idle.size() ? std::optional(idle[k + 1]) : std::nullopt));
  }
  return {};
}

void VirtualExecutor::TakeSamples(int number, Flight& flight) {
  const Group& group = groups_[static_cast<std::size_t>(number)];
  flight.update = {.group = number};
  const auto groups = static_cast<std::int64_t>(groups_.size());
  const std::int64_t batch = std::min(group.batch, train_.batch);
  std::vector<std::int64_t> samples;
  samples.reserve(group.planned.size());
  if (options_.time_only && pools_.pools().empty()) {
    // Who computes which sample does not matter: a thousand devices need no tickets of their own.
    const run::Pools::Device all{"", batch};
    flight.parts = pools_.Take(batch, options_.multiple, {&all, 1}, groups);
    const std::int64_t taken = flight.parts[0].samples();
    const bool whole = taken == group.batch;
    if (whole && flight.whole == std::pair(plans_, number)) {
      flight.update.samples = taken;
      return;
    }
    flight.whole = {whole ? plans_ : 0, number};
    for (const run::Pools::Device& device : group.planned) samples.push_back(device.share);
    if (!whole) samples = plan::Apportion(taken, samples, options_.multiple);
  } else {
    flight.possible = std::min(batch, pools_.ReachableBy(group.planned));
    flight.parts = pools_.Take(batch, options_.multiple, group.planned, groups);
    for (const run::Pools::Part& part : flight.parts) samples.push_back(part.samples());
  }
  std::size_t used = 0;
  for (std::size_t k = 0; k < samples.size(); ++k) {
    if (samples[k] == 0) continue;
    const std::size_t device = group.members[k];
    if (used == flight.work.size()) {
      flight.work.emplace_back();
      flight.told.push_back({.device = totals_[device].name});
    } else if (flight.work[used].device != device) {
      flight.told[used].device = totals_[device].name;
    }
    flight.work[used] = {device, samples[k]};
    flight.told[used++].samples = samples[k];
    flight.update.samples += samples[k];
  }
  flight.work.resize(used);
  flight.told.resize(used);
}

base::Status VirtualExecutor::Begin(int number, std::optional<int> next) {
  auto slot = static_cast<std::size_t>(
      std::find_if(flights_.begin(), flights_.end(), [](const Flight& f) { return !f.under_way; }) -
      flights_.begin());
  if (slot == flights_.size()) flights_.emplace_back();
  Flight& flight = flights_[slot];
  Group& group = groups_[static_cast<std::size_t>(number)];
  TakeSamples(number, flight);
  group.exhausted = flight.update.samples == 0;
  if (group.exhausted) return {};

  flight.under_way = true;
  flight.learning_rate_factor = plan_.learning_rate_factor;
  flight.momentum = plan_.momentum;
  flight.members = group.members;
  for (const std::size_t member : flight.members) busy_[member] = true;
  timeline_.Begin(static_cast<int>(slot), clock_.Now(), flight.work, groups_.size() == 1);
  if (options_.time_only) return {};

  std::vector<data::Batch> batches;
  for (std::size_t k = 0; k < flight.parts.size(); ++k) {
    if (flight.parts[k].samples() == 0) continue;
    MOTLEY_ASSIGN_OR_RETURN(data::Batch loaded, Load(flight.members[k], flight.parts[k]));
    batches.push_back(std::move(loaded));
  }
  if (!next) {
    const auto arriving = timeline_.NextGroup();
    if (arriving) next = flights_[static_cast<std::size_t>(*arriving)].update.group;
  }
  if (next) Prepare(*next);
  if (!split_) return ComputeGradient(batches, flight);
  flight.batches = std::move(batches);
  flight.body.assign(weights_.begin(), weights_.begin() + static_cast<std::ptrdiff_t>(own_));
  return {};
}

base::Status VirtualExecutor::ComputeGradient(std::span<const data::Batch> batches,
                                              Flight& flight) {
  flight.sum.resize(own_);
  flight.buffer_sums.resize(buffers_.size());
  flight.norms.clear();
  const base::RealClock real;
  for (const data::Batch& batch : batches) {
    const bool first = &batch == batches.data();
    const double before = real.Now();
    engine::StepRequest request;
    request.weights = split_ ? flight.body : weights_;
    request.batch = &batch;
    request.seed = train_.seed;
    request.gradient = first ? flight.sum : gradient_;
    request.buffer_sums = first ? flight.buffer_sums : part_sums_;
    MOTLEY_ASSIGN_OR_RETURN(const engine::StepResult result,
                            split_ ? split_->Step(request, std::span(weights_).subspan(own_),
                                                  first ? head_sum_ : head_part_)
                                   : device_.Step(request));
    gradient_seconds_ += real.Now() - before;
    if (batches.size() > 1) {
      flight.norms.push_back({batch.size(), plan::SquaredNorm(first ? flight.sum : gradient_)});
    }
    if (!first) {
      AddTo(flight.sum, gradient_);
      AddTo(flight.buffer_sums, part_sums_);
      AddTo(head_sum_, head_part_);
    }
    flight.update.loss_sum += result.loss_sum;
    flight.update.correct += result.correct;
  }
  return {};
}

optim::SgdOptions VirtualExecutor::OfPlan(optim::SgdOptions wanted, const Flight& flight) {
  wanted.learning_rate *= static_cast<float>(flight.learning_rate_factor);
  wanted.learning_rate *=
      static_cast<float>(flight.update.samples) / static_cast<float>(flight.possible);
  if (flight.momentum) wanted.momentum = static_cast<float>(*flight.momentum);
  return wanted;
}

base::Result<run::Update> VirtualExecutor::Step(const optim::SgdOptions& wanted) {
  if (options_.interrupt != nullptr && options_.interrupt->load()) {
    return base::Cancelled("interrupted");
  }
  while (true) {
    MOTLEY_RETURN_IF_ERROR(BeginIdleGroups());
    const std::optional<Timeline::Event> event = timeline_.Next();
    if (!event) {
      for (const auto& [device, samples] : pools_.ForgoOf(Present())) unreachable_ += samples;
      return run::Update{};
    }
    clock_.Advance(std::max(0.0, event->end - clock_.Now()));
    if (event->lost) {
      MOTLEY_RETURN_IF_ERROR(Lose(*event));
    } else if (event->head) {
      MOTLEY_ASSIGN_OR_RETURN(const bool well, PassHead(event->group, wanted));
      if (!well) return flights_[static_cast<std::size_t>(event->group)].update;
    } else {
      return Apply(*event, wanted);
    }
  }
}

base::Result<run::Update> VirtualExecutor::Apply(const Timeline::Event& event,
                                                 const optim::SgdOptions& wanted) {
  Flight& flight = flights_[static_cast<std::size_t>(event.group)];
  run::Update update = flight.update;
  update.staleness = event.staleness;
  const bool with_head = head_update_ && head_update_->flight == event.group;
  const optim::SgdOptions sgd = OfPlan(wanted, flight);
  if (!std::isfinite(update.loss_sum)) {
    update.not_finite = "the loss";
  } else if ((with_head && !UpdateHead()) ||
             (!options_.time_only &&
              !optim::SgdUpdate(sgd, flight.sum, update.samples, std::span(weights_).first(own_),
                                std::span(velocity_).first(own_), train_.update_threads))) {
    update.not_finite = "a weight";
  } else if (!options_.time_only) {
    update.not_finite = run::UpdateBuffers(graph(), flight.buffer_sums, update.samples, buffers_);
  }
  if (!update.not_finite.empty()) return update;
  if (watch_) {
    update.coordinate_momentum = watch_->Add(event.staleness, watch_->Sample(flight.sum),
                                             update.samples, static_cast<double>(sgd.learning_rate),
                                             watch_->Sample(std::span(weights_).first(own_)));
  }
  Release(flight);
  plan::StepDone done{.step = ++step_,
                      .group = update.group,
                      .staleness = event.staleness,
                      .seconds = event.end - event.begin};
  if (!flight.norms.empty()) noise_.Add(flight.norms, plan::SquaredNorm(flight.sum));
  done.noise = noise_.value();
  for (const run::Pools::Part& part : flight.parts) {
    MOTLEY_RETURN_IF_ERROR(pools_.Commit(part, {{0, part.samples()}}));
  }
  for (std::size_t k = 0; k < flight.work.size(); ++k) {
    const auto& [device, samples] = flight.work[k];
    totals_[device].samples += samples;
    totals_[device].compute_seconds += event.compute_seconds[k];
    flight.told[k].compute_seconds = event.compute_seconds[k];
  }
  const auto bytes = static_cast<std::int64_t>((own_ + buffers_.size()) * sizeof(float));
  gradient_bytes_ += 2 * (static_cast<std::int64_t>(flight.work.size()) - 1) * bytes;
  if (groups_.size() > 1) {
    gradient_bytes_ += bytes;
    weight_bytes_ += bytes;
  }
  if (options_.merged_head) activation_bytes_ += ActivationBytes(update.samples);
  sample_bytes_ += SampleBytes(flight);
  update.compute_seconds = event.computed - event.begin;
  update.compute_spread = plan::ComputeSpread(done);
  update.wait_seconds = event.end - event.computed;
  done.parts = std::move(flight.told);
  plan::Event told = std::move(done);
  Tell(told);
  flight.told = std::move(std::get<plan::StepDone>(told).parts);
  return update;
}

void VirtualExecutor::Release(Flight& flight) {
  flight.under_way = false;
  for (const std::size_t member : flight.members) busy_[member] = false;
}

base::Status VirtualExecutor::Lose(const Timeline::Event& event) {
  const VirtualDevice& device = options_.devices[*event.lost];
  lost_at_[*event.lost] = clock_.Now();
  if (event.group >= 0) {
    Flight& flight = flights_[static_cast<std::size_t>(event.group)];
    Release(flight);
    if (head_update_ && head_update_->flight == event.group) head_update_.reset();
    for (const run::Pools::Part& part : flight.parts) {
      MOTLEY_RETURN_IF_ERROR(pools_.GiveBack(part));
    }
  }
  if (Present().empty()) return base::Unavailable("every virtual device has failed");
  TakePlan(plan_);  // without it, and with what was given back, until there is another
  Tell(plan::DeviceLost{device.name, "it failed"});
  return {};
}

std::vector<run::Pools::Device> VirtualExecutor::Present() const {
  std::vector<run::Pools::Device> present;
  for (std::size_t i = 0; i < options_.devices.size(); ++i) {
    if (!lost_at_[i]) present.push_back({options_.devices[i].name, 0});
  }
  return present;
}

base::Result<run::Evaluation> VirtualExecutor::Evaluate() {
  run::Evaluation test;
  if (!options_.time_only) {
    const base::RealClock real;
    const double before = real.Now();
    MOTLEY_ASSIGN_OR_RETURN(
        test, run::Evaluate(device_, weights_, buffers_, data_.test, train_.test_transform,
                            train_.batch, train_.loader_threads, options_.interrupt));
    evaluation_seconds_ += real.Now() - before;
  }
  // The devices do it in the shares of the plan, all at once.
  double speed = 0.0;
  const double now = clock_.Now();
  for (std::size_t i = 0; i < options_.devices.size(); ++i) {
    const VirtualDevice& one = options_.devices[i];
    if (!lost_at_[i]) speed += one.pace.WorkWithin(now, now + 1.0) / one.curve.seconds_per_sample;
  }
  const double seconds = kEvaluationPart * static_cast<double>(test_samples()) / speed;
  clock_.Advance(seconds + (options_.merged_head ? SendHead() : 0.0));
  for (std::size_t i = 0; i < totals_.size(); ++i) {
    if (!lost_at_[i]) totals_[i].compute_seconds += seconds;
  }
  return test;
}

base::Status VirtualExecutor::Capture(run::TrainState& state) {
  state.weights = weights_;
  state.velocity = velocity_;
  state.buffers = buffers_;
  state.kernel_choices = device_.kernel_choices();
  state.private_pools = pools_.pools();
  return {};
}

std::vector<VirtualTotal> VirtualExecutor::totals() const {
  std::vector<VirtualTotal> totals = totals_;
  for (std::size_t i = 0; i < totals.size(); ++i) {
    const double until = lost_at_[i].value_or(clock_.Now());
    totals[i].wait_seconds = std::max(0.0, until - began_ - totals[i].compute_seconds);
  }
  return totals;
}

}  // namespace motley::sim
