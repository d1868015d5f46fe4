#include "motley/cluster/member.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <numeric>
#include <utility>

#include "motley/cluster/job.h"
#include "motley/data/loader.h"
#include "motley/engine/native/native_device.h"
#include "motley/plan/noise.h"
#include "motley/run/update.h"

namespace motley::cluster {
namespace {

constexpr double kLeaveSeconds = 30.0, kHandOverSeconds = 300.0;
constexpr double kFarewellSeconds = 1.0;
constexpr auto kLook = std::chrono::milliseconds(50);

StepKey KeyOf(const proto::Order& order) { return {order.generation(), order.step()}; }

std::span<float> Part(std::vector<float>& array, std::size_t begin, std::size_t size) {
  return std::span(array).subspan(begin, size);
}

}  // namespace

Member::Member(const WorkerOptions& options, std::shared_ptr<Link> link,
               const proto::JoinReply& joined, Workshop& workshop, const std::atomic<bool>* leave)
    : options_(options),
      link_(std::move(link)),
      joined_(joined),
      workshop_(workshop),
      leave_(leave) {}

Member::~Member() {
  Hang();
  links_.clear();
  threads_.clear();  // joins them
  if (work_ != nullptr) (void)work_->Finish();
  if (exchange_ != nullptr) (void)exchange_->Finish();
}

base::Result<WorkerReport> Member::Run() {
  if (!(joined_.heartbeat_seconds() >= 0.01 && joined_.heartbeat_seconds() <= 3600.0)) {
    return base::InvalidInput("a heartbeat every {} s", joined_.heartbeat_seconds());
  }
  MOTLEY_RETURN_IF_ERROR(Open());
  if (auto prepared = Prepare(); !prepared.ok()) {
    {
      // A probe that the end of the job, or the loss of the connection, has broken off is no fault
      // of the device.
      const std::lock_guard lock(mutex_);
      for (const proto::Order& order : orders_) {
        if (!order.has_stop()) continue;
        report_.reason = order.stop().reason();
        return report_;
      }
      if (lost_) return base::Unavailable("{}", lost_reason_);
    }
    SayFarewell(0, prepared);
    return prepared;
  }
  ReportReady();
  while (auto order = NextOrder()) {
    if (order->has_stop()) {
      report_.reason = order->stop().reason();
      report_.end = leave_deadline_ > 0.0 ? WorkerReport::End::kLeft : WorkerReport::End::kFinished;
      return report_;
    }
    auto done = Do(*order);
    if (done.ok() || done.code() == base::Code::kCancelled) continue;
    SayFarewell(order->generation(), done);
    return done;
  }
  if (leave_deadline_ > 0.0) {
    report_.end = WorkerReport::End::kLeft;
    return report_;
  }
  const std::lock_guard lock(mutex_);
  return base::Unavailable("{}", lost_reason_);
}

// --- Orders -------------------------------------------------------------------------------------

base::Status Member::MakeDevices() {
  engine::DeviceOptions options = options_.device;
  options.bn_batch = joined_.job().bn_batch();
  const auto make = options_.make_device ? options_.make_device : engine::native::MakeNativeDevice;
  MOTLEY_ASSIGN_OR_RETURN(workshop_.device, make(workshop_.graph, options));
  if (!joined_.job().merged_head()) return {};
  MOTLEY_ASSIGN_OR_RETURN(graph::Halves halves, graph::Split(*workshop_.graph));
  MOTLEY_ASSIGN_OR_RETURN(
      workshop_.body, make(std::make_shared<const graph::Graph>(std::move(halves.body)), options));
  return {};
}

base::Status Member::Prepare() {
  if (joined_.job().merged_head() && !options_.private_data.empty()) {
    return base::InvalidInput(
               "the job has a merged head: what the net makes of private samples "
               "would leave this machine")
        .WithFix("join without --private, or start the job without cluster.merged_head");
  }
  const std::string job = joined_.job().SerializeAsString();
  if (workshop_.job != job) {
    workshop_ = {};
    MOTLEY_ASSIGN_OR_RETURN(graph::Graph graph, BuildGraph(joined_.job()));
    workshop_.graph = std::make_shared<const graph::Graph>(std::move(graph));
    MOTLEY_RETURN_IF_ERROR(MakeDevices());
    workshop_.own_data = FindOwnCopy(options_, joined_.job());
    MOTLEY_ASSIGN_OR_RETURN(workshop_.private_data, OpenPrivate(options_, joined_.job()));
    MOTLEY_RETURN_IF_ERROR(Probe());
    workshop_.job = job;
  }
  if (!options_.power && !options_.sysfs.empty()) {
    auto meter = energy::OpenMeter(options_.sysfs, clock_);
    if (meter.ok()) meter_ = std::move(meter).value();
  }
  const graph::Graph& trained = trainer().graph();
  parameters_ = static_cast<std::size_t>(trained.parameter_count());
  const int shards = joined_.job().shards();
  parts_ = std::make_unique<Parts>(trained.parameter_count(), trained.buffer_count(), shards);
  if (shards > 1) MakeHost();
  if (workshop_.body != nullptr) {
    boundary_ = std::make_unique<Boundary>(trained.num_classes(), parts_out_);
    head_parts_ =
        std::make_unique<Parts>(workshop_.graph->parameter_count() - trained.parameter_count(), 0);
    incoming_head_ =
        std::make_unique<IncomingModel>(*head_parts_, /*with_velocity=*/false, proto::ARRAY_HEAD);
  }
  progress_ = std::make_unique<PartProgress>(*parts_);
  incoming_ = std::make_unique<IncomingModel>(*parts_, joined_.gloo());
  MOTLEY_ASSIGN_OR_RETURN(data_, WorkerData::Open(options_, joined_.job(), workshop_.own_data,
                                                  workshop_.private_data, joined_.worker(), link_));
  // Parts can be told apart only now.
  threads_.emplace_back([this] { ReadParts(); });
  return {};
}

base::Status Member::Probe() {
  if (options_.probe_seconds <= 0.0) return {};
  run::ProbeOptions probe{.batch = joined_.job().batch(),
                          .multiple = std::max<std::int64_t>(1, joined_.job().bn_batch()),
                          .seconds = options_.probe_seconds,
                          .cache = options_.probe_cache,
                          .key = {},
                          .devices_here = options_.devices_here,
                          .cancel = &cancel_,
                          .on_progress = options_.on_note};
  const int threads =
      options_.device.threads > 0 ? options_.device.threads : engine::native::UsableCores();
  probe.key = run::ProbeKey(trainer(), probe.batch, probe.multiple, threads);
  MOTLEY_ASSIGN_OR_RETURN(workshop_.probed, run::Probe(trainer(), probe, clock_));
  return {};
}

std::optional<proto::Order> Member::NextOrder() {
  std::unique_lock lock(mutex_);
  while (true) {
    if (leave_ != nullptr && leave_->load() && leave_deadline_ == 0.0) {
      leave_deadline_ = clock_.Now() + kLeaveSeconds;
      proto::Report report;
      report.mutable_leave();
      reports_.Push(std::move(report));
    }
    if (!orders_.empty()) break;
    if (lost_) return std::nullopt;
    if (leave_deadline_ > 0.0 && clock_.Now() > leave_deadline_) return std::nullopt;
    changed_.wait_for(lock, kLook);
  }
  proto::Order order = std::move(orders_.front());
  orders_.pop_front();
  computing_ = order.generation();
  cancel_ = lost_ || std::any_of(orders_.begin(), orders_.end(), [&](const proto::Order& later) {
              return later.generation() > computing_;
            });
  return order;
}

base::Status Member::Do(const proto::Order& order) {
  switch (order.kind_case()) {
    case proto::Order::kLoad:
      return Load(order);
    case proto::Order::kTrain:
      return Train(order);
    case proto::Order::kEvaluate:
      return Evaluate(order);
    case proto::Order::kSave:
      return Save(order);
    case proto::Order::kForm:
      return Form(order);
    case proto::Order::kHost:
      return Host(order);
    case proto::Order::kShards:
      return Connect(order);
    default:
      return {};  // abort: to have come here is all there is to do
  }
}

base::Status Member::Await(const IncomingModel& incoming, const StepKey& key) {
  std::unique_lock lock(mutex_);
  while (!incoming.Complete(key)) {
    if (cancel_ || lost_) return base::Cancelled("a newer generation has begun");
    changed_.wait_for(lock, kLook);
  }
  return {};
}

base::Status Member::AwaitNext(const StepKey& key) {
  // Who had no share gets all of it from the coordinator.
  if (!pending_->contributes || links_.empty()) return Await(*incoming_, key);
  const double patience = ShardPatience(joined_.heartbeat_seconds());
  double came = clock_.Now();  // the last part
  bool told = false;
  std::unique_lock lock(mutex_);
  std::int64_t missing = incoming_->Missing(key);
  while (!incoming_->Complete(key)) {
    if (cancel_ || lost_) return base::Cancelled("a newer generation has begun");
    const std::int64_t before = std::exchange(missing, incoming_->Missing(key));
    if (missing != before) came = clock_.Now();
    if (!told && clock_.Now() > came + patience) told = NameSilentHosts(key);
    changed_.wait_for(lock, kLook);
  }
  return {};
}

base::Status Member::Load(const proto::Order& order) {
  MOTLEY_RETURN_IF_ERROR(Await(*incoming_, KeyOf(order)));
  {
    const std::lock_guard lock(mutex_);
    model_ = incoming_->model();
    velocity_ = incoming_->velocity();
  }
  model_step_ = order.step();
  pending_.reset();
  ReportDone(order, {}, 0.0);
  return {};
}

base::Status Member::Advance(const proto::Order& order) {
  if (model_.empty()) return base::InvalidInput("an order before there is a model");
  if (model_step_ == order.step()) {
    pending_.reset();
    return {};
  }
  // With other groups at work the model may have seen more updates than this one's.
  const bool follows =
      joined_.gloo() ? order.step() == model_step_ + 1 : order.step() > model_step_;
  if (!pending_ || !follows) {
    return base::Internal("the coordinator is at step {}, this worker at {}", order.step(),
                          model_step_);
  }
  if (order.committed() < 1 || order.committed() > pending_->samples) {
    return base::InvalidInput("{} of {} samples in an update", order.committed(),
                              pending_->samples);
  }
  MOTLEY_RETURN_IF_ERROR(ApplyPending(order));
  pending_.reset();
  model_step_ = order.step();
  return {};
}

base::Status Member::ApplyPending(const proto::Order& order) {
  if (!joined_.gloo()) {
    MOTLEY_RETURN_IF_ERROR(AwaitNext({pending_->key.generation, order.step()}));
    const std::lock_guard lock(mutex_);
    std::swap(model_, incoming_->model());
    return {};
  }
  const auto gradient = std::span<const float>(*update_).first(parameters_);
  const auto sums = std::span<const float>(*update_).subspan(parameters_);
  const int threads = std::max(1, options_.device.threads);
  const std::int64_t committed = order.committed();
  const auto sgd = run::ForFewer(pending_->sgd, committed, pending_->samples);
  const bool finite = optim::SgdUpdate(sgd, gradient, committed, weights(), velocity_, threads) &&
                      run::UpdateBuffers(*workshop_.graph, sums, committed, buffers()).empty();
  if (!finite) finite_ = false;
  return {};
}

base::Status Member::Train(const proto::Order& order) {
  MOTLEY_RETURN_IF_ERROR(Advance(order));
  const double began = clock_.Now();
  const proto::Train& train = order.train();
  MOTLEY_ASSIGN_OR_RETURN(const data::Batch batch, data_->Take(train.part(), train.next()));
  const double waited = clock_.Now() - began;
  if (update_ == nullptr || update_generation_ != order.generation()) {
    update_ = std::make_shared<std::vector<float>>(model_.size());
    update_generation_ = order.generation();
  }
  progress_->Restart();
  squared_ = 0.0;
  if (reducer_ != nullptr) reducer_->Begin(update_);
  const std::optional<double> joules_before = ReadMeter();
  auto result = Compute(order, batch);
  if (joules_before) joules_busy_ += ReadMeter().value_or(*joules_before) - *joules_before;
  if (boundary_ != nullptr && !boundary_->finite()) {
    finite_ = false;  // and there is no gradient: all that is left is to say so
    ReportDone(order, {}, waited);
    return {};
  }
  if (!result.ok()) return std::move(result).status();
  report_.samples += result->samples_done;
  if (reducer_ != nullptr) {
    if (auto reduced = reducer_->Finish(&cancel_); !reduced.ok()) {
      reducer_ = nullptr;
      if (reduced.code() != base::Code::kCancelled) {
        ReportFailed(order.generation(), reduced, /*group=*/true);
      }
      return base::Cancelled("{}", reduced.message());
    }
    // All have the same sum, so each looks at a slice of it.
    const auto rank = static_cast<std::size_t>(group_rank_);
    const auto size = static_cast<std::size_t>(group_size_);
    const std::size_t begin = parameters_ * rank / size, end = parameters_ * (rank + 1) / size;
    sum_squared_ = plan::SquaredNorm(Part(*update_, begin, end - begin));
  }
  pending_ = {KeyOf(order), train.samples(), batch.size() > 0, SgdOf(train.sgd())};
  ReportDone(order, *result, waited);
  return {};
}

base::Result<engine::StepResult> Member::Compute(const proto::Order& order,
                                                 const data::Batch& batch) {
  const StepKey key = KeyOf(order);
  const auto gradient = Part(*update_, 0, parameters_);
  const auto sums = Part(*update_, parameters_, update_->size() - parameters_);
  const auto all = static_cast<std::int64_t>(parameters_);
  engine::StepResult result;
  if (batch.size() == 0) {
    // Still a member: it receives the model, and in a ring it passes on what others send.
    if (reducer_ != nullptr) {
      std::fill(update_->begin(), update_->end(), 0.0F);
      Announce(key, 0, static_cast<std::int64_t>(update_->size()), 0);
    }
    return result;
  }
  engine::StepRequest request;
  request.weights = weights();
  request.batch = &batch;
  request.seed = joined_.job().seed();
  request.cancel = &cancel_;
  request.gradient = gradient;
  request.buffer_sums = sums;
  const double limit = order.train().deadline_seconds();
  if (limit > 0.0) request.deadline = clock_.Now() + limit;
  if (boundary_ != nullptr) {
    if (limit > 0.0) return base::InvalidInput("a deadline for a net whose head is elsewhere");
    boundary_->Begin(key, batch.size());
    request.on_boundary = [&](const engine::Crossing& crossing) {
      return boundary_->Cross(crossing, cancel_);
    };
  }
  std::int64_t announced = 0;
  std::vector<std::pair<std::int64_t, std::int64_t>> held;
  request.on_bucket = [&](std::int64_t offset, std::int64_t count) {
    announced += count;
    // A gradient is final when no lane will stop early any more. Before the deadline none has;
    // after it, only the end of the step tells how many samples the sum is over.
    if (clock_.Now() < request.deadline) {
      Announce(key, offset, count, batch.size());
    } else {
      held.emplace_back(offset, count);
    }
  };
  MOTLEY_ASSIGN_OR_RETURN(result, trainer().Step(request));
  if (boundary_ != nullptr) {
    result.seconds = std::max(0.0, result.seconds - boundary_->wait_seconds());
  }
  if (cancel_) return base::Cancelled("a newer generation has begun");
  const bool whole = result.samples_done == batch.size();
  if ((!whole && limit <= 0.0) || announced != all) {
    return base::Internal("the device did {} of {} samples and announced {} of {} gradients",
                          result.samples_done, batch.size(), announced, all);
  }
  if (!std::isfinite(result.loss_sum)) finite_ = false;
  for (const auto& [offset, count] : held) Announce(key, offset, count, result.samples_done);
  Announce(key, all, static_cast<std::int64_t>(sums.size()), result.samples_done);
  return result;
}

void Member::Announce(const StepKey& key, std::int64_t offset, std::int64_t count,
                      std::int64_t samples) {
  if (count == 0) return;
  const auto piece =
      Part(*update_, static_cast<std::size_t>(offset), static_cast<std::size_t>(count));
  if (!run::AllFinite(piece)) finite_ = false;
  if (reducer_ != nullptr) {
    // Now, because the sum over all will stand in its place.
    if (samples > 0 && offset < static_cast<std::int64_t>(parameters_)) {
      squared_ += plan::SquaredNorm(piece);
    }
    link_->Show(piece);
    reducer_->Announce(offset, count);
    return;
  }
  std::vector<int> completed;
  progress_->Add(offset, count, completed);
  for (const int index : completed) {
    if (!finite_) return;  // told in the report; nobody could use the rest
    const Parts::Part& part = (*parts_)[index];
    PartToSend item{key, proto::ARRAY_UPDATE, part.offset, part.size, update_, samples};
    const auto shard = links_.find(parts_->RangeOf(index));
    if (shard != links_.end()) {
      shard->second->Send(std::move(item));
    } else {
      parts_out_.Push(std::move(item));
    }
  }
}

base::Result<std::span<const float>> Member::WholeWeights(const proto::Order& order) {
  if (boundary_ == nullptr) return std::span<const float>(weights());
  MOTLEY_RETURN_IF_ERROR(Await(*incoming_head_, KeyOf(order)));
  whole_.assign(weights().begin(), weights().end());
  const std::lock_guard lock(mutex_);
  whole_.insert(whole_.end(), incoming_head_->model().begin(), incoming_head_->model().end());
  return std::span<const float>(whole_);
}

base::Status Member::Evaluate(const proto::Order& order) {
  MOTLEY_RETURN_IF_ERROR(Advance(order));
  const proto::Evaluate& wanted = order.evaluate();
  const std::int64_t size = data_->test()->size();
  if (wanted.begin() < 0 || wanted.begin() > wanted.end() || wanted.end() > size) {
    return base::InvalidInput("samples {} to {} of a test set of {}", wanted.begin(), wanted.end(),
                              size);
  }
  MOTLEY_ASSIGN_OR_RETURN(const std::span<const float> trained, WholeWeights(order));
  const std::int64_t batch = std::max<std::int64_t>(1, joined_.job().batch());
  constexpr std::int64_t kAhead = 4;
  data::Loader loader(data_->test(), data_->test_transform(),
                      {.threads = options_.loader_threads, .seed = 0});
  engine::StepResult total;
  for (std::int64_t done = wanted.begin(), asked = done; done < wanted.end();) {
    if (cancel_) return base::Cancelled("a newer generation has begun");
    for (; asked < wanted.end() && loader.pending() < kAhead;) {
      std::vector<data::SampleId> ids(
          static_cast<std::size_t>(std::min(batch, wanted.end() - asked)));
      std::iota(ids.begin(), ids.end(), static_cast<data::SampleId>(asked));
      asked += static_cast<std::int64_t>(ids.size());
      data_->PrefetchTest(ids);
      loader.Submit(std::move(ids), /*epoch=*/0);
    }
    MOTLEY_ASSIGN_OR_RETURN(const data::Batch samples, loader.Next());
    MOTLEY_ASSIGN_OR_RETURN(
        const engine::StepResult part,
        workshop_.device->Forward(
            {.weights = trained, .buffers = buffers(), .batch = &samples, .logits = {}}));
    total.loss_sum += part.loss_sum;
    total.correct += part.correct;
    total.samples_done += part.samples_done;
    total.seconds += part.seconds;
    done += samples.size();
  }
  ReportDone(order, total, 0.0);
  return {};
}

base::Status Member::Save(const proto::Order& order) {
  if (!joined_.gloo()) return base::InvalidInput("asked for a state that is not kept here");
  MOTLEY_RETURN_IF_ERROR(Advance(order));
  const auto send = [&](proto::Array array, const std::vector<float>& floats, int count) {
    const auto copy = std::make_shared<const std::vector<float>>(floats);
    for (int i = 0; i < count; ++i) {
      parts_out_.Push({KeyOf(order), array, (*parts_)[i].offset, (*parts_)[i].size, copy});
    }
  };
  send(proto::ARRAY_MODEL, model_, parts_->count());
  send(proto::ARRAY_VELOCITY, velocity_, parts_->parameter_parts());
  // The last one goes when the model is there, and nobody else has it.
  if (leave_deadline_ > 0.0) leave_deadline_ = clock_.Now() + kHandOverSeconds;
  ReportDone(order, {}, 0.0);
  return {};
}

base::Result<std::string> Member::OwnAddress() const {
  if (!options_.address.empty()) return options_.address;
  if (options_.channel != nullptr) return std::string("127.0.0.1");
  return AddressTowards(options_.coordinator);
}

base::Status Member::Form(const proto::Order& order) {
  MOTLEY_RETURN_IF_ERROR(Advance(order));
  reducer_ = nullptr;
  MOTLEY_ASSIGN_OR_RETURN(const std::string address, OwnAddress());
  GlooOptions gloo;
  gloo.rank = order.form().rank();
  gloo.size = order.form().members_size();
  gloo.address = address;
  gloo.store = link_->MakeStore(order.generation());
  gloo.late_floats = trainer().graph().buffer_count();
  if (gloo.rank < 0 || gloo.rank >= gloo.size) return base::InvalidInput("rank {}", gloo.rank);
  auto formed = GlooReducer::Form(gloo, &cancel_);
  if (!formed.ok()) {
    if (!cancel_) ReportFailed(order.generation(), formed.status(), /*group=*/true);
    return base::Cancelled("{}", formed.status().message());
  }
  reducer_ = std::move(formed).value();
  group_rank_ = gloo.rank;
  group_size_ = gloo.size;
  ReportDone(order, {}, 0.0);
  return {};
}

void Member::SayFarewell(std::uint64_t generation, const base::Status& status) {
  ReportFailed(generation, status, /*group=*/false);
  const double deadline = clock_.Now() + kFarewellSeconds;
  while (!reports_.empty() && clock_.Now() < deadline) std::this_thread::sleep_for(kLook / 10);
  std::this_thread::sleep_for(kLook);  // the last one is on its way
}

}  // namespace motley::cluster
