#define MOTLEY_SIMD_LEVEL Avx2Loops
#include "motley/engine/native/kernels/simd/loops_body.h"
