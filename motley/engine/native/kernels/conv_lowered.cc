// Convolution by lowering (science: batching): every patch of b_p images becomes a row of one
// matrix, and one GEMM with the kernel matrix does the layer. NHWC, so that the product is the
// output without another copy.

#include <algorithm>

#include "motley/engine/native/kernels/kernels.h"
#include "motley/engine/native/kernels/simd/loops.h"
#include "motley/engine/native/kernels/trim.h"

namespace motley::engine::native {
namespace {

class ConvLowered final : public Kernel {
 public:
  ConvLowered(const KernelContext& context, std::int64_t rows)
      : gemm_(context.gemm),
        loops_(simd::BestLoops()),
        relu_ceiling_(context.relu_ceiling),
        trimmed_(context.node().conv(), context.in[0], context.out),
        attrs_(trimmed_.attrs),
        in_(context.in[0]),
        out_(context.out),
        patch_(in_.c * attrs_.kernel_h * attrs_.kernel_w),
        weight_index_(context.graph.parameters_of(context.id).front()) {
    using dnnl::memory;
    const memory::dims dims{attrs_.out_channels, in_.c, attrs_.kernel_h, attrs_.kernel_w};
    const graph::ConvAttrs& whole = context.node().conv();
    const memory::desc plain =
        trimmed_.Part({{whole.out_channels, in_.c, whole.kernel_h, whole.kernel_w},
                       memory::data_type::f32,
                       memory::format_tag::oihw});
    const memory::desc hwi(dims, memory::data_type::f32, memory::format_tag::ohwi);
    weights_ = context.parameters.Copy(weight_index_, plain, hwi, false);
    if (context.training) context.parameters.SetGradientLayout(weight_index_, plain, hwi);
    if (attrs_.bias) {
      bias_offset_ = context.graph.parameters()[static_cast<std::size_t>(weight_index_) + 1].offset;
    }
    images_ = std::clamp<std::int64_t>(rows / out_.pixels(), 1, in_.n);
  }

  KernelNeeds needs() const override {
    return {.input_in_backward = true,
            .output_in_backward = relu_ceiling_.has_value(),
            .scratch_floats = images_ * out_.pixels() * patch_};
  }

  void Forward(LaneRun& run) override {
    for (std::int64_t n = 0; n < in_.n; n += images_) {
      const std::int64_t rows = Rows(n);
      float* const y = b_.out + n * out_.sample_size();
      gemm_(Use::kPlain, Use::kTransposed, rows, out_.c, patch_, Lower(n), patch_, weights_, patch_,
            0.0F, y, out_.c);
      if (attrs_.bias) AddBias(run.weights + bias_offset_, y, rows);
      if (relu_ceiling_.has_value()) loops_.relu(y, y, rows * out_.c, *relu_ceiling_);
    }
  }

  void Backward(LaneRun& run) override {
    if (relu_ceiling_.has_value()) {
      loops_.relu_backward(b_.out, b_.out_grad, b_.out_grad, out_.size(), *relu_ceiling_, false);
    }
    float* const dw = run.gradients[static_cast<std::size_t>(weight_index_)];
    for (std::int64_t n = 0; n < in_.n; n += images_) {
      const float* const dy = b_.out_grad + n * out_.sample_size();
      const bool add = run.accumulate || n > 0;
      gemm_(Use::kTransposed, Use::kPlain, out_.c, patch_, Rows(n), dy, out_.c, Lower(n), patch_,
            add ? 1.0F : 0.0F, dw, patch_);
    }
    if (attrs_.bias) {
      BiasGradient(run.gradients[static_cast<std::size_t>(weight_index_) + 1], run.accumulate);
    }
    if (b_.in_grad[0] != nullptr) BackwardData();
  }

 private:
  std::int64_t Rows(std::int64_t n) const { return std::min(images_, in_.n - n) * out_.pixels(); }

  bool IsPointwise() const {
    return attrs_.kernel_h == 1 && attrs_.kernel_w == 1 && attrs_.stride_h == 1 &&
           attrs_.stride_w == 1 && attrs_.pad == graph::Padding{};
  }

  void AddBias(const float* bias, float* y, std::int64_t rows) const {
    for (std::int64_t r = 0; r < rows; ++r) AddTo(y + r * out_.c, bias, out_.c);
  }

  void BiasGradient(float* db, bool accumulate) const {
    if (!accumulate) std::fill_n(db, out_.c, 0.0F);
    for (std::int64_t r = 0; r < out_.n * out_.pixels(); ++r) {
      AddTo(db, b_.out_grad + r * out_.c, out_.c);
    }
  }

  void BackwardData() const {
    if (!b_.accumulate[0]) std::fill_n(b_.in_grad[0], in_.size(), 0.0F);
    for (std::int64_t n = 0; n < in_.n; n += images_) {
      const std::int64_t rows = Rows(n);
      const float* const dy = b_.out_grad + n * out_.sample_size();
      float* const patches = IsPointwise() ? b_.in_grad[0] + n * in_.sample_size() : b_.scratch;
      gemm_(Use::kPlain, Use::kPlain, rows, patch_, out_.c, dy, out_.c, weights_, patch_,
            IsPointwise() ? 1.0F : 0.0F, patches, patch_);
      if (IsPointwise()) continue;
      ForEachRun(n, rows / out_.pixels(),
                 [&](std::int64_t input, std::int64_t row, std::int64_t floats) {
                   if (input < 0) return;
                   loops_.add_to(b_.in_grad[0] + input, b_.scratch + row, floats);
                 });
    }
  }

  // The patches of images [n, n + b_p) as rows. A pointwise convolution's input is that already.
  const float* Lower(std::int64_t n) const {
    if (IsPointwise()) return b_.in[0] + n * in_.sample_size();
    const std::int64_t images = std::min(images_, in_.n - n);
    ForEachRun(n, images, [&](std::int64_t input, std::int64_t row, std::int64_t floats) {
      if (input < 0) {
        std::fill_n(b_.scratch + row, floats, 0.0F);
      } else {
        std::copy_n(b_.in[0] + input, floats, b_.scratch + row);
      }
    });
    return b_.scratch;
  }

  // Calls visit(offset in the input, or -1 in the padding; offset in the patches; floats) for all
  // parts of the patches that lie side by side in both. Without dilation that is a whole row of the
  // kernel.
  template <typename Visit>
  void ForEachRun(std::int64_t first, std::int64_t images, const Visit& visit) const {
    const std::int64_t step = attrs_.dilation_w == 1 ? attrs_.kernel_w : 1;
    std::int64_t row = 0;
    for (std::int64_t n = first; n < first + images; ++n) {
      for (std::int64_t oy = 0; oy < out_.h; ++oy) {
        for (std::int64_t ox = 0; ox < out_.w; ++ox) {
          for (std::int64_t ky = 0; ky < attrs_.kernel_h; ++ky) {
            const std::int64_t y = oy * attrs_.stride_h - attrs_.pad.top + ky * attrs_.dilation_h;
            const bool row_inside = y >= 0 && y < in_.h;
            for (std::int64_t kx = 0; kx < attrs_.kernel_w; kx += step, row += step * in_.c) {
              const std::int64_t x =
                  ox * attrs_.stride_w - attrs_.pad.left + kx * attrs_.dilation_w;
              const std::int64_t begin = row_inside ? std::clamp<std::int64_t>(-x, 0, step) : step;
              const std::int64_t end =
                  row_inside ? std::clamp<std::int64_t>(in_.w - x, begin, step) : step;
              if (begin > 0) visit(-1, row, begin * in_.c);
              if (end > begin) {
                visit(((n * in_.h + y) * in_.w + x + begin) * in_.c, row + begin * in_.c,
                      (end - begin) * in_.c);
              }
              if (end < step) visit(-1, row + end * in_.c, (step - end) * in_.c);
            }
          }
        }
      }
    }
  }

  const Gemm& gemm_;
  const simd::Loops& loops_;
  std::optional<float> relu_ceiling_;
  TrimmedConv trimmed_;
  const graph::ConvAttrs& attrs_;
  Layout in_, out_;
  std::int64_t patch_;
  int weight_index_;
  const float* weights_ = nullptr;  // [out][kh][kw][in]
  std::int64_t bias_offset_ = 0;
  std::int64_t images_ = 1;  // b_p
};

}  // namespace

bool CanLower(const graph::Node& node) { return node.conv().groups == 1; }

std::unique_ptr<Kernel> MakeConvLowered(const KernelContext& context, std::int64_t rows) {
  return std::make_unique<ConvLowered>(context, rows);
}

}  // namespace motley::engine::native
