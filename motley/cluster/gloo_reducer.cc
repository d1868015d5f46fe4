#include "motley/cluster/gloo_reducer.h"

#include <gloo/allreduce.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/store.h>
#include <gloo/transport/tcp/device.h>
#include <pthread.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <condition_variable>
#include <csignal>
#include <cstddef>
#include <exception>
#include <map>
#include <mutex>
#include <stdexcept>
#include <system_error>
#include <thread>
#include <utility>

#include "motley/base/check.h"
#include "motley/base/descriptor.h"
#include "motley/cluster/resolve.h"

namespace motley::cluster {
namespace {

using std::chrono::milliseconds;
using Time = std::chrono::steady_clock::time_point;

// Nobody rings when a cancel flag changes or a member leaves, so whoever waits looks this often.
constexpr milliseconds kPoll{20};
// A member that left may have done its part: so long may the next bucket take without it.
constexpr milliseconds kPatience{500};
// How many buckets are summed at the same time: while one waits for its peers, another uses the
// network. 244 MB over two members took 388 ms with one, 258 ms with two.
constexpr std::size_t kThreads = 2;
// How long an interrupted collective may take to return before its thread is left behind.
constexpr milliseconds kGrace{200};

Time TimeAfter(double seconds) {
  return std::chrono::steady_clock::now() +
         std::chrono::duration_cast<std::chrono::steady_clock::duration>(
             std::chrono::duration<double>(seconds));
}

// At least one millisecond, because Gloo takes zero for "no limit".
milliseconds Milliseconds(double seconds) {
  return std::max(milliseconds(1),
                  std::chrono::ceil<milliseconds>(std::chrono::duration<double>(seconds)));
}

double SecondsUntil(Time time) {
  const std::chrono::duration<double> left = time - std::chrono::steady_clock::now();
  return std::max(0.0, left.count());
}

bool IsSet(const std::atomic<bool>* cancel) { return cancel != nullptr && cancel->load(); }

// A RendezvousStore as Gloo wants to see it: it expects failures as exceptions.
class GlooStore final : public gloo::rendezvous::Store {
 public:
  GlooStore(std::shared_ptr<RendezvousStore> store, Time deadline)
      : store_(std::move(store)), deadline_(deadline) {}

  void set(const std::string& key, const std::vector<char>& data) override {
    const base::Status status = store_->Set(key, std::string(data.begin(), data.end()));
    if (!status.ok()) throw std::runtime_error(status.message());
  }

  std::vector<char> get(const std::string& key) override {
    if (!values_.contains(key)) wait({key});
    const std::string& value = values_.at(key);
    return {value.begin(), value.end()};
  }

  void wait(const std::vector<std::string>& keys) override {
    const auto values = store_->Wait(keys, SecondsUntil(deadline_));
    if (!values.ok()) throw std::runtime_error(values.status().message());
    if (values->size() != keys.size()) throw std::runtime_error("the store lost values");
    for (std::size_t i = 0; i < keys.size(); ++i) values_[keys[i]] = (*values)[i];
  }

  // Gloo's limit is meant for one connection; ours is for the whole rendezvous.
  void wait(const std::vector<std::string>& keys, const milliseconds& /*limit*/) override {
    wait(keys);
  }

 private:
  const std::shared_ptr<RendezvousStore> store_;
  const Time deadline_;
  std::map<std::string, std::string> values_;
};

// out = a + b. Gloo gives out == a, or else ranges that do not overlap; gloo::sum does not tell the
// compiler, which then leaves it scalar. Blocks of a fixed length vectorize at -O2 too.
void Add(void* out_bytes, const void* a_bytes, const void* b_bytes, std::size_t count) {
  constexpr std::size_t kBlock = 16;
  float* out = static_cast<float*>(out_bytes);
  const float* a = static_cast<const float*>(a_bytes);
  const float* b = static_cast<const float*>(b_bytes);
  std::size_t i = 0;
  for (; i + kBlock <= count; i += kBlock) {
    float sums[kBlock];
    for (std::size_t j = 0; j < kBlock; ++j) sums[j] = a[i + j] + b[i + j];
    std::copy_n(sums, kBlock, out + i);
  }
  for (; i < count; ++i) out[i] = a[i] + b[i];
}

// Throws what Gloo throws. Collectives that run at the same time need different tags, the same on
// all members. `limit` is for every wait inside, not for the sum of them.
void AllReduce(const std::shared_ptr<gloo::Context>& context, std::uint32_t tag, float* data,
               std::int64_t count, milliseconds limit) {
  gloo::AllreduceOptions options(context);
  options.setAlgorithm(gloo::AllreduceOptions::Algorithm::RING);
  options.setOutput(data, static_cast<std::size_t>(count));
  options.setReduceFunction(Add);
  options.setTag(tag);
  options.setTimeout(limit);
  gloo::allreduce(options);
}

bool CanListenAt(const Endpoint& place) {
  const base::Descriptor socket(::socket(place.address.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  return socket.get() >= 0 && ::bind(socket.get(), place.get(), place.size) == 0;
}

// One of this machine, as a number. Gloo reads an uninitialized pointer when a name does not
// resolve, and leaks when it is not one of this machine; so both are found out here. And it would
// look a name up once more, for as long as the resolver likes.
base::Result<std::string> NumericAddress(const std::string& address, Time deadline) {
  const auto found = Resolve(address, "", SecondsUntil(deadline));
  if (!found.ok()) {
    return base::InvalidInput("the address \"{}\" is unknown: {}", address,
                              found.status().message());
  }
  for (const Endpoint& place : *found) {
    if (CanListenAt(place)) return place.Number();
  }
  return base::InvalidInput("\"{}\" is not an address of this machine", address)
      .WithFix("give an address of this machine that the other members can reach");
}

base::Result<std::shared_ptr<gloo::transport::Device>> OpenDevice(const std::string& address,
                                                                  Time deadline) {
  MOTLEY_ASSIGN_OR_RETURN(const std::string number, NumericAddress(address, deadline));
  try {
    gloo::transport::tcp::attr attributes;
    attributes.hostname = number;
    return gloo::transport::tcp::CreateDevice(attributes);
  } catch (const std::exception& error) {
    return base::InvalidInput("cannot listen at \"{}\": {}", address, error.what());
  }
}

// The connections to the other members.
struct Group {
  explicit Group(std::shared_ptr<gloo::Context> connected) : context(std::move(connected)) {
    for (int rank = 0; rank < context->size; ++rank) {
      if (rank != context->rank) tripwire->recv(rank, kTripwireSlot, 0, sizeof(never_received));
    }
  }

  // Gloo tells the loss of a connection only to those who wait for something on it, that is to the
  // neighbours in the ring, and not even to all of them. So something is awaited from everybody.
  bool MemberIsGone() const {
    try {
      tripwire->abortWaitRecv();  // so that the wait only looks
      tripwire->waitRecv(milliseconds(1));
      return false;
    } catch (const std::exception&) {
      return true;
    }
  }

  // Makes the calls that wait in the context throw, and closes its connections, so that the others
  // notice at once. Gloo does this only as the consequence of a receive that took too long; so here
  // is one, for which nothing was sent. (The tripwire may know of a failure and not wait at all.)
  // A call that waits for the rest of a message goes on waiting.
  void Interrupt() const {
    float unused = 0.0f;
    try {
      context->createUnboundBuffer(&unused, sizeof(unused))->waitRecv(milliseconds(1));
    } catch (const std::exception&) {
      return;  // as intended
    }
  }

  static constexpr std::uint64_t kTripwireSlot = std::uint64_t{0xff} << 56;  // none of Gloo's
  const std::shared_ptr<gloo::Context> context;
  float never_received = 0.0f;
  const std::unique_ptr<gloo::transport::UnboundBuffer> tripwire =
      context->createUnboundBuffer(&never_received, sizeof(never_received));
};

// Ends with a sum over all members, which fails when a stranger took the place of one: Gloo
// believes whoever connects first.
base::Result<std::shared_ptr<Group>> Connect(const GlooOptions& options, Time deadline) {
  MOTLEY_ASSIGN_OR_RETURN(auto device, OpenDevice(options.address, deadline));
  try {
    GlooStore store(options.store, deadline);
    const auto context = std::make_shared<gloo::rendezvous::Context>(options.rank, options.size);
    // For a connection Gloo waits five times its limit.
    context->setTimeout(Milliseconds(SecondsUntil(deadline) / 5));
    context->connectFullMesh(store, device);
    float members = 1.0f;
    AllReduce(context, /*tag=*/0, &members, 1, Milliseconds(SecondsUntil(deadline)));
    if (members == static_cast<float>(options.size)) return std::make_shared<Group>(context);
    return base::Unavailable("the members of the group do not agree on its size");
  } catch (const std::exception& error) {
    return base::Unavailable("the group was not formed: {}", error.what());
  }
}

// A write to a closed connection shall be an error of the call, not the end of the process. Threads
// that this one starts inherit it: Gloo's does the writing.
void BlockSigpipe() {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGPIPE);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
}

struct Range {
  std::int64_t offset = 0, count = 0;
};

// The order of the buckets, and how much of each is still to be announced: first those of the body,
// from its end to its beginning, then those of the late part.
class Buckets {
 public:
  explicit Buckets(const GlooOptions& options)
      : bucket_floats_(options.bucket_floats), late_floats_(options.late_floats) {}

  void Reset(std::int64_t size) {
    size_ = missing_ = size;
    body_ = std::max<std::int64_t>(0, size - late_floats_);
    buckets_.clear();
    Cut(0, body_);
    body_count_ = buckets_.size();
    Cut(body_, size_);
  }

  void Announce(std::int64_t offset, std::int64_t count) {
    MOTLEY_CHECK(offset >= 0 && count >= 0 && count <= size_ - offset,
                 "[{}, +{}) is not in an array of {}", offset, count, size_);
    for (std::int64_t end = offset + count; end > offset;) {
      Bucket& bucket = buckets_[IndexOf(end - 1)];
      const std::int64_t begin = std::max(offset, bucket.range.offset);
      bucket.missing -= end - begin;
      MOTLEY_CHECK(bucket.missing >= 0, "announced twice: in [{}, +{})", offset, count);
      end = begin;
    }
    missing_ -= count;
  }

  std::size_t count() const { return buckets_.size(); }
  std::int64_t missing() const { return missing_; }
  bool IsFinal(std::size_t k) const { return buckets_[k].missing == 0; }
  Range RangeOf(std::size_t k) const { return buckets_[k].range; }

 private:
  struct Bucket {
    Range range;
    std::int64_t missing = 0;
  };

  void Cut(std::int64_t begin, std::int64_t end) {
    while (end > begin) {
      const std::int64_t count = std::min(bucket_floats_, end - begin);
      end -= count;
      buckets_.push_back({{end, count}, count});
    }
  }

  std::size_t IndexOf(std::int64_t i) const {
    return i < body_ ? static_cast<std::size_t>((body_ - 1 - i) / bucket_floats_)
                     : body_count_ + static_cast<std::size_t>((size_ - 1 - i) / bucket_floats_);
  }

  const std::int64_t bucket_floats_, late_floats_;
  std::int64_t size_ = 0, body_ = 0, missing_ = 0;
  std::size_t body_count_ = 0;
  std::vector<Bucket> buckets_;
};

}  // namespace

// Shared by the owner and the threads, so that each may be the last to leave.
class GlooReducer::Impl : public std::enable_shared_from_this<Impl> {
 public:
  explicit Impl(const GlooOptions& options)
      : options_(options), deadline_(TimeAfter(options.form_seconds)), buckets_(options) {}

  base::Status Start(const std::atomic<bool>* cancel);
  void Begin(std::shared_ptr<std::vector<float>> array);
  void Announce(std::int64_t offset, std::int64_t count);
  base::Status Finish(const std::atomic<bool>* cancel);
  void Stop();

 private:
  enum class Phase {
    kForming,  // in the rendezvous, which nothing can interrupt
    kWaiting,  // for a bucket
    kBusy,     // in a collective
    kClosing,  // will end by itself, soon
  };
  struct Work {
    std::shared_ptr<std::vector<float>> array;
    std::size_t bucket = 0;
    Range range;
  };

  // What the threads do: the first one forms the group, then all serve it.
  void Form();
  void Serve(std::size_t thread, const Group& group);
  base::Status ReduceBuckets(std::size_t thread, const Group& group);
  Work NextBucket(std::size_t thread);
  void BucketIsReduced(std::size_t thread);

  base::Status WaitUntilFormed(const std::atomic<bool>* cancel);
  bool IsBusy() const { return std::count(phases_.begin(), phases_.end(), Phase::kBusy) > 0; }
  bool IsReducing() const {
    return options_.size > 1 && status_.ok() && reduced_ < buckets_.count();
  }
  bool BucketIsReady() const { return taken_ < buckets_.count() && buckets_.IsFinal(taken_); }

  const GlooOptions options_;
  const Time deadline_;                        // of the rendezvous
  std::array<std::thread, kThreads> threads_;  // of the owner only

  std::mutex mutex_;                 // of all that follows
  std::condition_variable work_;     // for the threads: a bucket is ready, or it is time to end
  std::condition_variable changed_;  // for the owner: phases_, status_, or all is reduced
  std::array<Phase, kThreads> phases_ = {Phase::kForming, Phase::kWaiting};
  bool stop_ = false;
  base::Status status_;           // the first failure, which is for good
  std::shared_ptr<Group> group_;  // of the threads; here to be watched and interrupted
  std::shared_ptr<std::vector<float>> array_;
  Buckets buckets_;
  std::size_t taken_ = 0, reduced_ = 0;  // how many buckets are; taken in order
};

base::Status GlooReducer::Impl::Start(const std::atomic<bool>* cancel) {
  try {
    threads_[0] = std::thread([self = shared_from_this()] { self->Form(); });
    MOTLEY_RETURN_IF_ERROR(WaitUntilFormed(cancel));
    for (std::size_t i = 1; i < kThreads; ++i) {
      const std::lock_guard lock(mutex_);
      threads_[i] =
          std::thread([self = shared_from_this(), i, group = group_] { self->Serve(i, *group); });
    }
  } catch (const std::system_error& error) {
    return base::Unavailable("no thread for the group: {}", error.what());
  }
  return {};
}

base::Status GlooReducer::Impl::WaitUntilFormed(const std::atomic<bool>* cancel) {
  std::unique_lock lock(mutex_);
  while (phases_[0] == Phase::kForming) {
    if (IsSet(cancel)) return base::Cancelled("forming the group was cancelled");
    const Time now = std::chrono::steady_clock::now();
    if (now >= deadline_) {
      return base::Unavailable("the {} members of the group did not meet within {} s",
                               options_.size, options_.form_seconds);
    }
    changed_.wait_until(lock, std::min<Time>(deadline_, now + kPoll));
  }
  return status_;
}

void GlooReducer::Impl::Begin(std::shared_ptr<std::vector<float>> array) {
  MOTLEY_CHECK(array != nullptr, "an array is needed");
  const std::lock_guard lock(mutex_);
  MOTLEY_CHECK(array_ == nullptr || !status_.ok(), "the array before this one is not finished");
  array_ = std::move(array);
  buckets_.Reset(std::ssize(*array_));
  taken_ = reduced_ = 0;
}

void GlooReducer::Impl::Announce(std::int64_t offset, std::int64_t count) {
  bool ready = false;
  {
    const std::lock_guard lock(mutex_);
    MOTLEY_CHECK(array_ != nullptr, "Announce without Begin");
    buckets_.Announce(offset, count);
    ready = BucketIsReady();
  }
  if (ready) work_.notify_one();
}

base::Status GlooReducer::Impl::Finish(const std::atomic<bool>* cancel) {
  std::unique_lock lock(mutex_);
  MOTLEY_CHECK(array_ != nullptr, "Finish without Begin");
  MOTLEY_CHECK(buckets_.missing() == 0, "{} floats were not announced", buckets_.missing());
  bool gave_up = false;
  std::size_t before = reduced_;
  Time progress = std::chrono::steady_clock::now();
  while (IsReducing()) {
    if (IsSet(cancel)) {
      status_ = base::Cancelled("the reduction was cancelled");
    } else if (std::chrono::steady_clock::now() - progress > kPatience) {
      status_ = base::Unavailable("a member of the group is gone");
    }
    gave_up = !status_.ok();
    if (gave_up || changed_.wait_for(lock, kPoll, [this] { return !IsReducing(); })) break;
    if (reduced_ != before || !group_->MemberIsGone()) progress = std::chrono::steady_clock::now();
    before = reduced_;
  }
  array_.reset();
  base::Status status = status_;
  lock.unlock();
  if (gave_up) Stop();
  return status;
}

// Ends the threads, and leaves behind those that a peer holds in a call.
void GlooReducer::Impl::Stop() {
  std::unique_lock lock(mutex_);
  stop_ = true;
  work_.notify_all();
  if (IsBusy() && group_ != nullptr) {
    std::shared_ptr<Group> group = group_;
    lock.unlock();
    group->Interrupt();
    group.reset();
    lock.lock();
  }
  changed_.wait_for(lock, kGrace, [this] { return !IsBusy(); });
  const std::array<Phase, kThreads> phases = phases_;
  lock.unlock();
  for (std::size_t i = 0; i < kThreads; ++i) {
    if (!threads_[i].joinable()) continue;
    if (phases[i] == Phase::kForming || phases[i] == Phase::kBusy) {
      threads_[i].detach();
    } else {
      threads_[i].join();
    }
  }
}

void GlooReducer::Impl::Form() {
  BlockSigpipe();
  auto connected = Connect(options_, deadline_);
  std::shared_ptr<Group> group;
  if (connected.ok()) group = std::move(*connected);
  {
    const std::lock_guard lock(mutex_);
    phases_[0] = group != nullptr ? Phase::kWaiting : Phase::kClosing;
    status_ = connected.status();
    group_ = group;
  }
  changed_.notify_all();
  if (group != nullptr) Serve(0, *group);
}

void GlooReducer::Impl::Serve(std::size_t thread, const Group& group) {
  BlockSigpipe();
  const base::Status status = ReduceBuckets(thread, group);
  bool failed = false;
  {
    const std::lock_guard lock(mutex_);
    phases_[thread] = Phase::kClosing;
    if (status_.ok()) status_ = status;
    failed = !status_.ok();
    group_.reset();
  }
  work_.notify_all();
  changed_.notify_all();
  // So a failure becomes that of the other threads, and of all members.
  if (failed) group.Interrupt();
}

base::Status GlooReducer::Impl::ReduceBuckets(std::size_t thread, const Group& group) {
  const milliseconds limit = Milliseconds(options_.reduce_seconds);
  try {
    for (Work work = NextBucket(thread); work.array != nullptr; work = NextBucket(thread)) {
      AllReduce(group.context, static_cast<std::uint32_t>(work.bucket),
                work.array->data() + work.range.offset, work.range.count, limit);
      work.array = nullptr;  // before the owner hears of it: then the array is the owner's alone
      BucketIsReduced(thread);
    }
  } catch (const std::exception& error) {
    return base::Unavailable("a member of the group failed: {}", error.what());
  }
  return {};
}

// Waits for the next bucket; no array when it is time to end.
GlooReducer::Impl::Work GlooReducer::Impl::NextBucket(std::size_t thread) {
  std::unique_lock lock(mutex_);
  work_.wait(lock, [this] { return stop_ || !status_.ok() || BucketIsReady(); });
  if (stop_ || !status_.ok()) return {};
  phases_[thread] = Phase::kBusy;
  Work work{array_, taken_, buckets_.RangeOf(taken_)};
  ++taken_;
  if (BucketIsReady()) work_.notify_one();  // one announcement can be the last of many buckets
  return work;
}

void GlooReducer::Impl::BucketIsReduced(std::size_t thread) {
  bool awaited = false;
  {
    const std::lock_guard lock(mutex_);
    phases_[thread] = Phase::kWaiting;
    ++reduced_;
    awaited = stop_ || reduced_ == buckets_.count();
  }
  if (awaited) changed_.notify_all();
}

GlooReducer::GlooReducer(std::shared_ptr<Impl> impl) : impl_(std::move(impl)) {}
GlooReducer::~GlooReducer() { impl_->Stop(); }

base::Result<std::unique_ptr<GlooReducer>> GlooReducer::Form(const GlooOptions& options,
                                                             const std::atomic<bool>* cancel) {
  MOTLEY_CHECK(options.size >= 1 && options.rank >= 0 && options.rank < options.size,
               "there is no member {} of {}", options.rank, options.size);
  MOTLEY_CHECK(options.bucket_floats >= 1 && options.late_floats >= 0, "buckets of {}, {} late",
               options.bucket_floats, options.late_floats);
  std::unique_ptr<GlooReducer> reducer(new GlooReducer(std::make_shared<Impl>(options)));
  if (options.size > 1) {
    MOTLEY_CHECK(options.store != nullptr, "a group needs a store to meet at");
    MOTLEY_RETURN_IF_ERROR(reducer->impl_->Start(cancel));
  }
  return {std::move(reducer)};
}

void GlooReducer::Begin(std::shared_ptr<std::vector<float>> array) {
  impl_->Begin(std::move(array));
}
void GlooReducer::Announce(std::int64_t offset, std::int64_t count) {
  impl_->Announce(offset, count);
}
base::Status GlooReducer::Finish(const std::atomic<bool>* cancel) { return impl_->Finish(cancel); }

}  // namespace motley::cluster
