#include "motley/engine/native/kernels/simd/loops.h"

#include <oneapi/dnnl/dnnl.hpp>

#include "motley/engine/native/kernels/simd/levels.h"

namespace motley::engine::native::simd {

const Loops& BestLoops() {
#if defined(__x86_64__)
  // oneDNN has looked at the processor and at the environment already.
  switch (dnnl::get_effective_cpu_isa()) {
    case dnnl::cpu_isa::all:  // none that it knows
    case dnnl::cpu_isa::sse41:
    case dnnl::cpu_isa::avx:
      return BaselineLoops();
    case dnnl::cpu_isa::avx512_core:
    case dnnl::cpu_isa::avx512_core_vnni:
    case dnnl::cpu_isa::avx512_core_bf16:
    case dnnl::cpu_isa::avx512_core_amx:
      return Avx512Loops();
    default:  // whatever came later has at least these
      return Avx2Loops();
  }
#else
  return BaselineLoops();
#endif
}

}  // namespace motley::engine::native::simd
