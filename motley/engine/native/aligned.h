#ifndef MOTLEY_ENGINE_NATIVE_ALIGNED_H_
#define MOTLEY_ENGINE_NATIVE_ALIGNED_H_

#include <sys/mman.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <new>

namespace motley::engine::native {

// Floats at a multiple of 64 bytes (a cache line, and the widest vector), zero at first; many of
// them in huge pages where the system has some.
class AlignedFloats {
 public:
  AlignedFloats() = default;
  explicit AlignedFloats(std::int64_t count) { Reset(count); }

  void Reset(std::int64_t count) {
    memory_.reset();
    size_ = 0;
    if (count == 0) return;
    const std::size_t wanted = static_cast<std::size_t>(count) * sizeof(float);
    const std::size_t align = wanted < kHugePage ? kAlign : kHugePage;
    const std::size_t bytes = (wanted + kAlign - 1) / kAlign * kAlign;
    memory_.reset(
        static_cast<float*>(std::aligned_alloc(align, (bytes + align - 1) / align * align)));
    if (memory_ == nullptr) throw std::bad_alloc();
    // Before the pages are touched. Where the system has none to give, nothing is lost but speed.
    if (align == kHugePage) ::madvise(memory_.get(), bytes / kHugePage * kHugePage, MADV_HUGEPAGE);
    std::fill_n(memory_.get(), bytes / sizeof(float), 0.0F);
    size_ = count;
  }

  // Keeps what is there when it is large enough.
  void Grow(std::int64_t count) {
    if (count > size_) Reset(count);
  }

  float* data() { return memory_.get(); }
  const float* data() const { return memory_.get(); }
  std::int64_t size() const { return size_; }

 private:
  static constexpr std::size_t kAlign = 64;
  // Of x86 and most ARM systems. Misses of the TLB are dear, most of all in a virtual machine.
  static constexpr std::size_t kHugePage = std::size_t{1} << 21;
  struct Free {
    void operator()(float* p) const { std::free(p); }  // NOLINT(cppcoreguidelines-no-malloc)
  };
  std::unique_ptr<float, Free> memory_;
  std::int64_t size_ = 0;
};

}  // namespace motley::engine::native

#endif  // MOTLEY_ENGINE_NATIVE_ALIGNED_H_
