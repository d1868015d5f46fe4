#ifndef MOTLEY_ENGINE_NATIVE_KERNELS_SIMD_LOOPS_H_
#define MOTLEY_ENGINE_NATIVE_KERNELS_SIMD_LOOPS_H_

#include <cstdint>

namespace motley::engine::native::simd {

// How many floats the loops below take at a time. Per-channel operands come as kWidth floats, one
// for each place in a group.
constexpr int kWidth = 16;

// `steps` groups of `width` floats (at most kWidth), the beginnings `stride` floats apart.
struct Strip {
  std::int64_t steps = 0, stride = kWidth;
  int width = kWidth;
};

// Batch norm with what may follow it: y = min(max((x - centre) * scale + shift [+ other], floor),
// ceiling).
struct Normalise {
  const float *centre, *scale, *shift;  // kWidth each
  float floor, ceiling;
};

// Its derivative: with g = dy where floor < y < ceiling, else 0,
// dx = scale * g + slope * (x - centre) + shift, and d_other = g.
struct NormaliseBackward {
  const float *centre, *scale, *slope, *shift;
  float floor, ceiling;
  bool add_to_dx, add_to_other;
};

// Max pooling of `count` outputs side by side. Their windows begin `in_step` floats apart, their
// results `out_step`; place t of a window lies taps[t] floats behind its beginning and is
// remembered as ids[t].
struct PoolRun {
  std::int64_t count = 0, in_step = 0, out_step = 0;
  const std::int64_t* taps = nullptr;
  const std::uint8_t* ids = nullptr;
  int places = 0;
  int width = kWidth;  // channels, at most kWidth
};

// Dropout of `count` floats side by side: elements first, first + step, … of the sample.
struct DropoutRun {
  std::uint64_t key = 0;
  std::uint32_t first = 0, step = 1, threshold = 0;
  float scale = 1.0F;
  std::int64_t count = 0;
};

// A square of groups of 8 channels: rows and columns this many floats apart.
struct Square {
  const float* data = nullptr;
  std::int64_t row = 0, column = 8;
};
struct Target {
  float* data = nullptr;
  std::int64_t row = 0, column = 8;
};

// The transforms of Winograd's F(4x4, 3x3): with these, the convolution of a 6x6 square with 3x3
// weights, 4x4 numbers, is output(data(square) * weights(w)), and the rest is its derivative.
struct Winograd {
  using Transform = void (*)(const Square& from, const Target& to, bool add);
  Transform data;              // 6x6 to 6x6
  Transform output;            // 6x6 to 4x4
  Transform gradient;          // 4x4 to 6x6: the transpose of `output`
  Transform weights;           // 3x3 to 6x6
  Transform weights_gradient;  // 6x6 to 3x3: its transpose
};

// The loops over memory, compiled for each level of vector instructions, because the compiler may
// assume only the oldest processor elsewhere. Sums are added to what is there; floats are summed in
// short runs and the runs in double, so that large images lose no digits. Results may be written
// over operands.
struct Loops {
  void (*add_to)(float* y, const float* x, std::int64_t count);
  void (*add)(const float* a, const float* b, float* y, std::int64_t count);
  // y = min(max(x, 0), ceiling)
  void (*relu)(const float* x, float* y, std::int64_t count, float ceiling);
  // dx = dy, or dx += dy, where 0 < y < ceiling.
  void (*relu_backward)(const float* y, const float* dy, float* dx, std::int64_t count,
                        float ceiling, bool add);
  // sums += x - centre; squares += (x - centre)^2
  void (*moments)(const float* x, const Strip& strip, const float* centre, double* sums,
                  double* squares);
  // `other` may be null.
  void (*normalise)(const float* x, const float* other, float* y, const Strip& strip,
                    const Normalise& n);
  // sums += g; products += g * (x - centre). `y` may be null: g = dy.
  void (*reduce_gradient)(const float* x, const float* y, const float* dy, const Strip& strip,
                          const NormaliseBackward& n, double* sums, double* products);
  // `y`, `dx` and `d_other` may be null.
  void (*normalise_backward)(const float* x, const float* y, const float* dy, float* dx,
                             float* d_other, const Strip& strip, const NormaliseBackward& n);
  // The largest of each window, and where it was: the first of equals.
  void (*max_pool)(const float* x, float* y, std::uint8_t* where, const PoolRun& run);
  // dx += dy where the largest was.
  void (*max_pool_backward)(const float* dy, const std::uint8_t* where, float* dx,
                            const PoolRun& run);
  // y = x * scale where kept, else 0; or adds that.
  void (*dropout)(const float* x, float* y, const DropoutRun& run, bool add);
  Winograd winograd;
};

// The fastest that this processor has, or that ONEDNN_MAX_CPU_ISA allows.
const Loops& BestLoops();

}  // namespace motley::engine::native::simd

#endif  // MOTLEY_ENGINE_NATIVE_KERNELS_SIMD_LOOPS_H_
