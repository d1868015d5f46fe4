#ifndef MOTLEY_ENGINE_NATIVE_REORDER_H_
#define MOTLEY_ENGINE_NATIVE_REORDER_H_

#include <oneapi/dnnl/dnnl.hpp>

#include "motley/engine/native/aligned.h"

namespace motley::engine::native {

// A oneDNN attribute with the scratch memory in our hands: the library's own is bound to the thread
// that created a primitive, and lanes run what another thread compiled.
inline dnnl::primitive_attr OwnScratchpad() {
  dnnl::primitive_attr attr;
  attr.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  return attr;
}

// Converts an array from one oneDNN layout to another. One call at a time.
class Reorder {
 public:
  Reorder() = default;
  Reorder(const dnnl::memory::desc& from, const dnnl::memory::desc& to, const dnnl::engine& engine);
  void Execute(const float* from, float* to);

 private:
  dnnl::engine engine_;
  dnnl::stream stream_;
  dnnl::memory::desc from_, to_, scratch_desc_;
  AlignedFloats scratch_;
  dnnl::reorder primitive_;
};

}  // namespace motley::engine::native

#endif  // MOTLEY_ENGINE_NATIVE_REORDER_H_
