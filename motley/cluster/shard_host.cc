#include "motley/cluster/shard_host.h"

#include <algorithm>
#include <chrono>
#include <limits>
#include <utility>

#include "motley/cluster/job.h"

namespace motley::cluster {
namespace {

constexpr auto kStepLook = std::chrono::milliseconds(50);
// One more is still a number.
constexpr std::int64_t kMaxStep = std::numeric_limits<std::int64_t>::max();
// A stranger who knocks all day must not fill the coordinator's connection.
constexpr double kComplaintSeconds = 1.0;

base::Status NoCoordinator() {
  return base::InvalidInput("this is a shard of a model, and no coordinator");
}

std::string Entry(const Caller& caller, const char* key) {
  const auto found = caller.metadata.find(key);
  return found == caller.metadata.end() ? std::string() : found->second;
}

}  // namespace

ShardHost::ShardHost(const Parts& parts, double heartbeat_seconds, Hooks hooks,
                     double early_seconds)
    : parts_(parts),
      hooks_(std::move(hooks)),
      early_seconds_(early_seconds),
      service_(*this, traffic_, heartbeat_seconds, hooks_.on_sent) {}

ShardHost::~ShardHost() { Close(); }

IncomingModel& ShardHost::Incoming(int range) {
  auto& [parts, incoming] = incoming_[range];
  if (incoming == nullptr) {
    parts = std::make_unique<Parts>(parts_.range(range).size, /*buffers=*/0);
    incoming = std::make_unique<IncomingModel>(*parts, /*with_velocity=*/true, proto::ARRAY_SHARD);
  }
  return *incoming;
}

base::Status ShardHost::Take(const proto::Part& part) {
  const auto count = static_cast<std::int64_t>(part.floats().size() / sizeof(float));
  MOTLEY_ASSIGN_OR_RETURN(const int index, parts_.Find(part.offset(), count));
  if (index >= parts_.parameter_parts()) return base::InvalidInput("a shard of the statistics");
  const int range = parts_.RangeOf(index);
  proto::Part own = part;
  own.set_offset(part.offset() - parts_.range(range).offset);
  const std::lock_guard lock(mutex_);
  return Incoming(range).Take(own);
}

bool ShardHost::Complete(const StepKey& key, const proto::Host& order) {
  if (!order.fresh() || order.range() < 1 || order.range() >= parts_.ranges()) return true;
  const std::lock_guard lock(mutex_);
  return Incoming(order.range()).Complete(key);
}

base::Result<proto::Hosting> ShardHost::Host(const StepKey& key, const proto::Host& order,
                                             const std::string& address) {
  if (server_ == nullptr) MOTLEY_RETURN_IF_ERROR(Listen(address));
  MOTLEY_RETURN_IF_ERROR(Serve(key, order));
  proto::Hosting hosting;
  hosting.set_address(address_);
  hosting.set_certificate(identity_.certificate_pem);
  return hosting;
}

base::Status ShardHost::Serve(const StepKey& key, const proto::Host& order) {
  if (order.range() < 1 || order.range() >= parts_.ranges()) {
    return base::InvalidInput("range {} of {}", order.range(), parts_.ranges());
  }
  const std::lock_guard lock(mutex_);
  if (order.fresh()) {
    IncomingModel& incoming = Incoming(order.range());
    if (!incoming.Complete(key)) return base::Cancelled("another state has come");
    model_ =
        std::make_shared<ModelServer>(std::move(incoming.model()), std::move(incoming.velocity()));
    incoming_.erase(order.range());
    open_.clear();
    begun_.clear();
    range_ = order.range();
  } else if (order.range() != range_) {
    return base::InvalidInput("range {}, of which nothing is here", order.range());
  }
  Admit(order);
  return {};
}

base::Status ShardHost::Listen(const std::string& address) {
  MOTLEY_ASSIGN_OR_RETURN(identity_, MakeIdentity());
  const std::string host = address.find(':') == std::string::npos ? address : '[' + address + ']';
  auto server = Server::Start(service_, host + ":0", &identity_);
  if (!server.ok()) {
    return base::Unavailable("cannot listen on {} for a shard of the model: {}", address,
                             server.status().message());
  }
  server_ = std::move(server).value();
  address_ = fmt::format("{}:{}", host, server_->port());
  return {};
}

void ShardHost::Admit(const proto::Host& order) {
  std::map<std::string, SessionPtr> guests;
  for (const proto::Host::Guest& guest : order.guests()) {
    const auto found = guests_.find(guest.name());
    if (found != guests_.end() && found->second->credential == guest.key()) {
      guests.insert(guests_.extract(found));
      continue;
    }
    guests[guest.name()] =
        std::make_shared<Session>(proto::JoinRequest(), guest.name(), guest.key(), "", 0.0);
  }
  guests_.swap(guests);
  for (const auto& [name, session] : guests) {
    session->Close("not a member any more");
    begun_.erase(name);
  }
}

void ShardHost::Close() {
  {
    const std::lock_guard lock(mutex_);
    for (const auto& [name, session] : guests_) session->Close("the shard is closed");
    guests_.clear();
    open_.clear();
    model_ = nullptr;
    range_ = 0;
  }
  changed_.notify_all();
  if (server_ == nullptr) return;
  server_->Shutdown(0.0);
  server_ = nullptr;
}

// --- Steps --------------------------------------------------------------------------------------

base::Status ShardHost::Obey(const StepKey& key, const proto::ShardStep& order) {
  switch (order.kind_case()) {
    case proto::ShardStep::kBegin:
      return Begin(key, order.group(), order.begin());
    case proto::ShardStep::kCommit:
      return Commit(key, order.group());
    case proto::ShardStep::kDiscard: {
      const std::lock_guard lock(mutex_);
      if (open_.erase(order.group()) > 0) model_->Discard(order.group());
      return {};
    }
    case proto::ShardStep::kAsk:
      NameDebtors(order.group());
      return {};
    case proto::ShardStep::KIND_NOT_SET:
      return base::InvalidInput("an order for a shard without content");
  }
  return {};
}

base::Status ShardHost::Begin(const StepKey& key, int group, const proto::ShardStep::Begin& begin) {
  {
    const std::lock_guard lock(mutex_);
    const bool fits = model_ != nullptr && !open_.contains(group) && begin.samples() > 0 &&
                      begin.contributors_size() > 0 && key.step >= 0 && key.step < kMaxStep;
    const auto alone = [](const auto& one) { return one.second.alone; };
    const bool crowded =
        begin.alone() ? !open_.empty() : std::any_of(open_.begin(), open_.end(), alone);
    if (!fits || crowded) return base::InvalidInput("a step of group {} that cannot begin", group);
    OpenStep& open = open_[group];
    open = {key, begin.alone(), {}};
    for (const auto& one : begin.contributors()) {
      begun_[one.name()] = key;
      const auto guest = guests_.find(one.name());
      if (guest != guests_.end()) open.readers.push_back(guest->second);
    }
    model_->Begin(group, MakeStep(open, begin));
  }
  changed_.notify_all();
  return {};
}

ModelServer::Step ShardHost::MakeStep(const OpenStep& open, const proto::ShardStep::Begin& begin) {
  ModelServer::Step step{.key = open.key,
                         .contributors = {},
                         .samples = begin.samples(),
                         .sgd = SgdOf(begin.sgd()),
                         .on_part = {},
                         .on_complete = {}};
  for (const auto& one : begin.contributors()) {
    step.contributors.push_back({one.name(), one.samples()});
  }
  const std::int64_t base = parts_.range(range_).offset;
  step.on_sum = [this, key = open.key, base, model = model_.get()](
                    int index, std::span<const float> sum,
                    const std::vector<plan::GradientNorm>& of) {
    const auto floats = std::make_shared<const std::vector<float>>(sum.begin(), sum.end());
    hooks_.send({key, proto::ARRAY_SUM, 0, std::ssize(*floats), floats, 0,
                 base + model->parts()[index].offset, of});
  };
  if (!open.alone) return step;
  step.on_part = [next = StepKey{open.key.generation, open.key.step + 1}, base,
                  readers = open.readers,
                  model = model_.get()](int index, const ModelArray& floats) {
    const Parts::Part& part = model->parts()[index];
    for (const SessionPtr& reader : readers) {
      reader->parts.Push({next, proto::ARRAY_MODEL, part.offset, part.size, floats, 0, base});
    }
  };
  return step;
}

base::Status ShardHost::Commit(const StepKey& key, int group) {
  const std::lock_guard lock(mutex_);
  const auto found = open_.find(group);
  if (found == open_.end() || found->second.key.generation != key.generation ||
      key.step <= found->second.key.step || !model_->Complete(group)) {
    return base::InvalidInput("a commit of group {}, which has no such step", group);
  }
  const OpenStep open = std::move(found->second);
  open_.erase(found);
  // The coordinator has made the same update, and would not have committed it otherwise.
  if (const std::string bad = model_->Prepare(group); !bad.empty()) {
    model_->Discard(group);
    return base::Internal("{} is not finite at this shard, and is at the coordinator", bad);
  }
  model_->Commit(group);
  if (open.alone) return {};
  const std::int64_t base = parts_.range(range_).offset;
  for (int i = 0; i < model_->parts().count(); ++i) {
    const Parts::Part& part = model_->parts()[i];
    for (const SessionPtr& reader : open.readers) {
      reader->parts.Push(
          {key, proto::ARRAY_MODEL, part.offset, part.size, model_->model(), 0, base});
    }
  }
  return {};
}

void ShardHost::NameDebtors(int group) {
  const std::lock_guard lock(mutex_);
  const auto found = open_.find(group);
  if (found == open_.end()) return;
  for (const SessionPtr& reader : found->second.readers) {
    if (model_->HasAll(reader->name)) continue;
    proto::Complaint complaint;
    complaint.set_member(reader->name);
    complaint.set_what("alive, but its gradient has not come");
    hooks_.complain(complaint);
  }
}

base::Result<ShardHost::Place> ShardHost::AwaitStep(const SessionPtr& session, const StepKey& key) {
  const double deadline = clock_.Now() + early_seconds_;
  std::unique_lock lock(mutex_);
  while (true) {
    // A guest of another state of the range, or somebody else by now who has the same name.
    if (session->closed()) return base::Cancelled("not a member any more");
    // Under the same lock: a later state must not get what was sent for this one.
    if (begun_[session->name] >= key) break;
    if (clock_.Now() > deadline) {
      return base::InvalidInput("a gradient of step {}, generation {}, in which it has no share",
                                key.step, key.generation);
    }
    changed_.wait_for(lock, kStepLook);
  }
  if (model_ == nullptr) return base::Cancelled("the shard is closed");
  return Place{model_, parts_.range(range_).offset};
}

// --- Guests -------------------------------------------------------------------------------------

base::Result<SessionPtr> ShardHost::Authenticate(const Caller& caller) {
  {
    const std::lock_guard lock(mutex_);
    const auto found = guests_.find(Entry(caller, kWorker));
    if (found != guests_.end() &&
        SameSecret(found->second->credential, Entry(caller, kCredential))) {
      return found->second;
    }
  }
  OnRefused(caller, "a key that is not valid (any more)");
  return base::NotFound("the key for this shard is not valid (any more)");
}

base::Status ShardHost::OnPart(const SessionPtr& session, proto::Part& part) {
  const auto refuse = [&](const base::Status& status) {
    proto::Complaint complaint;
    complaint.set_member(session->name);
    complaint.set_what(status.message());
    hooks_.complain(complaint);
    return status;
  };
  const StepKey key{part.generation(), part.step()};
  if (part.array() != proto::ARRAY_UPDATE) {
    return refuse(base::InvalidInput("an array that is not for a shard"));
  }
  const auto place = AwaitStep(session, key);
  if (!place.ok()) {
    if (place.status().code() == base::Code::kCancelled) return {};
    return refuse(place.status());
  }
  if (part.offset() < place->base) return refuse(base::InvalidInput("a gradient of another shard"));
  auto added = place->model->Add(session->name, key, part.offset() - place->base, part.samples(),
                                 std::move(*part.mutable_floats()));
  return added.ok() ? base::Status() : refuse(added.status());
}

void ShardHost::OnClosed(const SessionPtr& session, const std::string& reason) {
  session->Close(reason);
}

void ShardHost::OnRefused(const Caller& caller, const std::string& what) {
  {
    const std::lock_guard lock(mutex_);
    if (clock_.Now() < next_complaint_) return;
    next_complaint_ = clock_.Now() + kComplaintSeconds;
  }
  proto::Complaint complaint;
  complaint.set_peer(caller.peer);
  complaint.set_what(what);
  hooks_.complain(complaint);
}

ShardHost::Bytes ShardHost::TakeBytes() {
  const telemetry::BytesSent total = traffic_.total();
  const Bytes before = std::exchange(told_, {total.gradient, total.weights});
  return {total.gradient - before.gradient, total.weights - before.weights};
}

base::Result<proto::JoinReply> ShardHost::Join(const Caller& caller, const proto::JoinRequest&) {
  OnRefused(caller, "a stranger wants to join at a shard");
  return NoCoordinator();
}

base::Status ShardHost::OnReport(const SessionPtr&, const proto::Report&) {
  return NoCoordinator();
}

base::Status ShardHost::Samples(const proto::SamplesRequest&,
                                const std::function<bool(const proto::SamplesReply&)>&) {
  return NoCoordinator();
}

base::Result<proto::RendezvousReply> ShardHost::Rendezvous(const SessionPtr&,
                                                           const proto::RendezvousRequest&) {
  return NoCoordinator();
}

base::Result<proto::StatusReply> ShardHost::Status(const Caller& caller) {
  OnRefused(caller, "a stranger asks a shard for the status");
  return NoCoordinator();
}

}  // namespace motley::cluster
