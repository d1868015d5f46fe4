// What a member tells the coordinator of itself and of its steps.
#include <utility>

#include "motley/cluster/member.h"
#include "motley/energy/sysfs.h"

namespace motley::cluster {
namespace {

// What others may be told of a failure: names of private files can be private, too.
std::string Discreet(const std::string& message, const std::string& private_data) {
  const std::string place = private_data.substr(private_data.find(':') + 1);
  if (place.empty() || message.find(place) == std::string::npos) return message;
  return "its private data cannot be used; it says why itself";
}

// The id of the machine's last start: another one on every machine, and the same in all containers
// of one, as its meters are.
std::string MachineOf(const WorkerOptions& options) {
  if (!options.machine.empty()) return options.machine;
  const auto id = energy::ReadLine("/proc/sys/kernel/random/boot_id");
  return id.ok() ? *id : options.host;
}

}  // namespace

void Member::ReportReady() {
  proto::Report report;
  proto::Ready& ready = *report.mutable_ready();
  for (const plan::Timing& timing : workshop_.probed.timings) {
    proto::Timing& one = *ready.add_probe();
    one.set_samples(timing.samples);
    one.set_seconds(timing.seconds);
  }
  if (workshop_.probed.cap != plan::kNoCap) ready.set_cap(workshop_.probed.cap);
  if (options_.power) {
    ready.set_has_power(true);
    ready.set_watts_idle(options_.power->watts_idle);
    ready.set_watts_busy(options_.power->watts_busy);
  }
  if (meter_ != nullptr) {
    ready.set_meter(std::string(meter_->source()));
    ready.set_machine(MachineOf(options_));
  }
  if (workshop_.private_data != nullptr) {
    ready.set_private_samples(workshop_.private_data->size());
    // Of the content, and so no content itself.
    ready.set_private_sha256(workshop_.private_data->ContentHash());
  }
  // A range that a thread of the coordinator's own process holds would take nothing off it.
  ready.set_can_host(host_ != nullptr && options_.channel == nullptr);
  if (host_ != nullptr) {
    const auto address = OwnAddress();
    ready.set_here_only(address.ok() && IsLoopback(*address));
  }
  reports_.Push(std::move(report));
}

std::optional<double> Member::ReadMeter() {
  if (meter_ == nullptr) return std::nullopt;
  const auto joules = meter_->Joules();
  return joules.ok() ? std::optional(*joules) : std::nullopt;
}

void Member::ReportDone(const proto::Order& order, const engine::StepResult& result,
                        double wait_seconds) {
  proto::Report report;
  proto::Done& done = *report.mutable_done();
  done.set_generation(order.generation());
  done.set_step(order.step());
  done.set_loss_sum(result.loss_sum);
  done.set_correct(result.correct);
  done.set_samples(result.samples_done);
  done.set_compute_seconds(result.seconds);
  done.set_wait_seconds(wait_seconds);
  done.set_finite(finite_);
  if (order.has_train()) {
    std::int64_t asked = 0;
    for (const auto* ranges : {&order.train().part().open(), &order.train().part().own()}) {
      for (const proto::Range& range : *ranges) asked += range.end() - range.begin();
    }
    for (const auto& [begin, end] : result.done) {
      if (result.samples_done == asked) break;  // all of them: no need to say which
      proto::Span& span = *done.add_done();
      span.set_begin(begin);
      span.set_end(end);
    }
    done.set_pressure(pressure_.Read());
  }
  if (const auto joules = ReadMeter()) {
    done.set_has_joules(true);
    done.set_joules(*joules);
    done.set_joules_busy(joules_busy_);
  }
  if (order.has_train() && reducer_ != nullptr) {
    // A ring: everything but one's own part, once for the sum and once for the result.
    const auto bytes = static_cast<std::int64_t>(update_->size() * sizeof(float));
    done.set_group_bytes(2 * bytes * (group_size_ - 1) / group_size_);
    done.set_squared(squared_);
    done.set_sum_squared(sum_squared_);
  }
  if (host_ != nullptr) {
    const ShardHost::Bytes bytes = host_->TakeBytes();
    done.set_group_bytes(bytes.gradient);
    done.set_weight_bytes(bytes.weights);
  }
  reports_.Push(std::move(report));
}

void Member::ReportFailed(std::uint64_t generation, const base::Status& status, bool group) {
  proto::Report report;
  report.mutable_failed()->set_generation(generation);
  report.mutable_failed()->set_message(Discreet(status.message(), options_.private_data));
  report.mutable_failed()->set_group(group);
  reports_.Push(std::move(report));
}

}  // namespace motley::cluster
