#ifndef MOTLEY_ENGINE_NATIVE_GEMM_H_
#define MOTLEY_ENGINE_NATIVE_GEMM_H_

#include <cstdint>
#include <string>

namespace motley::engine::native {

// Whether an operand is used as stored, or transposed.
enum class Use { kPlain, kTransposed };

// C = A * B + beta * C, row-major, single precision, in the calling thread.
//
// Two libraries can do it, and neither is the faster one everywhere: OpenBLAS falls back to its
// slowest kernels on processors that are newer than itself (16 against 168 GFLOP/s of oneDNN on one
// core of a Sapphire Rapids), and oneDNN has fast ones for few processors. So the faster is
// measured.
class Gemm {
 public:
  // `name`: "onednn" or "openblas", as name() gives it; anything else: measured, in some 20 ms.
  explicit Gemm(const std::string& name);

  void operator()(Use a_use, Use b_use, std::int64_t m, std::int64_t n, std::int64_t k,
                  const float* a, std::int64_t lda, const float* b, std::int64_t ldb, float beta,
                  float* c, std::int64_t ldc) const;

  std::string name() const;

 private:
  enum class Library { kOneDnn, kOpenBlas };
  static Library Faster();

  Library library_;
};

}  // namespace motley::engine::native

#endif  // MOTLEY_ENGINE_NATIVE_GEMM_H_
