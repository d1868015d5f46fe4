#include <algorithm>

#include "motley/engine/native/kernels/dnnl_kernel.h"
#include "motley/engine/native/kernels/kernels.h"
#include "motley/engine/native/kernels/simd/loops.h"
#include "motley/engine/native/reorder.h"

namespace motley::engine::native {
namespace {

using dnnl::memory;

// Max pooling of planes by oneDNN, which remembers in its workspace where each maximum was.
class MaxPool final : public DnnlKernel {
 public:
  explicit MaxPool(const KernelContext& context)
      : DnnlKernel(context.engine),
        in_(context.in[0]),
        src_(ToDnnl(context.in[0])),
        dst_(ToDnnl(context.out)) {
    const graph::PoolAttrs& a = context.node().pool();
    const Layout& out = context.out;
    const memory::dims strides{a.stride_h, a.stride_w}, kernel{a.kernel_h, a.kernel_w};
    const memory::dims before{a.pad.top, a.pad.left};
    // What the last window needs; with ceil_mode it may reach past the declared padding.
    const memory::dims after{
        std::max<std::int64_t>(0, (out.h - 1) * a.stride_h + a.kernel_h - in_.h - a.pad.top),
        std::max<std::int64_t>(0, (out.w - 1) * a.stride_w + a.kernel_w - in_.w - a.pad.left)};
    const auto algorithm = dnnl::algorithm::pooling_max;
    const auto kind =
        context.training ? dnnl::prop_kind::forward_training : dnnl::prop_kind::forward_inference;
    const dnnl::pooling_forward::primitive_desc forward(
        {kind, algorithm, src_, dst_, strides, kernel, before, after}, OwnScratchpad(), engine_);
    forward_ = dnnl::pooling_forward(forward);
    forward_pad_ = forward.scratchpad_desc();
    ReserveLibraryScratch(forward_pad_);
    if (!context.training) return;
    workspace_ = forward.workspace_desc();
    const dnnl::pooling_backward::primitive_desc backward(
        {algorithm, src_, dst_, strides, kernel, before, after}, OwnScratchpad(), engine_, forward);
    backward_ = dnnl::pooling_backward(backward);
    backward_pad_ = backward.scratchpad_desc();
    ReserveLibraryScratch(backward_pad_);
  }

  KernelNeeds needs() const override {
    return {.workspace_floats = Floats(workspace_),
            .scratch_floats = library_floats() + in_.size()};
  }

  void Forward(LaneRun&) override {
    Arguments arguments{{DNNL_ARG_SRC, At(src_, b_.in[0])}, {DNNL_ARG_DST, At(dst_, b_.out)}};
    if (b_.workspace != nullptr) arguments[DNNL_ARG_WORKSPACE] = At(workspace_, b_.workspace);
    Execute(forward_, forward_pad_, std::move(arguments));
  }

  void Backward(LaneRun&) override {
    if (b_.in_grad[0] == nullptr) return;
    float* const target = b_.accumulate[0] ? own_scratch() : b_.in_grad[0];
    Execute(backward_, backward_pad_,
            {{DNNL_ARG_DIFF_DST, At(dst_, b_.out_grad)},
             {DNNL_ARG_DIFF_SRC, At(src_, target)},
             {DNNL_ARG_WORKSPACE, At(workspace_, b_.workspace)}});
    if (b_.accumulate[0]) AddTo(b_.in_grad[0], target, in_.size());
  }

 private:
  Layout in_;
  memory::desc src_, dst_, workspace_, forward_pad_, backward_pad_;
  dnnl::pooling_forward forward_;
  dnnl::pooling_backward backward_;
};

// Max pooling where channels lie side by side. On LeNet the forward pass is 4 times as fast as the
// library's, the backward pass 1.5 times.
class MaxPoolSideBySide final : public Kernel {
 public:
  explicit MaxPoolSideBySide(const KernelContext& context)
      : in_(context.in[0]), out_(context.out), a_(context.node().pool()) {
    FindRuns();
  }

  static bool CanDo(const KernelContext& context) {
    const graph::PoolAttrs& a = context.node().pool();
    return context.in[0].inner >= simd::kWidth &&
           std::int64_t{a.kernel_h} * a.kernel_w <= kMaxPlaces;
  }

  // Where each maximum was, a byte each.
  KernelNeeds needs() const override { return {.workspace_floats = (out_.size() + 3) / 4}; }

  void Forward(LaneRun&) override {
    for (std::int64_t plane = 0; plane < in_.n * in_.outer(); ++plane) {
      ForEachRun(plane, [&](std::int64_t input, std::int64_t output, const simd::PoolRun& run) {
        loops_.max_pool(b_.in[0] + input, b_.out + output, where() + output, run);
      });
    }
  }

  void Backward(LaneRun&) override {
    float* const dx = b_.in_grad[0];
    if (dx == nullptr) return;
    const std::int64_t size = in_.pixels() * in_.inner;
    for (std::int64_t plane = 0; plane < in_.n * in_.outer(); ++plane) {
      if (!b_.accumulate[0]) std::fill_n(dx + plane * size, size, 0.0F);
      ForEachRun(plane, [&](std::int64_t input, std::int64_t output, const simd::PoolRun& run) {
        loops_.max_pool_backward(b_.out_grad + output, where() + output, dx + input, run);
      });
    }
  }

 private:
  static constexpr int kMaxPlaces = 255;

  // Outputs side by side whose windows have the same places in the image.
  struct Run {
    std::int64_t input = 0, output = 0;  // pixels of a plane: the first window's beginning, and
    std::int64_t count = 0;              // the first of as many outputs
    std::vector<std::int64_t> taps;
    std::vector<std::uint8_t> ids;
  };

  std::uint8_t* where() const { return reinterpret_cast<std::uint8_t*>(b_.workspace); }

  // Cuts a plane's outputs into runs.
  void FindRuns() {
    for (std::int64_t oy = 0; oy < out_.h; ++oy) {
      const std::int64_t y = oy * a_.stride_h - a_.pad.top;
      for (std::int64_t ox = 0; ox < out_.w; ox += runs_.back().count) {
        const std::int64_t x = ox * a_.stride_w - a_.pad.left;
        const bool inside = x >= 0 && x + a_.kernel_w <= in_.w;
        Run& run = runs_.emplace_back();
        run.input = y * in_.w + x;
        run.output = oy * out_.w + ox;
        run.count = inside ? std::min((in_.w - a_.kernel_w - x) / a_.stride_w + 1, out_.w - ox) : 1;
        for (int ky = 0; ky < a_.kernel_h; ++ky) {
          for (int kx = 0; kx < a_.kernel_w; ++kx) {
            if (y + ky < 0 || y + ky >= in_.h || x + kx < 0 || x + kx >= in_.w) continue;
            run.taps.push_back((ky * in_.w + kx) * in_.inner);
            run.ids.push_back(static_cast<std::uint8_t>(ky * a_.kernel_w + kx));
          }
        }
        MOTLEY_CHECK(!run.taps.empty(), "a window of max pooling lies outside the image");
      }
    }
  }

  template <typename Visit>
  void ForEachRun(std::int64_t plane, const Visit& visit) const {
    const std::int64_t inner = in_.inner;
    for (const Run& run : runs_) {
      simd::PoolRun part{.count = run.count,
                         .in_step = a_.stride_w * inner,
                         .out_step = inner,
                         .taps = run.taps.data(),
                         .ids = run.ids.data(),
                         .places = static_cast<int>(run.taps.size())};
      for (std::int64_t c = 0; c < inner; c += simd::kWidth) {
        part.width = static_cast<int>(std::min<std::int64_t>(simd::kWidth, inner - c));
        visit((plane * in_.pixels() + run.input) * inner + c,
              (plane * out_.pixels() + run.output) * inner + c, part);
      }
    }
  }

  const simd::Loops& loops_ = simd::BestLoops();
  Layout in_, out_;
  graph::PoolAttrs a_;
  std::vector<Run> runs_;
};

// Average pooling with PyTorch's divisor: the window's pixels inside the image, or, with
// count_include_pad, inside the padded image; never what ceil_mode lets hang over.
class AvgPool final : public Kernel {
 public:
  explicit AvgPool(const KernelContext& context)
      : in_(context.in[0]), out_(context.out), a_(context.node().pool()) {}
  KernelNeeds needs() const override { return {}; }

  void Forward(LaneRun&) override {
    std::fill_n(b_.out, out_.size(), 0.0F);
    ForEachWindow([&](std::int64_t input, std::int64_t output, float weight) {
      const float* const x = b_.in[0] + input;
      float* const y = b_.out + output;
      for (std::int64_t i = 0; i < in_.inner; ++i) y[i] += weight * x[i];
    });
  }

  void Backward(LaneRun&) override {
    float* const gradient = b_.in_grad[0];
    if (gradient == nullptr) return;
    if (!b_.accumulate[0]) std::fill_n(gradient, in_.size(), 0.0F);
    ForEachWindow([&](std::int64_t input, std::int64_t output, float weight) {
      float* const dx = gradient + input;
      const float* const dy = b_.out_grad + output;
      for (std::int64_t i = 0; i < in_.inner; ++i) dx[i] += weight * dy[i];
    });
  }

 private:
  // Calls visit(input offset, output offset, 1 / divisor) for every input pixel of every window.
  template <typename Visit>
  void ForEachWindow(const Visit& visit) const {
    for (std::int64_t plane = 0; plane < in_.n * in_.outer(); ++plane) {
      for (std::int64_t oy = 0; oy < out_.h; ++oy) {
        const Span rows(oy, a_.stride_h, a_.kernel_h, a_.pad.top, a_.pad.bottom, in_.h);
        for (std::int64_t ox = 0; ox < out_.w; ++ox) {
          const Span columns(ox, a_.stride_w, a_.kernel_w, a_.pad.left, a_.pad.right, in_.w);
          const std::int64_t divisor =
              a_.count_include_pad ? rows.padded * columns.padded
                                   : (rows.end - rows.begin) * (columns.end - columns.begin);
          const float weight = 1.0F / static_cast<float>(divisor);
          const std::int64_t output = ((plane * out_.h + oy) * out_.w + ox) * in_.inner;
          for (std::int64_t y = rows.begin; y < rows.end; ++y) {
            for (std::int64_t x = columns.begin; x < columns.end; ++x) {
              visit(((plane * in_.h + y) * in_.w + x) * in_.inner, output, weight);
            }
          }
        }
      }
    }
  }

  // The input positions [begin, end) of one window, and how many the padded image has of it.
  struct Span {
    Span(std::int64_t index, std::int64_t stride, std::int64_t kernel, std::int64_t before,
         std::int64_t after, std::int64_t size) {
      const std::int64_t start = index * stride - before;
      padded = std::min(start + kernel, size + after) - start;
      begin = std::max<std::int64_t>(start, 0);
      end = std::min(start + kernel, size);
    }
    std::int64_t begin, end, padded;
  };

  Layout in_, out_;
  graph::PoolAttrs a_;
};

class GlobalAvgPool final : public Kernel {
 public:
  explicit GlobalAvgPool(const KernelContext& context) : in_(context.in[0]) {}
  KernelNeeds needs() const override { return {}; }

  void Forward(LaneRun&) override {
    const float scale = 1.0F / static_cast<float>(in_.pixels());
    ForEachChannel([&](std::int64_t input, std::int64_t output) {
      const float* const x = b_.in[0] + input;
      float sum = 0.0F;
      for (std::int64_t s = 0; s < in_.pixels(); ++s) sum += x[s * in_.inner];
      b_.out[output] = sum * scale;
    });
  }

  void Backward(LaneRun&) override {
    float* const gradient = b_.in_grad[0];
    if (gradient == nullptr) return;
    if (!b_.accumulate[0]) std::fill_n(gradient, in_.size(), 0.0F);
    const float scale = 1.0F / static_cast<float>(in_.pixels());
    ForEachChannel([&](std::int64_t input, std::int64_t output) {
      float* const dx = gradient + input;
      const float g = b_.out_grad[output] * scale;
      for (std::int64_t s = 0; s < in_.pixels(); ++s) dx[s * in_.inner] += g;
    });
  }

 private:
  template <typename Visit>
  void ForEachChannel(const Visit& visit) const {
    for (std::int64_t n = 0; n < in_.n; ++n) {
      for (std::int64_t c = 0; c < in_.c; ++c) {
        visit(n * in_.sample_size() + in_.ChannelOffset(c), n * in_.c + c);
      }
    }
  }

  Layout in_;
};

}  // namespace

std::unique_ptr<Kernel> MakeMaxPool(const KernelContext& context) {
  if (MaxPoolSideBySide::CanDo(context)) return std::make_unique<MaxPoolSideBySide>(context);
  return std::make_unique<MaxPool>(context);
}
std::unique_ptr<Kernel> MakeAvgPool(const KernelContext& context) {
  return std::make_unique<AvgPool>(context);
}
std::unique_ptr<Kernel> MakeGlobalAvgPool(const KernelContext& context) {
  return std::make_unique<GlobalAvgPool>(context);
}

}  // namespace motley::engine::native
