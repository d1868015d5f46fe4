#ifndef MOTLEY_ENGINE_NATIVE_KERNELS_DNNL_KERNEL_H_
#define MOTLEY_ENGINE_NATIVE_KERNELS_DNNL_KERNEL_H_

#include <algorithm>
#include <cstdint>
#include <oneapi/dnnl/dnnl.hpp>
#include <unordered_map>

#include "motley/engine/native/kernel.h"

namespace motley::engine::native {

// What kernels that run oneDNN primitives share. The scratch memory begins with what the library
// asked for; ours follows at own_scratch().
class DnnlKernel : public Kernel {
 protected:
  using Arguments = std::unordered_map<int, dnnl::memory>;

  explicit DnnlKernel(const dnnl::engine& engine) : engine_(engine), stream_(engine) {}

  // In floats, rounded up.
  static std::int64_t Floats(const dnnl::memory::desc& desc) {
    return static_cast<std::int64_t>((desc.get_size() + sizeof(float) - 1) / sizeof(float));
  }

  dnnl::memory At(const dnnl::memory::desc& desc, const float* data) const {
    // oneDNN's memory objects take mutable pointers, also for what they only read.
    return {desc, engine_, const_cast<float*>(data)};  // NOLINT
  }

  void ReserveLibraryScratch(const dnnl::memory::desc& desc) {
    library_floats_ = std::max(library_floats_, (Floats(desc) + 15) / 16 * 16);
  }
  std::int64_t library_floats() const { return library_floats_; }
  float* own_scratch() const { return b_.scratch + library_floats_; }

  // Runs with the scratchpad added.
  void Execute(const dnnl::primitive& primitive, const dnnl::memory::desc& scratchpad,
               Arguments arguments) {
    arguments[DNNL_ARG_SCRATCHPAD] = At(scratchpad, b_.scratch);
    primitive.execute(stream_, arguments);
    stream_.wait();
  }

  dnnl::engine engine_;
  dnnl::stream stream_;

 private:
  std::int64_t library_floats_ = 0;
};

}  // namespace motley::engine::native

#endif  // MOTLEY_ENGINE_NATIVE_KERNELS_DNNL_KERNEL_H_
