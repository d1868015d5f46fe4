#include "motley/engine/native/lanes.h"

#include <cblas.h>
#include <fmt/format.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <climits>

#include <limits>
#include <system_error>
#include <utility>

#include "motley/base/check.h"
#include "motley/base/cpu.h"

// Of the OpenMP runtime that oneDNN is linked with; the compiler's own omp.h may mean another one.
extern "C" void omp_set_num_threads(int threads);

namespace motley::engine::native {

namespace {

void StayOn(std::thread& thread, int core) {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (core >= 0 && core < CPU_SETSIZE) CPU_SET(static_cast<std::size_t>(core), &set);
  const int failed = ::pthread_setaffinity_np(thread.native_handle(), sizeof(set), &set);
  if (failed != 0) {
    throw std::system_error(failed, std::generic_category(), fmt::format("core {}", core));
  }
}

// Sleeps while `word` is `value`. Not std::atomic::wait, which calls sched_yield before it sleeps:
// to a program that burns the core that means several milliseconds, and a lane that has yielded does
// not get its core back when the others arrive, as one that sleeps does.
template <typename Word>
void SleepWhile(std::atomic<Word>& word, Word value) {
  static_assert(sizeof(word) == 4 && std::atomic<Word>::is_always_lock_free);
  while (word.load(std::memory_order_acquire) == value) {
    ::syscall(SYS_futex, &word, FUTEX_WAIT_PRIVATE, value, nullptr, nullptr, 0);
  }
}

template <typename Word>
void WakeAll(std::atomic<Word>& word) {
  ::syscall(SYS_futex, &word, FUTEX_WAKE_PRIVATE, INT_MAX, nullptr, nullptr, 0);
}

}  // namespace

// About 20 microseconds: longer than the usual difference between lanes, shorter than what sleeping
// and waking costs.
constexpr int kSpins = 5000;
// Of a latch: below everything that its count can come to.
constexpr int kAbandoned = std::numeric_limits<int>::min() / 2;

void Barrier::Wait() {
  // The round first: whoever abandons later changes it, and so wakes us.
  const std::uint32_t round = round_.load(std::memory_order_acquire);
  if (abandoned_.load(std::memory_order_acquire)) throw Abandoned();
  if (count_ == 1) return;
  if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == count_) {
    arrived_.store(0, std::memory_order_relaxed);
    round_.store(round + 1, std::memory_order_release);
    WakeAll(round_);
    return;
  }
  for (int spin = 0; spin < kSpins && round_.load(std::memory_order_acquire) == round; ++spin) {
  }
  SleepWhile(round_, round);
  if (abandoned_.load(std::memory_order_acquire)) throw Abandoned();
}

void Barrier::Abandon() {
  abandoned_.store(true, std::memory_order_release);
  round_.fetch_add(1, std::memory_order_acq_rel);
  WakeAll(round_);
}

void Latch::CountDown() {
  if (left_.fetch_sub(1, std::memory_order_acq_rel) == 1) WakeAll(left_);
}

void Latch::Wait() {
  int left = left_.load(std::memory_order_acquire);
  for (int spin = 0; spin < kSpins && left > 0; ++spin)
    left = left_.load(std::memory_order_acquire);
  while (left > 0) {
    SleepWhile(left_, left);
    left = left_.load(std::memory_order_acquire);
  }
  if (left < 0) throw Abandoned();
}

void Latch::Abandon() {
  left_.exchange(kAbandoned, std::memory_order_acq_rel);
  WakeAll(left_);
}

LanePool::LanePool(int lanes, const std::vector<int>& cores) {
  MOTLEY_CHECK(lanes >= 1, "a device needs a lane");
  MOTLEY_CHECK(cores.empty() || static_cast<int>(cores.size()) == lanes, "{} cores for {} lanes",
               cores.size(), lanes);
  openblas_set_num_threads(1);
  threads_.reserve(static_cast<std::size_t>(lanes));
  try {
    for (int lane = 0; lane < lanes; ++lane) {
      threads_.emplace_back([this, lane] { Loop(lane); });
      if (!cores.empty()) StayOn(threads_.back(), cores[static_cast<std::size_t>(lane)]);
    }
  } catch (...) {
    // The system has no more threads: those that run must end before the caller hears of it.
    Stop();
    throw;
  }
}

LanePool::~LanePool() { Stop(); }

void LanePool::Stop() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  begin_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void LanePool::Run(int lanes, Wanted wanted, const std::function<void(int)>& work) {
  MOTLEY_CHECK(lanes >= 1 && lanes <= size(), "{} lanes of {}", lanes, size());
  std::unique_lock lock(mutex_);
  work_ = &work;
  wanted_ = wanted;
  active_ = waiting_ = lanes;
  running_ = 0;
  cpu_seconds_ = 0.0;
  ++round_;
  begin_.notify_all();
  end_.wait(lock, [this] { return waiting_ == 0 && running_ == 0; });
  active_ = 0;  // who has not begun is too late
  if (failure_ == nullptr) return;
  failure_is_reason_ = false;
  std::rethrow_exception(std::exchange(failure_, nullptr));
}

// Requires the mutex.
void LanePool::Remember(std::exception_ptr failure, bool is_reason) {
  if (failure_ != nullptr && (failure_is_reason_ || !is_reason)) return;
  failure_ = std::move(failure);
  failure_is_reason_ = is_reason;
}

void LanePool::Attempt(int lane, const std::function<void(int)>& work) {
  std::exception_ptr failure;
  bool is_reason = true;
  const double before = base::ThreadSeconds();
  try {
    work(lane);
  } catch (const Abandoned&) {
    failure = std::current_exception();
    is_reason = false;
  } catch (...) {
    failure = std::current_exception();
  }
  const double used = base::ThreadSeconds() - before;
  const std::lock_guard lock(mutex_);
  cpu_seconds_ += used;
  if (failure != nullptr) Remember(std::move(failure), is_reason);
  if (wanted_ == Wanted::kAny) waiting_ = 0;
  if (--running_ == 0 && waiting_ == 0) end_.notify_one();
}

void LanePool::Loop(int lane) {
  omp_set_num_threads(1);
  std::uint64_t seen = 0;
  std::unique_lock lock(mutex_);
  while (true) {
    begin_.wait(lock, [&] { return stop_ || round_ != seen; });
    if (stop_) return;
    seen = round_;
    if (lane >= active_ || waiting_ == 0) continue;
    --waiting_;
    ++running_;
    const std::function<void(int)>& work = *work_;
    lock.unlock();
    Attempt(lane, work);
    lock.lock();
  }
}

}  // namespace motley::engine::native
