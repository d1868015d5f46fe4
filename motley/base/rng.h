#ifndef MOTLEY_BASE_RNG_H_
#define MOTLEY_BASE_RNG_H_

#include <cstdint>
#include <initializer_list>

namespace motley::base {

// splitmix64's finaliser: a bijection of 64-bit words whose output passes for random when the
// input counts up.
constexpr std::uint64_t Mix(std::uint64_t x) {
  x += 0x9e3779b97f4a7c15ULL;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
  return x ^ (x >> 31);
}

// One key from several, in order: Key({seed, epoch, sample}). Random choices that must not depend
// on who makes them, or when, draw from an Rng of such a key.
constexpr std::uint64_t Key(std::initializer_list<std::uint64_t> parts) {
  std::uint64_t key = 0x6d6f746c6579ULL;
  for (const std::uint64_t part : parts) key = Mix(key ^ Mix(part));
  return key;
}

// The key with one part more: Extend(Key({seed, epoch}), sample) is Key({seed, epoch, sample}).
constexpr std::uint64_t Extend(std::uint64_t key, std::uint64_t part) {
  return Mix(key ^ Mix(part));
}

// A small deterministic generator: the same key gives the same numbers on every machine.
class Rng {
 public:
  explicit constexpr Rng(std::uint64_t key) : state_(key) {}

  constexpr std::uint64_t Next() { return Mix(state_ += 0x9e3779b97f4a7c15ULL); }

  // Uniform in [0, bound); bound > 0. Unbiased (Lemire's multiply with rejection).
  std::uint64_t Below(std::uint64_t bound);

  // Uniform in [0, 1), 53 bits.
  constexpr double Uniform() { return static_cast<double>(Next() >> 11) * 0x1.0p-53; }

  // Standard normal (Box-Muller; both draws used per call so that the count is fixed).
  double Normal();

 private:
  std::uint64_t state_;
};

}  // namespace motley::base

#endif  // MOTLEY_BASE_RNG_H_
