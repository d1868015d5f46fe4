#include "motley/cluster/desk.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "motley/cluster/job.h"
#include "motley/run/update.h"

namespace motley::cluster {
namespace {

constexpr std::size_t kMaxWorkers = 4096;
constexpr std::size_t kMaxLost = 20;
// A worker that was let in has this long to open its streams.
constexpr double kConnectSeconds = 10.0;
// Gloo's own keys and values are below 1 KB each.
constexpr std::size_t kMaxRendezvousBytes = 64 << 10, kMaxAllRendezvousBytes = 16 << 20;
constexpr std::size_t kMaxRendezvousKeys = 1 << 16;
constexpr int kMaxWaitKeys = kMaxWorkers;
constexpr double kMaxRendezvousSeconds = 30.0;
constexpr int kMaxSampleIds = 1 << 16;
// What nobody needs to be woken for.
constexpr double kNoPressure = 0.1;
// Reports of one worker, of which most wait for orders, while the coordinator's thread does
// something else: a checkpoint takes a while.
constexpr int kMaxQueued = 64;
constexpr int kMaxTimings = 1024, kMaxSpans = 1 << 16;
constexpr std::size_t kMaxComplaint = 4096, kMaxCertificate = 16 << 10;
constexpr std::int64_t kMaxPrivate = std::int64_t{1} << 30;  // sums over all workers still fit
constexpr std::size_t kSampleBytes = 256 << 10;              // of one message
constexpr std::int64_t kLabelsPerMessage = 1 << 16;
// A stranger who knocks all day must not fill the disk with refusals.
constexpr double kRefusalBurst = 50.0, kRefusalsPerSecond = 1.0;

// Names appear in files and on terminals.
bool IsName(const std::string& text) {
  const auto fits = [](unsigned char c) {
    return std::isalnum(c) != 0 || c == '.' || c == '_' || c == '-';
  };
  return !text.empty() && text.size() <= 64 && std::all_of(text.begin(), text.end(), fits);
}

std::string Printable(std::string text) {
  text.resize(std::min<std::size_t>(text.size(), 200));
  for (char& c : text) {
    if (std::isprint(static_cast<unsigned char>(c)) == 0) c = '?';
  }
  return text;
}

std::string Metadata(const Caller& caller, const char* key) {
  const auto found = caller.metadata.find(key);
  return found == caller.metadata.end() ? std::string() : found->second;
}

// A numeric address and a port: others are told to connect there.
bool IsPlace(const proto::Hosting& hosting) {
  const auto fits = [](unsigned char c) {
    return std::isxdigit(c) != 0 || c == '.' || c == ':' || c == '[' || c == ']';
  };
  return hosting.address().size() <= 64 && hosting.certificate().size() <= kMaxCertificate &&
         std::all_of(hosting.address().begin(), hosting.address().end(), fits);
}

bool IsTime(double seconds) { return seconds >= 0.0 && std::isfinite(seconds); }
// A megawatt for three years.
bool IsEnergy(double joules) { return joules >= 0.0 && joules < 1e14; }

// What a worker says of itself is believed as far as it can be true.
base::Status CheckReady(const proto::Ready& ready) {
  const auto plausible = [](double number) { return number >= 0.0 && number <= 1e6; };
  bool fits = ready.probe_size() <= kMaxTimings && ready.cap() >= 0 &&
              ready.private_samples() >= 0 && ready.private_samples() <= kMaxPrivate &&
              ready.private_sha256().size() <= 64 && plausible(ready.watts_idle()) &&
              plausible(ready.watts_busy()) && ready.meter().size() <= 64 &&
              (ready.meter().empty() || ready.meter().starts_with("measured: ")) &&
              Printable(ready.meter()) == ready.meter() && ready.machine().size() <= 64;
  for (const proto::Timing& timing : ready.probe()) {
    fits = fits && timing.samples() > 0 && plausible(timing.seconds());
  }
  return fits ? base::Status()
              : base::InvalidInput("a description of a device that makes no sense");
}

proto::MemberStatus StatusOf(const Session& session, double now) {
  proto::MemberStatus status;
  status.set_name(session.name);
  status.set_host(session.host);
  status.set_device(session.device);
  status.set_peer(session.peer);
  status.set_state(session.state.load());
  status.set_share(session.share);
  status.set_samples_per_second(session.rate);
  status.set_age_seconds(now - session.joined);
  status.set_silent_seconds(std::max(0.0, now - session.last_seen));
  status.set_samples(session.samples);
  status.set_group(session.group);
  status.set_range(session.range);
  return status;
}

}  // namespace

Desk::Desk(const CoordinatorOptions& options, const proto::Job& job, const data::DataPair& data,
           ModelServer& model, HeadServer* head, const base::Clock& clock,
           const CoordinatorHooks& hooks)
    : options_(options),
      job_(job),
      data_(data),
      model_(model),
      head_(head),
      clock_(clock),
      hooks_(hooks),
      refusals_left_(kRefusalBurst) {
  watch_ = std::jthread([this](const std::stop_token& stop) { Watch(stop); });
}

Desk::~Desk() = default;

std::deque<Desk::Item> Desk::TakeNews() {
  const std::lock_guard lock(mutex_);
  for (const Item& item : inbox_) {
    if (!item.closed) --item.session->queued;
  }
  return std::exchange(inbox_, {});
}

void Desk::WaitForNews(double seconds) {
  std::unique_lock lock(mutex_);
  news_.wait_for(lock, std::chrono::duration<double>(seconds),
                 [this] { return woken_ || !inbox_.empty(); });
  woken_ = false;
}

void Desk::Wake() {
  {
    const std::lock_guard lock(mutex_);
    woken_ = true;
  }
  news_.notify_all();
}

std::vector<SessionPtr> Desk::sessions() const {
  const std::lock_guard lock(mutex_);
  std::vector<SessionPtr> all;
  for (const auto& [name, session] : sessions_) all.push_back(session);
  return all;
}

void Desk::SendAway(const SessionPtr& session, const std::string& reason) {
  session->Close(reason);
  OnClosed(session, reason);
}

void Desk::Watch(const std::stop_token& stop) {
  const double beat = options_.heartbeat_seconds;
  std::mutex mutex;
  std::condition_variable_any wake;
  double last = clock_.Now();
  double forgiven = 0.0;  // until then nobody is silent
  while (!stop.stop_requested()) {
    {
      std::unique_lock lock(mutex);
      wake.wait_for(lock, stop, std::chrono::duration<double>(beat / 8), [] { return false; });
    }
    const double now = clock_.Now();
    // This process itself was stopped: what others sent meanwhile is still to be read.
    if (now - last > beat) forgiven = now + beat;
    last = now;
    for (const SessionPtr& session : sessions()) {
      const double allowed = session->connected ? 2 * beat : kConnectSeconds;
      if (now < forgiven || now - session->last_seen <= allowed) continue;
      SendAway(session, fmt::format("no sign of life for {:.1f} s", now - session->last_seen));
    }
  }
}

base::Status Desk::CheckToken(const Caller& caller) {
  const base::Status status =
      options_.tokens->Check(Metadata(caller, kTokenId), Metadata(caller, kTokenSecret));
  if (status.ok()) return {};
  OnRefused(caller, "token: " + status.message());
  // Which of the reasons it was is none of a stranger's business.
  return base::NotFound("the join token is not valid (wrong, expired or revoked)");
}

base::Result<std::string> Desk::ChooseName(const std::string& wanted, bool again) {
  if (wanted.empty()) {
    while (true) {
      const std::string name = fmt::format("worker-{}", joined_++);
      if (!sessions_.contains(name)) return name;
    }
  }
  if (!IsName(wanted)) {
    return base::InvalidInput("'{}' is no name: letters, digits, '.', '_' and '-', at most 64",
                              Printable(wanted));
  }
  if (sessions_.contains(wanted)) {
    // Its connection may have broken without a word: soon it is missed here, too.
    return again ? base::Unavailable("a worker named '{}' is here still", wanted)
                 : base::InvalidInput("a worker named '{}' is here already", wanted);
  }
  return wanted;
}

base::Result<proto::JoinReply> Desk::Join(const Caller& caller, const proto::JoinRequest& request) {
  MOTLEY_RETURN_IF_ERROR(CheckToken(caller));
  if (request.protocol() != kProtocol) {
    return base::InvalidInput(
        "the worker speaks protocol {}, this coordinator {}: use the same version of motley",
        request.protocol(), kProtocol);
  }
  proto::JoinRequest checked = request;
  checked.set_host(Printable(request.host()));
  checked.set_device(Printable(request.device()));
  proto::JoinReply reply;
  {
    const std::lock_guard lock(mutex_);
    if (sessions_.size() >= kMaxWorkers)
      return base::Unavailable("{} workers are here", kMaxWorkers);
    MOTLEY_ASSIGN_OR_RETURN(const std::string name, ChooseName(request.name(), request.again()));
    auto session =
        std::make_shared<Session>(checked, name, RandomHex(32), caller.peer, clock_.Now());
    reply.set_worker(name);
    reply.set_credential(session->credential);
    sessions_.emplace(name, std::move(session));
  }
  *reply.mutable_job() = job_;
  reply.set_heartbeat_seconds(options_.heartbeat_seconds);
  reply.set_gloo(options_.gloo);
  return reply;
}

base::Result<SessionPtr> Desk::Authenticate(const Caller& caller) {
  const std::string credential = Metadata(caller, kCredential);
  {
    const std::lock_guard lock(mutex_);
    const auto found = sessions_.find(Metadata(caller, kWorker));
    if (found != sessions_.end() && SameSecret(found->second->credential, credential)) {
      return found->second;
    }
  }
  OnRefused(caller, "a credential that is not valid (any more)");
  return base::NotFound("the worker's credential is not valid (any more)");
}

base::Status Desk::OnReport(const SessionPtr& session, const proto::Report& report) {
  base::Status status = Accept(session, report);
  if (!status.ok()) session->refused = true;
  return status;
}

base::Status Desk::OnPart(const SessionPtr& session, proto::Part& part) {
  base::Status status = Accept(session, part);
  if (!status.ok()) session->refused = true;
  return status;
}

base::Status Desk::Accept(const SessionPtr& session, const proto::Report& report) {
  session->connected = true;
  session->last_seen = clock_.Now();
  if (report.sequence() != session->last_sequence + 1) {
    return base::InvalidInput("report {} after report {}", report.sequence(),
                              session->last_sequence);
  }
  session->last_sequence = report.sequence();
  switch (report.kind_case()) {
    case proto::Report::kHeartbeat: {
      const double pressure = report.heartbeat().pressure();
      if (!(pressure >= 0.0 && pressure <= 1.0))
        return base::InvalidInput("a pressure of {}", pressure);
      if (pressure < kNoPressure) return {};
      session->pressure = pressure;
      if (session->pressed.exchange(true)) return {};  // it is told of the newest only
      break;
    }
    case proto::Report::kDone: {
      const proto::Done& done = report.done();
      const bool plausible =
          done.samples() >= 0 && done.correct() >= 0 && done.correct() <= done.samples() &&
          IsTime(done.compute_seconds()) && IsTime(done.wait_seconds()) &&
          done.group_bytes() >= 0 && done.weight_bytes() >= 0 && IsPlace(done.hosting()) &&
          done.pressure() >= 0.0 && done.pressure() <= 1.0 && IsEnergy(done.joules()) &&
          IsEnergy(done.joules_busy()) && !(done.squared() < 0.0) && !(done.sum_squared() < 0.0) &&
          done.done_size() <= kMaxSpans;
      if (!plausible) return base::InvalidInput("a report that makes no sense");
      break;
    }
    case proto::Report::kReady:
      MOTLEY_RETURN_IF_ERROR(CheckReady(report.ready()));
      break;
    case proto::Report::kComplaint:
      if (report.complaint().ByteSizeLong() > kMaxComplaint) {
        return base::InvalidInput("a complaint of {} bytes", report.complaint().ByteSizeLong());
      }
      for (const std::string* text : {&report.complaint().peer(), &report.complaint().what()}) {
        if (Printable(*text) != *text)
          return base::InvalidInput("a complaint that nobody can read");
      }
      // Strangers at its door are no fault of the host.
      if (report.complaint().member().empty() && session->queued > kMaxQueued / 2) return {};
      break;
    case proto::Report::kLeave:
    case proto::Report::kFailed:
      break;
    case proto::Report::KIND_NOT_SET:
      return base::InvalidInput("a report without content");
  }
  if (session->queued >= kMaxQueued) {
    return base::InvalidInput("reports faster than they can be read");
  }
  {
    const std::lock_guard lock(mutex_);
    ++session->queued;
    inbox_.push_back({session, report, /*closed=*/false});
    if (report.has_failed()) {
      inbox_.back().report.mutable_failed()->set_message(Printable(report.failed().message()));
    }
  }
  news_.notify_all();
  return {};
}

base::Status Desk::Accept(const SessionPtr& session, proto::Part& part) {
  session->last_seen = clock_.Now();
  const StepKey key{part.generation(), part.step()};
  if (part.array() == proto::ARRAY_ACTIVATIONS && head_ != nullptr) {
    auto added = head_->Add(session->name, key, part.offset(), part.floats());
    return added.ok() ? base::Status() : std::move(added).status();
  }
  if (part.array() == proto::ARRAY_SUM) {
    constexpr int kMaxNorms = 1 << 16;  // members
    if (part.norms_size() > kMaxNorms) return base::InvalidInput("a sum of too many gradients");
    std::vector<plan::GradientNorm> of;
    for (const proto::Part::Norm& norm : part.norms())
      of.push_back({norm.samples(), norm.squared()});
    auto added =
        model_.AddSum(session->name, key, part.offset(), of, std::move(*part.mutable_floats()));
    return added.ok() ? base::Status() : std::move(added).status();
  }
  if (part.array() != proto::ARRAY_UPDATE) return Receive(session, part);
  auto added = model_.Add(session->name, key, part.offset(), part.samples(),
                          std::move(*part.mutable_floats()));
  session->delivered = clock_.Now();
  return added.ok() ? base::Status() : std::move(added).status();
}

base::Status Desk::Receive(const SessionPtr& session, const proto::Part& part) {
  const std::lock_guard lock(upload_mutex_);
  const StepKey key{part.generation(), part.step()};
  if (!upload_ || upload_->from != session->name || key != upload_->key) {
    if (upload_ && key > upload_->key) return base::InvalidInput("a state that nobody asked for");
    return {};  // of a generation that is over
  }
  const bool is_model = part.array() == proto::ARRAY_MODEL;
  if (!is_model && part.array() != proto::ARRAY_VELOCITY)
    return base::InvalidInput("no such array");
  std::vector<float>& target = is_model ? upload_->model : upload_->velocity;
  const std::string& bytes = part.floats();
  if (bytes.size() % sizeof(float) != 0) return base::InvalidInput("{} bytes", bytes.size());
  const auto count = static_cast<std::int64_t>(bytes.size() / sizeof(float));
  MOTLEY_ASSIGN_OR_RETURN(const int index, model_.parts().Find(part.offset(), count));
  if (!is_model && index >= model_.parts().parameter_parts()) {
    return base::InvalidInput("a velocity at {}", part.offset());
  }
  std::vector<bool>& seen = is_model ? upload_->seen_model : upload_->seen_velocity;
  const auto at = static_cast<std::size_t>(index);
  if (seen[at]) return base::InvalidInput("the state at {} comes twice", part.offset());
  const std::span<const float> values = FloatsOf(bytes);
  if (!run::AllFinite(values)) return base::InvalidInput("a state that is not finite");
  seen[at] = true;
  std::copy(values.begin(), values.end(), target.begin() + part.offset());
  upload_->missing -= count;
  if (upload_->missing == 0) Wake();
  return {};
}

void Desk::ExpectUpload(const StepKey& key, const std::string& from) {
  const std::lock_guard lock(upload_mutex_);
  Upload upload{
      .key = key, .from = from, .model = {}, .velocity = {}, .seen_model = {}, .seen_velocity = {}};
  upload.model.resize(static_cast<std::size_t>(model_.parts().floats()));
  upload.velocity.resize(model_.velocity().size());
  upload.seen_model.resize(static_cast<std::size_t>(model_.parts().count()));
  upload.seen_velocity.resize(static_cast<std::size_t>(model_.parts().parameter_parts()));
  upload.missing = static_cast<std::int64_t>(upload.model.size() + upload.velocity.size());
  upload_ = std::move(upload);
}

std::int64_t Desk::MissingOfUpload() const {
  const std::lock_guard lock(upload_mutex_);
  return upload_->missing;
}

Desk::Upload Desk::TakeUpload() {
  const std::lock_guard lock(upload_mutex_);
  Upload taken = std::move(*upload_);
  upload_.reset();
  return taken;
}

void Desk::OnClosed(const SessionPtr& session, const std::string& reason) {
  session->Close(reason);
  {
    const std::lock_guard lock(mutex_);
    const auto found = sessions_.find(session->name);
    if (found == sessions_.end() || found->second != session) return;
    sessions_.erase(found);
    proto::MemberStatus status = StatusOf(*session, clock_.Now());
    status.set_state("lost");
    status.set_reason(session->reason());
    lost_.push_back(std::move(status));
    if (lost_.size() > kMaxLost) lost_.pop_front();
    inbox_.push_back({session, {}, /*closed=*/true});
  }
  news_.notify_all();
}

base::Status Desk::Samples(const proto::SamplesRequest& request,
                           const std::function<bool(const proto::SamplesReply&)>& send) {
  const data::Dataset& set = request.test() ? *data_.test : *data_.train;
  if (request.ids_size() == 0) return SendLabels(set, send);
  if (request.ids_size() > kMaxSampleIds) {
    return base::InvalidInput("{} samples at once", request.ids_size());
  }
  for (const std::uint64_t id : request.ids()) {
    if (id >= static_cast<std::uint64_t>(set.size())) {
      return base::InvalidInput("sample {} of {}", id, set.size());
    }
  }
  return SendPixels(set, request, send);
}

base::Status Desk::SendLabels(const data::Dataset& set,
                              const std::function<bool(const proto::SamplesReply&)>& send) const {
  for (std::int64_t begin = 0; begin < set.size(); begin += kLabelsPerMessage) {
    proto::SamplesReply reply;
    const std::int64_t end = std::min(set.size(), begin + kLabelsPerMessage);
    for (std::int64_t id = begin; id < end; ++id) {
      reply.add_labels(set.label(static_cast<data::SampleId>(id)));
    }
    if (!send(reply)) return base::Cancelled("nobody listens");
  }
  return {};
}

base::Status Desk::SendPixels(const data::Dataset& set, const proto::SamplesRequest& request,
                              const std::function<bool(const proto::SamplesReply&)>& send) const {
  const auto bytes = static_cast<std::size_t>(set.pixels_per_sample());
  std::vector<std::uint8_t> pixels(bytes);
  proto::SamplesReply reply;
  for (const std::uint64_t id : request.ids()) {
    MOTLEY_RETURN_IF_ERROR(set.Decode(id, pixels));
    reply.add_ids(id);
    reply.mutable_pixels()->append(pixels.begin(), pixels.end());
    if (reply.pixels().size() < kSampleBytes) continue;
    if (!send(reply)) return base::Cancelled("nobody listens");
    reply.Clear();
  }
  if (reply.ids_size() > 0 && !send(reply)) return base::Cancelled("nobody listens");
  return {};
}

void Desk::BeginGeneration(std::uint64_t generation, const std::vector<SessionPtr>& members) {
  {
    const std::lock_guard lock(rendezvous_mutex_);
    rendezvous_generation_ = generation;
    rendezvous_members_ = {members.begin(), members.end()};
    rendezvous_waiting_.clear();
    rendezvous_.clear();
    rendezvous_bytes_ = 0;
  }
  rendezvous_changed_.notify_all();
}

base::Result<proto::RendezvousReply> Desk::Rendezvous(const SessionPtr& session,
                                                      const proto::RendezvousRequest& request) {
  if (!options_.gloo) return base::InvalidInput("no groups are formed in this job");
  std::unique_lock lock(rendezvous_mutex_);
  const auto over = [&] { return request.generation() != rendezvous_generation_; };
  if (over()) return base::Unavailable("generation {} is over", request.generation());
  if (!rendezvous_members_.contains(session)) {
    return base::InvalidInput("{} is not in the group that is formed", session->name);
  }
  if (!request.set_key().empty()) MOTLEY_RETURN_IF_ERROR(SetRendezvous(request));
  if (request.wait_keys_size() == 0) return proto::RendezvousReply();
  if (request.wait_keys_size() > kMaxWaitKeys || !rendezvous_waiting_.insert(session).second) {
    return base::InvalidInput("{} waits for too much at once", session->name);
  }
  const auto all_here = [&] {
    return over() || std::all_of(request.wait_keys().begin(), request.wait_keys().end(),
                                 [&](const auto& key) { return rendezvous_.contains(key); });
  };
  // Not a number is no time, either.
  const double seconds =
      request.wait_seconds() > 0.0 ? std::min(request.wait_seconds(), kMaxRendezvousSeconds) : 0.0;
  proto::RendezvousReply reply;
  reply.set_found(
      rendezvous_changed_.wait_for(lock, std::chrono::duration<double>(seconds), all_here));
  if (over()) return base::Unavailable("generation {} is over", request.generation());
  rendezvous_waiting_.erase(session);
  if (reply.found()) {
    for (const auto& key : request.wait_keys()) reply.add_values(rendezvous_[key]);
  }
  return reply;
}

base::Status Desk::SetRendezvous(const proto::RendezvousRequest& request) {
  const std::size_t bytes = request.set_key().size() + request.set_value().size();
  if (bytes > kMaxRendezvousBytes || rendezvous_bytes_ + bytes > kMaxAllRendezvousBytes ||
      rendezvous_.size() >= kMaxRendezvousKeys) {
    return base::InvalidInput("a rendezvous of {} bytes", bytes);
  }
  // Else a member could keep another one from being found.
  if (!rendezvous_.emplace(request.set_key(), request.set_value()).second) {
    return base::InvalidInput("a key of the rendezvous that is set already");
  }
  rendezvous_bytes_ += bytes;
  rendezvous_changed_.notify_all();
  return {};
}

void Desk::Show(const proto::StatusReply& progress) {
  const std::lock_guard lock(mutex_);
  progress_ = progress;
}

base::Result<proto::StatusReply> Desk::Status(const Caller& caller) {
  MOTLEY_RETURN_IF_ERROR(CheckToken(caller));
  const std::lock_guard lock(mutex_);
  proto::StatusReply reply = progress_;
  const double now = clock_.Now();
  for (const auto& [name, session] : sessions_) *reply.add_members() = StatusOf(*session, now);
  for (const auto& gone : lost_) *reply.add_members() = gone;
  return reply;
}

void Desk::OnRefused(const Caller& caller, const std::string& what) {
  const std::string shown = Printable(what);
  EventOfStranger("refused", fmt::format("refused {}: {}", caller.peer, shown),
                  {{"peer", caller.peer}, {"what", shown}});
}

void Desk::EventOfStranger(const std::string& name, const std::string& message,
                           std::vector<std::pair<std::string, std::string>> fields) {
  std::int64_t hidden = 0;
  {
    const std::lock_guard lock(refusals_mutex_);
    const double now = clock_.Now();
    refusals_left_ =
        std::min(kRefusalBurst, refusals_left_ + kRefusalsPerSecond * (now - refusals_time_));
    refusals_time_ = now;
    if (refusals_left_ < 1.0) {
      ++refusals_hidden_;
      return;
    }
    refusals_left_ -= 1.0;
    hidden = std::exchange(refusals_hidden_, 0);
  }
  fields.emplace_back("more", std::to_string(hidden));
  Event(name, hidden > 0 ? fmt::format("{} (and {} more before)", message, hidden) : message,
        fields);
}

void Desk::Event(const std::string& name, const std::string& message,
                 const std::vector<std::pair<std::string, std::string>>& fields) {
  const std::lock_guard lock(event_mutex_);
  if (hooks_.on_event) hooks_.on_event(name, message, fields);
}

}  // namespace motley::cluster
