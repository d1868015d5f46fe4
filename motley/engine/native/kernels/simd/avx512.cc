#define MOTLEY_SIMD_LEVEL Avx512Loops
#include "motley/engine/native/kernels/simd/loops_body.h"
