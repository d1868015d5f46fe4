#ifndef MOTLEY_CLUSTER_OUTBOX_H_
#define MOTLEY_CLUSTER_OUTBOX_H_

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <deque>
#include <mutex>
#include <optional>
#include <utility>

namespace motley::cluster {

// What is to be sent over one stream, between those who decide and the thread that writes.
//
// Thread safety: all calls from any thread.
template <typename T>
class Outbox {
 public:
  void Push(T item) {
    {
      const std::lock_guard lock(mutex_);
      if (closed_) return;
      items_.push_back(std::move(item));
    }
    changed_.notify_one();
  }

  // The next one; none after `seconds`, or once closed.
  std::optional<T> Pop(double seconds) {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, std::chrono::duration<double>(seconds),
                      [this] { return closed_ || !items_.empty(); });
    if (closed_ || items_.empty()) return std::nullopt;
    T item = std::move(items_.front());
    items_.pop_front();
    return item;
  }

  // Drops what was not sent, and everything that comes later.
  void Close() {
    {
      const std::lock_guard lock(mutex_);
      closed_ = true;
      items_.clear();
    }
    changed_.notify_all();
  }

  bool empty() const { return size() == 0; }

  std::size_t size() const {
    const std::lock_guard lock(mutex_);
    return items_.size();
  }

  bool closed() const {
    const std::lock_guard lock(mutex_);
    return closed_;
  }

 private:
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<T> items_;
  bool closed_ = false;
};

}  // namespace motley::cluster

#endif  // MOTLEY_CLUSTER_OUTBOX_H_
