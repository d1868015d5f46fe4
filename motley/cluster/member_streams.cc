// The two streams of a membership, and the threads that read and write them.
#include <algorithm>
#include <utility>

#include "motley/cluster/member.h"

namespace motley::cluster {
namespace {

// A coordinator that says nothing for so many heartbeats is lost. More than the two that it allows
// us, because it may be writing a checkpoint on a busy machine.
constexpr double kSilentBeats = 10.0;

}  // namespace

base::Status Member::Open() {
  last_heard_ = clock_.Now();
  link_->Prepare(work_context_);
  link_->Prepare(exchange_context_);
  work_ = link_->control().Work(&work_context_);
  exchange_ = link_->bulk().Exchange(&exchange_context_);
  threads_.emplace_back([this] { ReadOrders(); });
  threads_.emplace_back([this] { WriteReports(); });
  threads_.emplace_back([this] { WriteParts(); });
  return {};
}

void Member::Hang() {
  reports_.Close();
  parts_out_.Close();
  {
    const std::lock_guard lock(mutex_);
    if (!lost_) lost_reason_ = "the connection to the coordinator is lost";
    lost_ = true;
    cancel_ = true;
  }
  changed_.notify_all();
  link_->Hang();
  work_context_.TryCancel();
  exchange_context_.TryCancel();
}

void Member::ReadOrders() {
  proto::Order order;
  while (work_->Read(&order)) {
    last_heard_ = clock_.Now();
    if (order.has_heartbeat()) continue;
    if (order.has_shard()) {
      // At once, because others wait for it while this worker computes.
      const base::Status obeyed = ObeyAsHost(order);
      if (!obeyed.ok()) ReportFailed(order.generation(), obeyed, /*group=*/false);
      continue;
    }
    {
      const std::lock_guard lock(mutex_);
      if (order.generation() > computing_) cancel_ = true;
      orders_.push_back(std::move(order));
    }
    changed_.notify_all();
  }
  {
    const std::lock_guard lock(mutex_);
    if (!lost_) lost_reason_ = "the connection to the coordinator is lost";
    lost_ = true;
    cancel_ = true;
  }
  changed_.notify_all();
  reports_.Close();
  link_->Hang();  // nobody has to wait for samples to learn it
}

bool Member::Silent() const {
  return clock_.Now() - last_heard_ > std::max(5.0, kSilentBeats * joined_.heartbeat_seconds());
}

void Member::WriteReports() {
  proto::Report heartbeat;
  run::Pressure pressure(clock_);  // this thread's own
  double read = clock_.Now();
  std::uint64_t sequence = 0;
  // Twice as often as needed: one late heartbeat must not look like death.
  const double beat = joined_.heartbeat_seconds() / 2;
  while (!reports_.closed()) {
    auto report = reports_.Pop(beat);
    if (reports_.closed()) break;
    // It tells of the time since it was last read, which must not be long.
    if (const double now = clock_.Now(); !report || now - read >= beat) {
      heartbeat.mutable_heartbeat()->set_pressure(pressure.Read());
      read = now;
    }
    proto::Report& message = report ? *report : heartbeat;
    message.set_sequence(++sequence);
    link_->Show(message);
    if (!work_->Write(message)) break;
    if (Silent()) work_context_.TryCancel();
  }
}

void Member::WriteParts() {
  proto::Part part;
  while (!parts_out_.closed()) {
    const auto item = parts_out_.Pop(joined_.heartbeat_seconds());
    if (!item) continue;
    Fill(*item, part);
    link_->Show(part);
    if (!exchange_->Write(part)) break;
  }
}

void Member::ReadParts() {
  proto::Part part;
  base::Status status;
  while (status.ok() && exchange_->Read(&part)) {
    last_heard_ = clock_.Now();
    {
      const std::lock_guard lock(mutex_);
      status = Receive(part);
    }
    changed_.notify_all();
  }
  {
    const std::lock_guard lock(mutex_);
    if (!lost_ && !status.ok())
      lost_reason_ = "the coordinator sends nonsense: " + status.message();
  }
  // Without this stream the other one is of no use.
  work_context_.TryCancel();
}

base::Status Member::Receive(const proto::Part& part) {
  const bool shard = part.array() == proto::ARRAY_SHARD || part.array() == proto::ARRAY_VELOCITY;
  if (host_ != nullptr && shard) return host_->Take(part);
  if (boundary_ == nullptr || part.array() == proto::ARRAY_MODEL) return incoming_->Take(part);
  if (part.array() == proto::ARRAY_HEAD) return incoming_head_->Take(part);
  if (part.array() == proto::ARRAY_ACTIVATIONS) return boundary_->Take(part);
  return base::InvalidInput("an array that is not of the model");
}

}  // namespace motley::cluster
