#include "motley/sim/virtual_executor.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <utility>

#include "motley/data/pooled_dataset.h"
#include "motley/run/evaluate.h"
#include "motley/run/update.h"

namespace motley::sim {
namespace {

// Forward only, against forward and both backward passes.
constexpr double kEvaluationPart = 1.0 / 3.0;

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
      pools_(std::move(pools)),
      weights_(std::move(state.weights)),
      velocity_(std::move(state.velocity)),
      buffers_(std::move(state.buffers)),
      gradient_(weights_.size()),
      sum_(weights_.size()),
      part_sums_(buffers_.size()),
      buffer_sums_(buffers_.size()),
      step_(state.step) {
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
  std::vector<std::size_t> all(options_.devices.size());
  std::iota(all.begin(), all.end(), std::size_t{0});
  for (const VirtualDevice& one : options_.devices) {
    plan::SpeedCurve curve = one.curve;
    curve.fixed_seconds /= one.pace.speed;
    curve.seconds_per_sample /= one.pace.speed;
    Tell(plan::DeviceJoined{.device = one.name,
                            .curve = curve,
                            .communication_seconds = ReductionSeconds(all),
                            .power = one.power,
                            .private_samples = one.secret == nullptr ? 0 : one.secret->size()});
  }
}

std::string VirtualExecutor::kind() const {
  return fmt::format("{} virtual devices", options_.devices.size());
}

void VirtualExecutor::Tell(const plan::Event& event) {
  auto plan = controller_.OnEvent(event);
  for (const plan::Note& note : controller_.TakeNotes()) {
    if (options_.on_note) options_.on_note(note);
  }
  if (plan) plan_ = std::move(*plan);
}

double VirtualExecutor::ReductionSeconds(std::span<const std::size_t> members) const {
  if (members.size() < 2) return 0.0;
  double slowest = std::numeric_limits<double>::infinity();
  for (const std::size_t member : members) {
    slowest = std::min(slowest, options_.devices[member].bytes_per_second);
  }
  const auto n = static_cast<double>(members.size());
  const double bytes = static_cast<double>((weights_.size() + buffers_.size()) * sizeof(float));
  return 2.0 * (n - 1.0) / n * bytes / slowest + 2.0 * (n - 1.0) * options_.latency_seconds;
}

std::vector<run::Pools::Device> VirtualExecutor::Planned() const {
  std::vector<run::Pools::Device> devices;
  for (const VirtualDevice& one : options_.devices) {
    devices.push_back({one.name, 0});
    for (const plan::Share& share : plan_.shares) {
      if (share.device == one.name) devices.back().share = share.samples;
    }
  }
  return devices;
}

const data::Permutation& VirtualExecutor::Order(std::uint64_t seed, std::int64_t size,
                                                std::uint64_t epoch) {
  auto found = orders_.find(seed);
  if (found == orders_.end() || found->second.first != epoch) {
    found = orders_.insert_or_assign(seed, std::pair(epoch, data::Permutation(size, seed, epoch)))
                .first;
  }
  return found->second.second;
}

base::Result<data::Batch> VirtualExecutor::Load(std::size_t device, const run::Pools::Part& part) {
  const Source& source = sources_[device];
  std::vector<data::SampleId> ids;
  for (const data::Ticket& ticket : part.public_tickets) {
    const auto some = Order(train_.seed, data_.train->size(), ticket.epoch).Ids(ticket);
    ids.insert(ids.end(), some.begin(), some.end());
  }
  for (data::Ticket ticket : part.private_tickets) {
    ticket.begin -= part.private_begin;
    ticket.end -= part.private_begin;
    const auto& secret = options_.devices[device].secret;
    for (const data::SampleId id : Order(source.seed, secret->size(), ticket.epoch).Ids(ticket)) {
      ids.push_back(source.first_id + id);
    }
  }
  data::Loader& loader = source.loader != nullptr ? *source.loader : *sources_.front().loader;
  loader.Submit(std::move(ids), ledger().epoch());
  return loader.Next();
}

base::Result<run::Update> VirtualExecutor::Step(const optim::SgdOptions& wanted) {
  if (options_.interrupt != nullptr && options_.interrupt->load()) {
    return base::Cancelled("interrupted");
  }
  const auto planned = Planned();
  std::int64_t batch = 0;
  for (const auto& device : planned) batch += device.share;
  const std::vector<run::Pools::Part> parts = pools_.Take(
      batch > 0 ? std::min(batch, train_.batch) : train_.batch, options_.multiple, planned);
  run::Update update;
  plan::StepDone event{.step = step_ + 1};
  std::fill(sum_.begin(), sum_.end(), 0.0F);
  std::fill(buffer_sums_.begin(), buffer_sums_.end(), 0.0F);
  const double began = clock_.Now();
  double last = began;
  std::vector<std::size_t> members;
  const base::RealClock real;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const std::int64_t samples = parts[i].samples();
    if (samples == 0) continue;
    members.push_back(i);
    MOTLEY_ASSIGN_OR_RETURN(const data::Batch loaded, Load(i, parts[i]));
    const double before = real.Now();
    engine::StepRequest request;
    request.weights = weights_;
    request.batch = &loaded;
    request.seed = train_.seed;
    request.gradient = gradient_;
    request.buffer_sums = part_sums_;
    MOTLEY_ASSIGN_OR_RETURN(const engine::StepResult result, device_.Step(request));
    gradient_seconds_ += real.Now() - before;
    for (std::size_t k = 0; k < sum_.size(); ++k) sum_[k] += gradient_[k];
    for (std::size_t k = 0; k < buffer_sums_.size(); ++k) buffer_sums_[k] += part_sums_[k];
    update.samples += samples;
    update.loss_sum += result.loss_sum;
    update.correct += result.correct;
    const VirtualDevice& device = options_.devices[i];
    const double end = device.pace.FinishTime(began, device.curve.At(samples));
    totals_[i].samples += samples;
    totals_[i].compute_seconds += end - began;
    last = std::max(last, end);
    event.parts.push_back({device.name, samples, end - began, 0.0});
  }
  if (update.samples == 0) return update;
  optim::SgdOptions sgd = wanted;
  sgd.learning_rate *= static_cast<float>(plan_.learning_rate_factor);
  if (!std::isfinite(update.loss_sum)) {
    update.not_finite = "the loss";
  } else if (!optim::SgdUpdate(sgd, sum_, update.samples, weights_, velocity_,
                               train_.update_threads)) {
    update.not_finite = "a weight";
  } else {
    update.not_finite = run::UpdateBuffers(graph(), buffer_sums_, update.samples, buffers_);
  }
  if (!update.not_finite.empty()) return update;
  for (const run::Pools::Part& part : parts) {
    MOTLEY_RETURN_IF_ERROR(pools_.Commit(part, {{0, part.samples()}}));
  }
  const double network = ReductionSeconds(members);
  if (members.size() > 1) {
    gradient_bytes_ +=
        2 * (static_cast<std::int64_t>(members.size()) - 1) *
        static_cast<std::int64_t>((weights_.size() + buffers_.size()) * sizeof(float));
  }
  update.compute_seconds = last - began;
  update.wait_seconds = network;
  clock_.Advance(last - began + network);
  for (std::size_t i = 0; i < totals_.size(); ++i) {
    double computed = 0.0;
    for (const auto& part : event.parts) {
      if (part.device == totals_[i].name) computed = part.compute_seconds;
    }
    totals_[i].wait_seconds += clock_.Now() - began - computed;
  }
  ++step_;
  event.seconds = clock_.Now() - began;
  Tell(event);
  return update;
}

base::Result<run::Evaluation> VirtualExecutor::Evaluate() {
  MOTLEY_ASSIGN_OR_RETURN(
      const run::Evaluation test,
      run::Evaluate(device_, weights_, buffers_, data_.test, train_.test_transform, train_.batch,
                    train_.loader_threads, options_.interrupt));
  // The devices do it in the shares of the plan, all at once.
  double speed = 0.0;
  const double now = clock_.Now();
  for (const VirtualDevice& one : options_.devices) {
    speed += one.pace.WorkWithin(now, now + 1.0) / one.curve.seconds_per_sample;
  }
  const double seconds = kEvaluationPart * static_cast<double>(test.samples) / speed;
  clock_.Advance(seconds);
  for (VirtualTotal& total : totals_) total.compute_seconds += seconds;
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

}  // namespace motley::sim
