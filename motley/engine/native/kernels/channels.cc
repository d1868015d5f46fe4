// Operators that only move channels or pixels: concat, slice, channel shuffle, pad, and the
// conversion between layouts.

#include <algorithm>

#include "motley/engine/native/kernels/kernels.h"
#include "motley/engine/native/reorder.h"

namespace motley::engine::native {
namespace {

// Copies (or adds) channels [from, from + count) of each sample of `src` to channels [to, …) of
// `dst`. Whole blocks at once where both sides agree; otherwise channel by channel.
void MoveChannels(const Layout& src, const float* x, std::int64_t from, const Layout& dst, float* y,
                  std::int64_t to, std::int64_t count, bool add) {
  const std::int64_t pixels = src.pixels();
  const bool blocks = src.inner == dst.inner && from % src.inner == 0 && to % dst.inner == 0 &&
                      count % src.inner == 0;
  for (std::int64_t n = 0; n < src.n; ++n) {
    const float* const xs = x + n * src.sample_size();
    float* const ys = y + n * dst.sample_size();
    if (blocks) {
      const float* const a = xs + src.ChannelOffset(from);
      float* const b = ys + dst.ChannelOffset(to);
      if (add) {
        AddTo(b, a, count * pixels);
      } else {
        std::copy_n(a, count * pixels, b);
      }
      continue;
    }
    for (std::int64_t c = 0; c < count; ++c) {
      const float* const a = xs + src.ChannelOffset(from + c);
      float* const b = ys + dst.ChannelOffset(to + c);
      for (std::int64_t s = 0; s < pixels; ++s) {
        const float value = a[s * src.inner];
        b[s * dst.inner] = add ? b[s * dst.inner] + value : value;
      }
    }
  }
}

// Zeros the channels that only fill up the last block.
void ZeroPadding(const Layout& layout, float* y) {
  if (!layout.has_padding()) return;
  for (std::int64_t n = 0; n < layout.n; ++n) {
    for (std::int64_t c = layout.c; c < layout.outer() * layout.inner; ++c) {
      float* const channel = y + n * layout.sample_size() + layout.ChannelOffset(c);
      for (std::int64_t s = 0; s < layout.pixels(); ++s) channel[s * layout.inner] = 0.0F;
    }
  }
}

class Concat final : public Kernel {
 public:
  explicit Concat(const KernelContext& context) : in_(context.in), out_(context.out) {}
  KernelNeeds needs() const override { return {}; }

  void Forward(LaneRun&) override {
    ZeroPadding(out_, b_.out);
    std::int64_t to = 0;
    for (std::size_t k = 0; k < in_.size(); to += in_[k].c, ++k) {
      MoveChannels(in_[k], b_.in[k], 0, out_, b_.out, to, in_[k].c, false);
    }
  }

  void Backward(LaneRun&) override {
    std::int64_t from = 0;
    for (std::size_t k = 0; k < in_.size(); from += in_[k].c, ++k) {
      if (b_.in_grad[k] == nullptr) continue;
      if (!b_.accumulate[k]) ZeroPadding(in_[k], b_.in_grad[k]);
      MoveChannels(out_, b_.out_grad, from, in_[k], b_.in_grad[k], 0, in_[k].c, b_.accumulate[k]);
    }
  }

 private:
  std::vector<Layout> in_;
  Layout out_;
};

class Slice final : public Kernel {
 public:
  explicit Slice(const KernelContext& context)
      : in_(context.in[0]), out_(context.out), begin_(context.node().slice().begin) {}
  KernelNeeds needs() const override { return {}; }

  void Forward(LaneRun&) override {
    ZeroPadding(out_, b_.out);
    MoveChannels(in_, b_.in[0], begin_, out_, b_.out, 0, out_.c, false);
  }

  void Backward(LaneRun&) override {
    if (b_.in_grad[0] == nullptr) return;
    if (!b_.accumulate[0]) std::fill_n(b_.in_grad[0], in_.size(), 0.0F);
    MoveChannels(out_, b_.out_grad, 0, in_, b_.in_grad[0], begin_, out_.c, true);
  }

 private:
  Layout in_, out_;
  std::int64_t begin_;
};

class ChannelShuffle final : public Kernel {
 public:
  explicit ChannelShuffle(const KernelContext& context)
      : in_(context.in[0]), out_(context.out), groups_(context.node().shuffle().groups) {}
  KernelNeeds needs() const override { return {}; }

  void Forward(LaneRun&) override {
    ZeroPadding(out_, b_.out);
    for (std::int64_t c = 0; c < out_.c; ++c) {
      MoveChannels(in_, b_.in[0], Source(c), out_, b_.out, c, 1, false);
    }
  }

  void Backward(LaneRun&) override {
    if (b_.in_grad[0] == nullptr) return;
    if (!b_.accumulate[0]) ZeroPadding(in_, b_.in_grad[0]);
    for (std::int64_t c = 0; c < out_.c; ++c) {
      MoveChannels(out_, b_.out_grad, c, in_, b_.in_grad[0], Source(c), 1, b_.accumulate[0]);
    }
  }

 private:
  // Output channel i * groups + g comes from input channel g * (c / groups) + i.
  std::int64_t Source(std::int64_t c) const {
    return (c % groups_) * (in_.c / groups_) + c / groups_;
  }

  Layout in_, out_;
  std::int64_t groups_;
};

class Pad final : public Kernel {
 public:
  explicit Pad(const KernelContext& context)
      : in_(context.in[0]), out_(context.out), pad_(context.node().pad().pad) {}
  KernelNeeds needs() const override { return {}; }

  void Forward(LaneRun&) override {
    std::fill_n(b_.out, out_.size(), 0.0F);
    ForEachRow([&](std::int64_t in_offset, std::int64_t out_offset, std::int64_t count) {
      std::copy_n(b_.in[0] + in_offset, count, b_.out + out_offset);
    });
  }

  void Backward(LaneRun&) override {
    float* const dx = b_.in_grad[0];
    if (dx == nullptr) return;
    if (!b_.accumulate[0]) std::fill_n(dx, in_.size(), 0.0F);
    ForEachRow([&](std::int64_t in_offset, std::int64_t out_offset, std::int64_t count) {
      AddTo(dx + in_offset, b_.out_grad + out_offset, count);
    });
  }

 private:
  // Calls visit(offset in the input, offset in the output, floats) for every row that both have.
  template <typename Visit>
  void ForEachRow(const Visit& visit) const {
    const std::int64_t inner = in_.inner;
    const std::int64_t x0 = std::max<std::int64_t>(0, -pad_.left);
    const std::int64_t x1 = std::min(in_.w, out_.w - pad_.left);
    if (x1 <= x0) return;
    for (std::int64_t plane = 0; plane < in_.n * in_.outer(); ++plane) {
      for (std::int64_t y = std::max<std::int64_t>(0, -pad_.top);
           y < std::min(in_.h, out_.h - pad_.top); ++y) {
        const std::int64_t from = ((plane * in_.h + y) * in_.w + x0) * inner;
        const std::int64_t to = ((plane * out_.h + y + pad_.top) * out_.w + x0 + pad_.left) * inner;
        visit(from, to, (x1 - x0) * inner);
      }
    }
  }

  Layout in_, out_;
  graph::Padding pad_;
};

class Convert final : public Kernel {
 public:
  explicit Convert(const KernelContext& context)
      : in_(context.in[0]),
        out_(context.out),
        forward_(ToDnnl(in_), ToDnnl(out_), context.engine),
        backward_(ToDnnl(out_), ToDnnl(in_), context.engine) {}

  KernelNeeds needs() const override { return {.scratch_floats = in_.size()}; }

  void Forward(LaneRun&) override { forward_.Execute(b_.in[0], b_.out); }

  void Backward(LaneRun&) override {
    float* const dx = b_.in_grad[0];
    if (dx == nullptr) return;
    backward_.Execute(b_.out_grad, b_.accumulate[0] ? b_.scratch : dx);
    if (b_.accumulate[0]) AddTo(dx, b_.scratch, in_.size());
  }

 private:
  Layout in_, out_;
  Reorder forward_, backward_;
};

}  // namespace

std::unique_ptr<Kernel> MakeConcat(const KernelContext& context) {
  return std::make_unique<Concat>(context);
}
std::unique_ptr<Kernel> MakeSlice(const KernelContext& context) {
  return std::make_unique<Slice>(context);
}
std::unique_ptr<Kernel> MakeChannelShuffle(const KernelContext& context) {
  return std::make_unique<ChannelShuffle>(context);
}
std::unique_ptr<Kernel> MakePad(const KernelContext& context) {
  return std::make_unique<Pad>(context);
}
std::unique_ptr<Kernel> MakeConvert(const KernelContext& context) {
  return std::make_unique<Convert>(context);
}

}  // namespace motley::engine::native
