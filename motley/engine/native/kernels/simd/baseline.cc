#define MOTLEY_SIMD_LEVEL BaselineLoops
#include "motley/engine/native/kernels/simd/loops_body.h"
