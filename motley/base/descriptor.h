#ifndef MOTLEY_BASE_DESCRIPTOR_H_
#define MOTLEY_BASE_DESCRIPTOR_H_

#include <unistd.h>

#include <utility>

namespace motley::base {

// A file descriptor that is closed in the end; below 0: none.
class Descriptor {
 public:
  explicit Descriptor(int number = -1) : number_(number) {}
  ~Descriptor() {
    if (number_ >= 0) ::close(number_);
  }
  Descriptor(Descriptor&& other) noexcept : number_(other.Release()) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(number_, other.number_);
    return *this;
  }

  int get() const { return number_; }
  // The caller closes it.
  int Release() { return std::exchange(number_, -1); }

 private:
  int number_;
};

}  // namespace motley::base

#endif  // MOTLEY_BASE_DESCRIPTOR_H_
