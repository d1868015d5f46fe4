// Local response normalisation across channels. Our own: oneDNN's backward kernel crashes for some
// legal neighbourhoods (size 1 in a blocked layout, v2.6).

#include <algorithm>
#include <cmath>

#include "motley/engine/native/kernels/kernels.h"

namespace motley::engine::native {
namespace {

// With d = k + alpha / size * (sum of x^2 over the neighbourhood):
//   y_i = x_i * d_i^-beta
//   dx_i = dy_i * d_i^-beta - 2 * alpha * beta / size * x_i * sum_j dy_j * x_j * d_j^(-beta - 1)
// Works on tiles of a few pixels: all their channels are gathered side by side first, so that the
// loops are the same for every layout.
class Lrn final : public Kernel {
 public:
  explicit Lrn(const KernelContext& context) : layout_(context.in[0]), a_(context.node().lrn()) {}

  KernelNeeds needs() const override {
    return {.input_in_backward = true, .scratch_floats = 4 * layout_.c * kTile};
  }

  void Forward(LaneRun&) override {
    if (layout_.has_padding()) std::fill_n(b_.out, layout_.size(), 0.0F);
    float* const x = b_.scratch;
    float* const d = x + layout_.c * kTile;
    ForEachTile([&](std::int64_t base, std::int64_t count) {
      Gather(b_.in[0] + base, count, x);
      Denominators(x, d);
      for (std::int64_t i = 0; i < layout_.c * kTile; ++i) x[i] *= Power(d[i]);
      Scatter(x, count, b_.out + base, false);
    });
  }

  void Backward(LaneRun&) override {
    float* const gradient = b_.in_grad[0];
    if (gradient == nullptr) return;
    if (layout_.has_padding() && !b_.accumulate[0]) std::fill_n(gradient, layout_.size(), 0.0F);
    const std::int64_t tile = layout_.c * kTile;
    float* const x = b_.scratch;
    float* const d = x + tile;
    float* const dy = d + tile;
    float* const dx = dy + tile;
    const float slope = 2.0F * a_.alpha * a_.beta / static_cast<float>(a_.size);
    ForEachTile([&](std::int64_t base, std::int64_t count) {
      Gather(b_.in[0] + base, count, x);
      Gather(b_.out_grad + base, count, dy);
      Denominators(x, d);
      for (std::int64_t i = 0; i < tile; ++i) {
        const float power = Power(d[i]);
        dx[i] = dy[i] * power;
        d[i] = dx[i] * x[i] / d[i];
      }
      ForEachNeighbour([&](std::int64_t i, std::int64_t j) {
        for (std::int64_t s = 0; s < kTile; ++s) dx[i + s] -= slope * x[i + s] * d[j + s];
      });
      Scatter(dx, count, gradient + base, b_.accumulate[0]);
    });
  }

 private:
  static constexpr std::int64_t kTile = 16;  // pixels

  float Power(float d) const {
    if (a_.beta == 0.75F) return 1.0F / (std::sqrt(d) * std::sqrt(std::sqrt(d)));
    return std::pow(d, -a_.beta);
  }

  // Calls visit(offset of the first pixel of the first channel, pixels).
  template <typename Visit>
  void ForEachTile(const Visit& visit) const {
    for (std::int64_t n = 0; n < layout_.n; ++n) {
      for (std::int64_t s = 0; s < layout_.pixels(); s += kTile) {
        visit(n * layout_.sample_size() + s * layout_.inner, std::min(kTile, layout_.pixels() - s));
      }
    }
  }

  // Calls visit(i, j) with the tile offsets of every channel and each of its neighbours.
  template <typename Visit>
  void ForEachNeighbour(const Visit& visit) const {
    const std::int64_t half = a_.size / 2;
    for (std::int64_t c = 0; c < layout_.c; ++c) {
      const std::int64_t end = std::min(layout_.c, c + half + 1);
      for (std::int64_t j = std::max<std::int64_t>(0, c - half); j < end; ++j) {
        visit(c * kTile, j * kTile);
      }
    }
  }

  void Denominators(const float* x, float* d) const {
    std::fill_n(d, layout_.c * kTile, a_.k);
    const float scale = a_.alpha / static_cast<float>(a_.size);
    ForEachNeighbour([&](std::int64_t i, std::int64_t j) {
      for (std::int64_t s = 0; s < kTile; ++s) d[i + s] += scale * x[j + s] * x[j + s];
    });
  }

  void Gather(const float* from, std::int64_t count, float* tile) const {
    std::fill_n(tile, layout_.c * kTile, 0.0F);
    for (std::int64_t c = 0; c < layout_.c; ++c) {
      const float* const channel = from + layout_.ChannelOffset(c);
      for (std::int64_t s = 0; s < count; ++s) tile[c * kTile + s] = channel[s * layout_.inner];
    }
  }

  void Scatter(const float* tile, std::int64_t count, float* to, bool add) const {
    for (std::int64_t c = 0; c < layout_.c; ++c) {
      float* const channel = to + layout_.ChannelOffset(c);
      for (std::int64_t s = 0; s < count; ++s) {
        const float value = tile[c * kTile + s];
        channel[s * layout_.inner] = add ? channel[s * layout_.inner] + value : value;
      }
    }
  }

  Layout layout_;
  graph::LrnAttrs a_;
};

}  // namespace

std::unique_ptr<Kernel> MakeLrn(const KernelContext& context) {
  return std::make_unique<Lrn>(context);
}

}  // namespace motley::engine::native
