#ifndef MOTLEY_ENGINE_NATIVE_LANES_H_
#define MOTLEY_ENGINE_NATIVE_LANES_H_

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace motley::engine::native {

// What Barrier::Wait throws when another lane will not come.
struct Abandoned {};

// Where `count` lanes wait for each other. Spins briefly, because lanes usually arrive together,
// then sleeps, because another program may have taken a core.
class Barrier {
 public:
  explicit Barrier(int count) : count_(count) {}
  void Wait();
  // Called by a lane that cannot go on: all who wait or will wait stop.
  void Abandon();

 private:
  const int count_;
  std::atomic<int> arrived_{0};
  std::atomic<std::uint32_t> round_{0};
  std::atomic<bool> abandoned_{false};
};

// Opens when `count` things are done, whoever does them: unlike at a barrier, nobody waits for a
// lane that has nothing to do, and may not even have a core.
class Latch {
 public:
  explicit Latch(int count) : left_(count) {}
  void CountDown();
  void Wait();
  // Called by a lane that cannot go on: all who wait or will wait stop.
  void Abandon();

 private:
  std::atomic<int> left_;
};

// One thread per lane, kept for the life of the device. Each runs its libraries with one thread, so
// that nothing forks inside a layer.
//
// Thread safety: one Run at a time.
class LanePool {
 public:
  // `cores`: where each lane stays; empty: wherever the system puts it. Throws std::system_error
  // for a core that there is not.
  explicit LanePool(int lanes, const std::vector<int>& cores = {});
  ~LanePool();
  LanePool(const LanePool&) = delete;
  LanePool& operator=(const LanePool&) = delete;

  enum class Wanted {
    kAll,  // every lane has its part
    kAny,  // lanes share the work, and one only returns when all of it is done
  };

  int size() const { return static_cast<int>(threads_.size()); }
  // Calls work(lane) on the first `lanes` lanes and returns when all have returned; with kAny, not
  // on those that have not begun when the first one returns. When some have thrown instead, throws
  // what the first of them did, rather the reason than an Abandoned.
  void Run(int lanes, Wanted wanted, const std::function<void(int lane)>& work);
  // Of the processor, in the last Run, all lanes together.
  double cpu_seconds() const { return cpu_seconds_; }

 private:
  void Loop(int lane);
  void Attempt(int lane, const std::function<void(int)>& work);
  void Remember(std::exception_ptr failure, bool is_reason);
  void Stop();

  std::mutex mutex_;
  std::condition_variable begin_, end_;
  const std::function<void(int)>* work_ = nullptr;
  std::uint64_t round_ = 0;
  Wanted wanted_ = Wanted::kAll;
  int active_ = 0;   // lanes that may take part in this round
  int waiting_ = 0;  // of these, not yet begun: to be waited for
  int running_ = 0;  // begun, and not yet done
  double cpu_seconds_ = 0.0;
  bool stop_ = false;
  std::exception_ptr failure_;
  bool failure_is_reason_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace motley::engine::native

#endif  // MOTLEY_ENGINE_NATIVE_LANES_H_
