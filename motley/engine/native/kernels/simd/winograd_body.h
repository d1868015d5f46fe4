// The transforms of Winograd's F(4x4, 3x3), part of loops_body.h: the same rules hold.
//
// The algorithm evaluates polynomials at the points 0, a, -a, b, -b and infinity. These a and b
// round least among the simple ones (1 and 2, the usual choice, are more than twice as far from the
// true result), and all numbers made of them are exact.

namespace motley::engine::native::simd {
namespace {

constexpr float kA = 0.625F, kB = 1.5F;
constexpr float kA2 = kA * kA, kB2 = kB * kB, kSum = kA2 + kB2, kProduct = kA2 * kB2;

constexpr int kEightBytes = kBytes < 32 ? kBytes : 32;
constexpr int kEightParts = 32 / kEightBytes;
typedef float EightVec __attribute__((vector_size(kEightBytes)));
typedef float LooseEightVec __attribute__((vector_size(kEightBytes), aligned(4), may_alias));

// One number of 8 channels.
struct Eight {
  EightVec part[kEightParts];
};

#define MOTLEY_EACH_EIGHTH(i) for (int i = 0; i < kEightParts; ++i)
// Not under AddressSanitizer and UBSan: what they check in one function of all these takes the
// compiler three minutes.
#ifdef MOTLEY_SANITIZED
#define MOTLEY_INLINE inline
#else
#define MOTLEY_INLINE inline __attribute__((always_inline))
#endif

MOTLEY_INLINE Eight LoadEight(const float* p) {
  Eight e;
  MOTLEY_EACH_EIGHTH(i) {
    e.part[i] = *reinterpret_cast<const LooseEightVec*>(p + i * kEightBytes / 4);
  }
  return e;
}
MOTLEY_INLINE void StoreEight(float* p, const Eight& e) {
  MOTLEY_EACH_EIGHTH(i) { *reinterpret_cast<LooseEightVec*>(p + i * kEightBytes / 4) = e.part[i]; }
}
MOTLEY_INLINE Eight operator+(Eight a, const Eight& b) {
  MOTLEY_EACH_EIGHTH(i) a.part[i] += b.part[i];
  return a;
}
MOTLEY_INLINE Eight operator-(Eight a, const Eight& b) {
  MOTLEY_EACH_EIGHTH(i) a.part[i] -= b.part[i];
  return a;
}
MOTLEY_INLINE Eight operator*(float factor, Eight a) {
  MOTLEY_EACH_EIGHTH(i) a.part[i] *= factor;
  return a;
}

// One dimension of each transform: kIn numbers become kOut.

// Of the input: each row is the product of all (x - point) but one.
struct DataLine {
  static constexpr int kIn = 6, kOut = 6;
  MOTLEY_INLINE static void Apply(const Eight* d, Eight* t) {
    t[0] = kProduct * d[0] - kSum * d[2] + d[4];
    const Eight even_a = d[4] - kB2 * d[2], odd_a = d[3] - kB2 * d[1];
    t[1] = even_a + kA * odd_a;
    t[2] = even_a - kA * odd_a;
    const Eight even_b = d[4] - kA2 * d[2], odd_b = d[3] - kA2 * d[1];
    t[3] = even_b + kB * odd_b;
    t[4] = even_b - kB * odd_b;
    t[5] = kProduct * d[1] - kSum * d[3] + d[5];
  }
};

// Back to the output: powers of the points.
struct OutputLine {
  static constexpr int kIn = 6, kOut = 4;
  MOTLEY_INLINE static void Apply(const Eight* m, Eight* y) {
    const Eight sum_a = m[1] + m[2], difference_a = m[1] - m[2];
    const Eight sum_b = m[3] + m[4], difference_b = m[3] - m[4];
    y[0] = m[0] + sum_a + sum_b;
    y[1] = kA * difference_a + kB * difference_b;
    y[2] = kA2 * sum_a + kB2 * sum_b;
    y[3] = m[5] + kA * kA2 * difference_a + kB * kB2 * difference_b;
  }
};

// Its transpose, of the output's gradient.
struct GradientLine {
  static constexpr int kIn = 4, kOut = 6;
  MOTLEY_INLINE static void Apply(const Eight* y, Eight* t) {
    t[0] = y[0];
    const Eight even_a = y[0] + kA2 * y[2], odd_a = y[1] + kA2 * y[3];
    t[1] = even_a + kA * odd_a;
    t[2] = even_a - kA * odd_a;
    const Eight even_b = y[0] + kB2 * y[2], odd_b = y[1] + kB2 * y[3];
    t[3] = even_b + kB * odd_b;
    t[4] = even_b - kB * odd_b;
    t[5] = y[3];
  }
};

// The rows of the input's transform are divided here by what they are at their own point.
constexpr float kAtZero = 1.0F / kProduct;
constexpr float kAtA = 1.0F / (2.0F * kA2 * (kA2 - kB2));
constexpr float kAtB = 1.0F / (2.0F * kB2 * (kB2 - kA2));

struct WeightLine {
  static constexpr int kIn = 3, kOut = 6;
  MOTLEY_INLINE static void Apply(const Eight* w, Eight* u) {
    u[0] = kAtZero * w[0];
    const Eight even_a = kAtA * w[0] + kAtA * kA2 * w[2], odd_a = kAtA * kA * w[1];
    u[1] = even_a + odd_a;
    u[2] = even_a - odd_a;
    const Eight even_b = kAtB * w[0] + kAtB * kB2 * w[2], odd_b = kAtB * kB * w[1];
    u[3] = even_b + odd_b;
    u[4] = even_b - odd_b;
    u[5] = w[2];
  }
};

struct WeightGradientLine {
  static constexpr int kIn = 6, kOut = 3;
  MOTLEY_INLINE static void Apply(const Eight* u, Eight* w) {
    const Eight sum_a = u[1] + u[2], sum_b = u[3] + u[4];
    w[0] = kAtZero * u[0] + kAtA * sum_a + kAtB * sum_b;
    w[1] = kAtA * kA * (u[1] - u[2]) + kAtB * kB * (u[3] - u[4]);
    w[2] = kAtA * kA2 * sum_a + kAtB * kB2 * sum_b + u[5];
  }
};

// Both dimensions: kIn x kIn eights become kOut x kOut.
template <typename Line, bool kAdd>
MOTLEY_INLINE void Transform(const Square& from, const Target& to) {
  Eight half[Line::kOut][Line::kIn];
#pragma GCC unroll 6
  for (int x = 0; x < Line::kIn; ++x) {
    Eight in[Line::kIn], out[Line::kOut];
#pragma GCC unroll 6
    for (int y = 0; y < Line::kIn; ++y)
      in[y] = LoadEight(from.data + y * from.row + x * from.column);
    Line::Apply(in, out);
#pragma GCC unroll 6
    for (int y = 0; y < Line::kOut; ++y) half[y][x] = out[y];
  }
#pragma GCC unroll 6
  for (int y = 0; y < Line::kOut; ++y) {
    Eight out[Line::kOut];
    Line::Apply(half[y], out);
#pragma GCC unroll 6
    for (int x = 0; x < Line::kOut; ++x) {
      float* const p = to.data + y * to.row + x * to.column;
      StoreEight(p, kAdd ? LoadEight(p) + out[x] : out[x]);
    }
  }
}

template <typename Line>
void TransformSquare(const Square& from, const Target& to, bool add) {
  if (add) {
    Transform<Line, true>(from, to);
  } else {
    Transform<Line, false>(from, to);
  }
}

#undef MOTLEY_INLINE
#undef MOTLEY_EACH_EIGHTH

constexpr Winograd kWinograd = {.data = TransformSquare<DataLine>,
                                .output = TransformSquare<OutputLine>,
                                .gradient = TransformSquare<GradientLine>,
                                .weights = TransformSquare<WeightLine>,
                                .weights_gradient = TransformSquare<WeightGradientLine>};

}  // namespace
}  // namespace motley::engine::native::simd
