#ifndef MOTLEY_ENGINE_NATIVE_KERNELS_SIMD_LEVELS_H_
#define MOTLEY_ENGINE_NATIVE_KERNELS_SIMD_LEVELS_H_

namespace motley::engine::native::simd {

struct Loops;

// What every processor of the architecture has.
const Loops& BaselineLoops();
#if defined(__x86_64__)
const Loops& Avx2Loops();
const Loops& Avx512Loops();
#endif

}  // namespace motley::engine::native::simd

#endif  // MOTLEY_ENGINE_NATIVE_KERNELS_SIMD_LEVELS_H_
