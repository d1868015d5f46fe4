#include "motley/engine/native/gemm.h"

#include <cblas.h>
#include <oneapi/dnnl/dnnl.h>

#include <limits>

#include "motley/base/check.h"
#include "motley/base/clock.h"
#include "motley/engine/native/aligned.h"

namespace motley::engine::native {
namespace {

constexpr char kOneDnnName[] = "onednn";
constexpr char kOpenBlasName[] = "openblas";

}  // namespace

Gemm::Gemm(const std::string& name)
    : library_(name == kOneDnnName     ? Library::kOneDnn
               : name == kOpenBlasName ? Library::kOpenBlas
                                       : Faster()) {}

std::string Gemm::name() const {
  return library_ == Library::kOneDnn ? kOneDnnName : kOpenBlasName;
}

void Gemm::operator()(Use a_use, Use b_use, std::int64_t m, std::int64_t n, std::int64_t k,
                      const float* a, std::int64_t lda, const float* b, std::int64_t ldb,
                      float beta, float* c, std::int64_t ldc) const {
  if (library_ == Library::kOneDnn) {
    const dnnl_status_t status =
        dnnl_sgemm(a_use == Use::kPlain ? 'N' : 'T', b_use == Use::kPlain ? 'N' : 'T', m, n, k,
                   1.0F, a, lda, b, ldb, beta, c, ldc);
    MOTLEY_CHECK(status == dnnl_success, "GEMM of {}x{}x{} failed", m, n, k);
    return;
  }
  cblas_sgemm(CblasRowMajor, a_use == Use::kPlain ? CblasNoTrans : CblasTrans,
              b_use == Use::kPlain ? CblasNoTrans : CblasTrans, static_cast<int>(m),
              static_cast<int>(n), static_cast<int>(k), 1.0F, a, static_cast<int>(lda), b,
              static_cast<int>(ldb), beta, c, static_cast<int>(ldc));
}

Gemm::Library Gemm::Faster() {
  constexpr std::int64_t kSize = 256;
  AlignedFloats a(kSize * kSize), b(kSize * kSize), c(kSize * kSize);
  const base::RealClock clock;
  double best[2];
  for (const Library library : {Library::kOneDnn, Library::kOpenBlas}) {
    const Gemm gemm(library == Library::kOneDnn ? kOneDnnName : kOpenBlasName);
    double& seconds = best[static_cast<int>(library)];
    seconds = std::numeric_limits<double>::infinity();
    for (int repetition = 0; repetition < 5; ++repetition) {
      const double begin = clock.Now();
      gemm(Use::kPlain, Use::kPlain, kSize, kSize, kSize, a.data(), kSize, b.data(), kSize, 0.0F,
           c.data(), kSize);
      seconds = std::min(seconds, clock.Now() - begin);
    }
  }
  return best[0] <= best[1] ? Library::kOneDnn : Library::kOpenBlas;
}

}  // namespace motley::engine::native
