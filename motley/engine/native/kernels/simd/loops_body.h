// The loops, included once for each level of vector instructions with MOTLEY_SIMD_LEVEL as its
// name. Nothing with linkage may be defined or included here: the linker could take a copy with
// instructions that the processor does not have.

#include <cstdint>

#include "motley/engine/dropout_hash.h"
#include "motley/engine/native/kernels/simd/levels.h"
#include "motley/engine/native/kernels/simd/loops.h"

namespace motley::engine::native::simd {
namespace {

#if defined(__AVX512F__)
constexpr int kBytes = 64;
#elif defined(__AVX2__)
constexpr int kBytes = 32;
#else
constexpr int kBytes = 16;
#endif
constexpr int kLanes = kBytes / 4;
constexpr int kParts = kWidth / kLanes;

typedef float Vec __attribute__((vector_size(kBytes)));
typedef float LooseVec __attribute__((vector_size(kBytes), aligned(4), may_alias));

// kWidth floats.
struct Group {
  Vec part[kParts];
};

#define MOTLEY_EACH(i) for (int i = 0; i < kParts; ++i)

inline __attribute__((always_inline)) Group Load(const float* p) {
  Group g;
  MOTLEY_EACH(i) g.part[i] = *reinterpret_cast<const LooseVec*>(p + i * kLanes);
  return g;
}
inline __attribute__((always_inline)) void Store(float* p, const Group& g) {
  MOTLEY_EACH(i) * reinterpret_cast<LooseVec*>(p + i * kLanes) = g.part[i];
}
inline __attribute__((always_inline)) Group Fill(float value) {
  Group g;
  MOTLEY_EACH(i) g.part[i] = value - Vec{};
  return g;
}
inline __attribute__((always_inline)) Group operator+(Group a, const Group& b) {
  MOTLEY_EACH(i) a.part[i] += b.part[i];
  return a;
}
inline __attribute__((always_inline)) Group operator-(Group a, const Group& b) {
  MOTLEY_EACH(i) a.part[i] -= b.part[i];
  return a;
}
inline __attribute__((always_inline)) Group operator*(Group a, const Group& b) {
  MOTLEY_EACH(i) a.part[i] *= b.part[i];
  return a;
}
// Not a number stays what it is.
inline __attribute__((always_inline)) Group Clamp(Group x, const Group& floor,
                                                  const Group& ceiling) {
  MOTLEY_EACH(i) {
    x.part[i] = x.part[i] < floor.part[i] ? floor.part[i] : x.part[i];
    x.part[i] = ceiling.part[i] < x.part[i] ? ceiling.part[i] : x.part[i];
  }
  return x;
}
// x where floor < y < ceiling, else 0.
inline __attribute__((always_inline)) Group Open(Group x, const Group& y, const Group& floor,
                                                 const Group& ceiling) {
  MOTLEY_EACH(i) {
    const auto open = (y.part[i] > floor.part[i]) & (y.part[i] < ceiling.part[i]);
    x.part[i] = open ? x.part[i] : Vec{};
  }
  return x;
}
inline __attribute__((always_inline)) void AddTo(double* sums, const Group& g) {
  float values[kWidth];
  Store(values, g);
  for (int i = 0; i < kWidth; ++i) sums[i] += static_cast<double>(values[i]);
}

// A group of fewer than kWidth floats, the rest zero, in memory of its own.
struct Narrow {
  float values[kWidth] = {};
  Narrow(const float* from, int width) {
    if (from == nullptr) return;
    for (int i = 0; i < width; ++i) values[i] = from[i];
  }
  void CopyTo(float* to, int width) const {
    if (to == nullptr) return;
    for (int i = 0; i < width; ++i) to[i] = values[i];
  }
};

// Partial sums of this many groups are kept in float.
constexpr std::int64_t kRun = 256;

void Add(const float* a, const float* b, float* y, std::int64_t count) {
  std::int64_t i = 0;
  for (; i + kWidth <= count; i += kWidth) Store(y + i, Load(a + i) + Load(b + i));
  for (; i < count; ++i) y[i] = a[i] + b[i];
}

void AddTo(float* y, const float* x, std::int64_t count) { Add(y, x, y, count); }

void Relu(const float* x, float* y, std::int64_t count, float ceiling) {
  const Group top = Fill(ceiling), zero = Fill(0.0F);
  std::int64_t i = 0;
  for (; i + kWidth <= count; i += kWidth) Store(y + i, Clamp(Load(x + i), zero, top));
  if (i == count) return;
  const int rest = static_cast<int>(count - i);
  Narrow last(x + i, rest);
  Store(last.values, Clamp(Load(last.values), zero, top));
  last.CopyTo(y + i, rest);
}

void ReluBackward(const float* y, const float* dy, float* dx, std::int64_t count, float ceiling,
                  bool add) {
  const Group top = Fill(ceiling), zero = Fill(0.0F);
  const auto gradient = [&](const float* out, const float* g) {
    return Open(Load(g), Load(out), zero, top);
  };
  std::int64_t i = 0;
  if (add) {
    for (; i + kWidth <= count; i += kWidth) {
      Store(dx + i, Load(dx + i) + gradient(y + i, dy + i));
    }
  } else {
    for (; i + kWidth <= count; i += kWidth) Store(dx + i, gradient(y + i, dy + i));
  }
  for (; i < count; ++i) {
    const float g = y[i] > 0.0F && y[i] < ceiling ? dy[i] : 0.0F;
    dx[i] = add ? dx[i] + g : g;
  }
}

void Moments(const float* x, const Strip& strip, const float* centre, double* sums,
             double* squares) {
  if (strip.width < kWidth) {
    for (std::int64_t s = 0; s < strip.steps; ++s) {
      for (int i = 0; i < strip.width; ++i) {
        const float d = x[s * strip.stride + i] - centre[i];
        sums[i] += static_cast<double>(d);
        squares[i] += static_cast<double>(d * d);
      }
    }
    return;
  }
  const Group c = Load(centre);
  for (std::int64_t begin = 0; begin < strip.steps; begin += kRun) {
    const std::int64_t end = begin + kRun < strip.steps ? begin + kRun : strip.steps;
    Group sum = Fill(0.0F), square = Fill(0.0F);
    for (std::int64_t s = begin; s < end; ++s) {
      const Group d = Load(x + s * strip.stride) - c;
      sum = sum + d;
      square = square + d * d;
    }
    AddTo(sums, sum);
    AddTo(squares, square);
  }
}

template <bool kOther>
void NormaliseGroups(const float* x, const float* other, float* y, std::int64_t steps,
                     std::int64_t stride, const Normalise& n) {
  const Group centre = Load(n.centre), scale = Load(n.scale), shift = Load(n.shift);
  const Group floor = Fill(n.floor), ceiling = Fill(n.ceiling);
  for (std::int64_t s = 0; s < steps; ++s) {
    Group value = (Load(x + s * stride) - centre) * scale + shift;
    if constexpr (kOther) value = value + Load(other + s * stride);
    Store(y + s * stride, Clamp(value, floor, ceiling));
  }
}

void NormaliseStrip(const float* x, const float* other, float* y, const Strip& strip,
                    const Normalise& n) {
  const auto run = other != nullptr ? NormaliseGroups<true> : NormaliseGroups<false>;
  if (strip.width == kWidth) return run(x, other, y, strip.steps, strip.stride, n);
  for (std::int64_t s = 0; s < strip.steps; ++s) {
    const std::int64_t at = s * strip.stride;
    const Narrow in(x + at, strip.width);
    const Narrow more(other == nullptr ? nullptr : other + at, strip.width);
    Narrow out(nullptr, 0);
    run(in.values, more.values, out.values, 1, kWidth, n);
    out.CopyTo(y + at, strip.width);
  }
}

template <bool kMasked>
void ReduceGroups(const float* x, const float* y, const float* dy, std::int64_t steps,
                  std::int64_t stride, const NormaliseBackward& n, double* sums, double* products) {
  const Group centre = Load(n.centre);
  const Group floor = Fill(n.floor), ceiling = Fill(n.ceiling);
  for (std::int64_t begin = 0; begin < steps; begin += kRun) {
    const std::int64_t end = begin + kRun < steps ? begin + kRun : steps;
    Group sum = Fill(0.0F), product = Fill(0.0F);
    for (std::int64_t s = begin; s < end; ++s) {
      Group g = Load(dy + s * stride);
      if constexpr (kMasked) g = Open(g, Load(y + s * stride), floor, ceiling);
      sum = sum + g;
      product = product + g * (Load(x + s * stride) - centre);
    }
    AddTo(sums, sum);
    AddTo(products, product);
  }
}

void ReduceGradient(const float* x, const float* y, const float* dy, const Strip& strip,
                    const NormaliseBackward& n, double* sums, double* products) {
  const auto run = y != nullptr ? ReduceGroups<true> : ReduceGroups<false>;
  if (strip.width == kWidth) {
    return run(x, y, dy, strip.steps, strip.stride, n, sums, products);
  }
  // The places past the width hold zeros and add nothing.
  for (std::int64_t s = 0; s < strip.steps; ++s) {
    const std::int64_t at = s * strip.stride;
    const Narrow in(x + at, strip.width), g(dy + at, strip.width);
    const Narrow out(y == nullptr ? nullptr : y + at, strip.width);
    run(in.values, out.values, g.values, 1, kWidth, n, sums, products);
  }
}

template <bool kMasked, bool kOther>
void BackwardGroups(const float* x, const float* y, const float* dy, float* dx, float* d_other,
                    std::int64_t steps, std::int64_t stride, const NormaliseBackward& n) {
  const Group centre = Load(n.centre), scale = Load(n.scale);
  const Group slope = Load(n.slope), shift = Load(n.shift);
  const Group floor = Fill(n.floor), ceiling = Fill(n.ceiling);
  for (std::int64_t s = 0; s < steps; ++s) {
    const std::int64_t at = s * stride;
    Group g = Load(dy + at);
    if constexpr (kMasked) g = Open(g, Load(y + at), floor, ceiling);
    if constexpr (kOther) {
      Store(d_other + at, n.add_to_other ? Load(d_other + at) + g : g);
    }
    if (dx == nullptr) continue;
    const Group d = scale * g + (slope * (Load(x + at) - centre) + shift);
    Store(dx + at, n.add_to_dx ? Load(dx + at) + d : d);
  }
}

void BackwardStrip(const float* x, const float* y, const float* dy, float* dx, float* d_other,
                   const Strip& strip, const NormaliseBackward& n) {
  const auto run =
      y != nullptr
          ? (d_other != nullptr ? BackwardGroups<true, true> : BackwardGroups<true, false>)
          : (d_other != nullptr ? BackwardGroups<false, true> : BackwardGroups<false, false>);
  if (strip.width == kWidth) {
    return run(x, y, dy, dx, d_other, strip.steps, strip.stride, n);
  }
  for (std::int64_t s = 0; s < strip.steps; ++s) {
    const std::int64_t at = s * strip.stride;
    const Narrow in(x + at, strip.width), g(dy + at, strip.width);
    const Narrow out(y == nullptr ? nullptr : y + at, strip.width);
    float* const to_x = dx == nullptr ? nullptr : dx + at;
    float* const to_other = d_other == nullptr ? nullptr : d_other + at;
    Narrow new_x(to_x, strip.width), new_other(to_other, strip.width);
    run(in.values, out.values, g.values, dx == nullptr ? nullptr : new_x.values, new_other.values,
        1, kWidth, n);
    new_x.CopyTo(to_x, strip.width);
    new_other.CopyTo(to_other, strip.width);
  }
}

typedef std::int32_t IntVec __attribute__((vector_size(kBytes)));
typedef std::uint8_t ByteVec __attribute__((vector_size(kLanes)));
typedef std::uint8_t LooseByteVec __attribute__((vector_size(kLanes), aligned(1), may_alias));

void MaxPool(const float* x, float* y, std::uint8_t* where, const PoolRun& run) {
  for (std::int64_t o = 0; o < run.count; ++o) {
    const float* const window = x + o * run.in_step;
    float* const out = y + o * run.out_step;
    std::uint8_t* const at = where + o * run.out_step;
    if (run.width < kWidth) {
      for (int i = 0; i < run.width; ++i) {
        float best = window[run.taps[0] + i];
        std::uint8_t id = run.ids[0];
        for (int t = 1; t < run.places; ++t) {
          const float value = window[run.taps[t] + i];
          id = best < value ? run.ids[t] : id;
          best = best < value ? value : best;
        }
        out[i] = best;
        at[i] = id;
      }
      continue;
    }
    Group best = Load(window + run.taps[0]);
    IntVec id[kParts];
    MOTLEY_EACH(i) id[i] = run.ids[0] - IntVec{};
    for (int t = 1; t < run.places; ++t) {
      const Group value = Load(window + run.taps[t]);
      const IntVec this_id = run.ids[t] - IntVec{};
      MOTLEY_EACH(i) {
        const IntVec larger = best.part[i] < value.part[i];
        id[i] = larger ? this_id : id[i];
        best.part[i] = larger ? value.part[i] : best.part[i];
      }
    }
    Store(out, best);
    MOTLEY_EACH(i) {
      *reinterpret_cast<LooseByteVec*>(at + i * kLanes) = __builtin_convertvector(id[i], ByteVec);
    }
  }
}

void MaxPoolBackward(const float* dy, const std::uint8_t* where, float* dx, const PoolRun& run) {
  for (std::int64_t o = 0; o < run.count; ++o) {
    float* const window = dx + o * run.in_step;
    const float* const gradient = dy + o * run.out_step;
    const std::uint8_t* const at = where + o * run.out_step;
    if (run.width < kWidth) {
      for (int t = 0; t < run.places; ++t) {
        for (int i = 0; i < run.width; ++i) {
          if (at[i] == run.ids[t]) window[run.taps[t] + i] += gradient[i];
        }
      }
      continue;
    }
    const Group g = Load(gradient);
    IntVec id[kParts];
    MOTLEY_EACH(i) {
      const ByteVec bytes = *reinterpret_cast<const LooseByteVec*>(at + i * kLanes);
      id[i] = __builtin_convertvector(bytes, IntVec);
    }
    for (int t = 0; t < run.places; ++t) {
      const IntVec this_id = run.ids[t] - IntVec{};
      Group sum = Load(window + run.taps[t]);
      MOTLEY_EACH(i) sum.part[i] += id[i] == this_id ? g.part[i] : Vec{};
      Store(window + run.taps[t], sum);
    }
  }
}

// Left to the compiler, which must be told that operand and result may be the same array but not
// shifted.
template <bool kAdd>
void DropoutRange(const float* x, float* y, const DropoutRun& run) {
  const auto count = static_cast<std::uint32_t>(run.count);
  const std::uint64_t key = run.key;
  const std::uint32_t first = run.first, step = run.step, threshold = run.threshold;
  const float scale = run.scale;
#pragma omp simd
  for (std::uint32_t i = 0; i < count; ++i) {
    const float value = DropoutKeep(key, first + i * step, threshold) ? x[i] * scale : 0.0F;
    y[i] = kAdd ? y[i] + value : value;
  }
}

void Dropout(const float* x, float* y, const DropoutRun& run, bool add) {
  (add ? DropoutRange<true> : DropoutRange<false>)(x, y, run);
}

#undef MOTLEY_EACH

}  // namespace
}  // namespace motley::engine::native::simd

#include "motley/engine/native/kernels/simd/winograd_body.h"

namespace motley::engine::native::simd {
namespace {

constexpr Loops kLoops = {.add_to = AddTo,
                          .add = Add,
                          .relu = Relu,
                          .relu_backward = ReluBackward,
                          .moments = Moments,
                          .normalise = NormaliseStrip,
                          .reduce_gradient = ReduceGradient,
                          .normalise_backward = BackwardStrip,
                          .max_pool = MaxPool,
                          .max_pool_backward = MaxPoolBackward,
                          .dropout = Dropout,
                          .winograd = kWinograd};

}  // namespace

const Loops& MOTLEY_SIMD_LEVEL() { return kLoops; }

}  // namespace motley::engine::native::simd
