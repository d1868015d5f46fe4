// The backward pass of a 3x3 convolution by Winograd's F(4x4, 3x3): 36 multiplications where the
// definition takes 144. Squares of all channels are transformed, so that what is left is one GEMM
// for each of the 36 places in a square. The forward pass is the direct one (adr/0005).
//
// For processors on which oneDNN has no such kernel.

#include <algorithm>
#include <array>

#include "motley/engine/native/kernels/kernels.h"
#include "motley/engine/native/kernels/simd/loops.h"

namespace motley::engine::native {
namespace {

using simd::Winograd;

constexpr std::int64_t kBlock = 8;  // channels side by side
constexpr std::int64_t kOut = 4;    // a square of the output, and
constexpr std::int64_t kIn = 6;     // of the input that it needs
constexpr std::int64_t kPlaces = kIn * kIn;
// So many floats of transformed squares at a time: they should be in a cache when GEMM reads them.
constexpr std::int64_t kFloatsAtOnce = 512 * 1024;

// Squares of kOut x kOut that cover every image of a layout, by number.
class Squares {
 public:
  explicit Squares(const Layout& layout)
      : layout_(layout),
        rows_((layout.h + kOut - 1) / kOut),
        columns_((layout.w + kOut - 1) / kOut) {}

  std::int64_t count() const { return layout_.n * rows_ * columns_; }

  struct Place {
    std::int64_t image, y, x;
  };
  Place At(std::int64_t number) const {
    return {number / (rows_ * columns_), number / columns_ % rows_ * kOut,
            number % columns_ * kOut};
  }

 private:
  Layout layout_;
  std::int64_t rows_, columns_;
};

// The part of a square of `size` at (y, x) that lies inside an image.
struct Inside {
  std::int64_t top, bottom, left, right;
  Inside(const Layout& layout, std::int64_t y, std::int64_t x, std::int64_t size)
      : top(std::clamp<std::int64_t>(-y, 0, size)),
        bottom(std::clamp<std::int64_t>(layout.h - y, top, size)),
        left(std::clamp<std::int64_t>(-x, 0, size)),
        right(std::clamp<std::int64_t>(layout.w - x, left, size)) {}
  bool whole(std::int64_t size) const {
    return top == 0 && left == 0 && bottom == size && right == size;
  }
};

// One matrix [squares][channels] for each place in a square. Matrices are a cache line further
// apart than they are long, because their elements are written one matrix after the other, and at
// a distance of whole pages all would fall into the same few lines of a cache.
struct Matrices {
  float* data = nullptr;
  std::int64_t channels = 0, distance = 0;

  static std::int64_t Distance(std::int64_t rows, std::int64_t channels) {
    return rows * channels + 16;
  }
  static std::int64_t Floats(std::int64_t rows, std::int64_t channels) {
    return kPlaces * Distance(rows, channels);
  }
  Matrices(float* memory, std::int64_t rows, std::int64_t columns)
      : data(memory), channels(columns), distance(Distance(rows, columns)) {}

  float* place(std::int64_t p) const { return data + p * distance; }
  // The square of 8 channels that begins at this element of every matrix.
  simd::Target target(std::int64_t element) const {
    return {data + element, kIn * distance, distance};
  }
  simd::Square square(std::int64_t element) const {
    return {data + element, kIn * distance, distance};
  }
};

class ConvWinograd final : public Kernel {
 public:
  ConvWinograd(const KernelContext& context, const ConvLayouts& layouts)
      : gemm_(context.gemm),
        loops_(simd::BestLoops()),
        pad_(context.node().conv().pad),
        bias_(context.node().conv().bias),
        relu_ceiling_(context.relu_ceiling),
        in_(context.in[0]),
        out_(context.out),
        weight_index_(static_cast<std::size_t>(context.graph.parameters_of(context.id).front())),
        at_once_(std::min(std::max<std::int64_t>(16, kFloatsAtOnce / (kPlaces * (in_.c + out_.c))),
                          std::max(Squares(in_).count(), Squares(out_).count()))) {
    KernelContext forward = context;
    forward.training = false;
    forward_ = MakeConvDnnl(forward, layouts);
    using dnnl::memory;
    const memory::dims dims{out_.c, in_.c, 3, 3};
    const memory::desc plain(dims, memory::data_type::f32, memory::format_tag::oihw);
    const memory::desc hwi(dims, memory::data_type::f32, memory::format_tag::ohwi);
    const int index = static_cast<int>(weight_index_);
    if (context.wants_gradient[0]) weights_ = context.parameters.Copy(index, plain, hwi, true);
    context.parameters.SetGradientLayout(index, plain, hwi);
  }

  KernelNeeds needs() const override {
    const std::int64_t ours = Matrices::Floats(out_.c, in_.c) + Matrices::Floats(at_once_, in_.c) +
                              Matrices::Floats(at_once_, out_.c);
    return {.input_in_backward = true,
            .output_in_backward = relu_ceiling_.has_value(),
            .scratch_floats = std::max(ours, forward_->needs().scratch_floats)};
  }

  void Bind(const Bindings& bindings) override {
    Kernel::Bind(bindings);
    forward_->Bind(bindings);
  }

  void Forward(LaneRun& run) override { forward_->Forward(run); }

  void Backward(LaneRun& run) override {
    if (relu_ceiling_.has_value()) {
      loops_.relu_backward(b_.out, b_.out_grad, b_.out_grad, out_.size(), *relu_ceiling_, false);
    }
    BackwardWeights(run.gradients[weight_index_], run.accumulate);
    if (bias_) BiasGradient(run.gradients[weight_index_ + 1], run.accumulate);
    if (b_.in_grad[0] != nullptr) BackwardData();
  }

 private:
  Matrices OfWeights() const { return {b_.scratch, out_.c, in_.c}; }
  Matrices OfInput() const {
    return {b_.scratch + Matrices::Floats(out_.c, in_.c), at_once_, in_.c};
  }
  Matrices OfOutput() const {
    return {b_.scratch + Matrices::Floats(out_.c, in_.c) + Matrices::Floats(at_once_, in_.c),
            at_once_, out_.c};
  }

  // Each square of the output's gradient times the square of the input that it came from.
  void BackwardWeights(float* gradient, bool accumulate) const {
    const Matrices sums = OfWeights(), inputs = OfInput(), gradients = OfOutput();
    const Squares squares(out_);
    for (std::int64_t first = 0; first < squares.count(); first += at_once_) {
      const std::int64_t end = std::min(first + at_once_, squares.count());
      Read(squares, first, end, b_.in[0], in_, {pad_.top, pad_.left}, kIn, loops_.winograd.data,
           inputs);
      Read(squares, first, end, b_.out_grad, out_, {0, 0}, kOut, loops_.winograd.gradient,
           gradients);
      for (std::int64_t p = 0; p < kPlaces; ++p) {
        gemm_(Use::kTransposed, Use::kPlain, out_.c, in_.c, end - first, gradients.place(p), out_.c,
              inputs.place(p), in_.c, first > 0 ? 1.0F : 0.0F, sums.place(p), in_.c);
      }
    }
    for (std::int64_t k = 0; k < out_.c; ++k) {
      for (std::int64_t c = 0; c < in_.c; c += kBlock) {
        loops_.winograd.weights_gradient(sums.square(k * in_.c + c),
                                         {gradient + k * 9 * in_.c + c, 3 * in_.c, in_.c},
                                         accumulate);
      }
    }
  }

  void BiasGradient(float* gradient, bool accumulate) const {
    if (!accumulate) std::fill_n(gradient, out_.c, 0.0F);
    for (std::int64_t n = 0; n < out_.n; ++n) {
      for (std::int64_t k = 0; k < out_.c; k += kBlock) {
        const float* const plane = b_.out_grad + n * out_.sample_size() + out_.ChannelOffset(k);
        std::array<double, kBlock> sums{};
        for (std::int64_t i = 0; i < out_.pixels() * kBlock; ++i) {
          sums[static_cast<std::size_t>(i % kBlock)] += static_cast<double>(plane[i]);
        }
        for (std::int64_t i = 0; i < kBlock; ++i) {
          gradient[k + i] += static_cast<float>(sums[static_cast<std::size_t>(i)]);
        }
      }
    }
  }

  // A convolution of the output's gradient with the weights turned around.
  void BackwardData() const {
    const Matrices weights = OfWeights(), inputs = OfInput(), gradients = OfOutput();
    for (std::int64_t k = 0; k < out_.c; ++k) {
      for (std::int64_t c = 0; c < in_.c; c += kBlock) {
        loops_.winograd.weights({weights_ + (k * 9 + 8) * in_.c + c, -3 * in_.c, -in_.c},
                                weights.target(k * in_.c + c), false);
      }
    }
    const Squares squares(in_);
    for (std::int64_t first = 0; first < squares.count(); first += at_once_) {
      const std::int64_t end = std::min(first + at_once_, squares.count());
      Read(squares, first, end, b_.out_grad, out_, {2 - pad_.top, 2 - pad_.left}, kIn,
           loops_.winograd.data, gradients);
      for (std::int64_t p = 0; p < kPlaces; ++p) {
        gemm_(Use::kPlain, Use::kPlain, end - first, in_.c, out_.c, gradients.place(p), out_.c,
              weights.place(p), in_.c, 0.0F, inputs.place(p), in_.c);
      }
      Write(squares, first, end, inputs);
    }
  }

  struct Shift {
    std::int64_t y, x;
  };
  // Transforms the squares of `size` that begin `before` the squares [first, end), zeros outside
  // the image.
  static void Read(const Squares& squares, std::int64_t first, std::int64_t end, const float* from,
                   const Layout& layout, Shift before, std::int64_t size,
                   Winograd::Transform transform, const Matrices& to) {
    std::array<float, kIn * kIn * kBlock> copy;
    for (std::int64_t s = first; s < end; ++s) {
      const Squares::Place place = squares.At(s);
      const std::int64_t y = place.y - before.y, x = place.x - before.x;
      const Inside inside(layout, y, x, size);
      const bool whole = inside.whole(size);
      if (!whole) copy.fill(0.0F);
      const std::int64_t row = layout.w * kBlock;
      for (std::int64_t c = 0; c < layout.c; c += kBlock) {
        const std::int64_t corner =
            place.image * layout.sample_size() + layout.ChannelOffset(c) + y * row + x * kBlock;
        const simd::Target target = to.target((s - first) * to.channels + c);
        if (whole) {
          transform({from + corner, row}, target, false);
          continue;
        }
        for (std::int64_t i = inside.top; i < inside.bottom; ++i) {
          std::copy_n(from + (corner + i * row + inside.left * kBlock),
                      (inside.right - inside.left) * kBlock,
                      copy.data() + (i * size + inside.left) * kBlock);
        }
        transform({copy.data(), size * kBlock}, target, false);
      }
    }
  }

  // The squares [first, end) of the input's gradient.
  void Write(const Squares& squares, std::int64_t first, std::int64_t end,
             const Matrices& from) const {
    std::array<float, kOut * kOut * kBlock> copy;
    const bool add = b_.accumulate[0];
    for (std::int64_t s = first; s < end; ++s) {
      const Squares::Place place = squares.At(s);
      const Inside inside(in_, place.y, place.x, kOut);
      const std::int64_t row = in_.w * kBlock;
      for (std::int64_t c = 0; c < in_.c; c += kBlock) {
        float* const corner = b_.in_grad[0] + place.image * in_.sample_size() +
                              in_.ChannelOffset(c) + place.y * row + place.x * kBlock;
        const simd::Square square = from.square((s - first) * from.channels + c);
        if (inside.whole(kOut)) {
          loops_.winograd.output(square, {corner, row}, add);
          continue;
        }
        loops_.winograd.output(square, {copy.data(), kOut * kBlock}, false);
        for (std::int64_t i = 0; i < inside.bottom; ++i) {
          const float* const line = copy.data() + i * kOut * kBlock;
          if (add) {
            loops_.add_to(corner + i * row, line, inside.right * kBlock);
          } else {
            std::copy_n(line, inside.right * kBlock, corner + i * row);
          }
        }
      }
    }
  }

  const Gemm& gemm_;
  const simd::Loops& loops_;
  graph::Padding pad_;
  bool bias_;
  std::optional<float> relu_ceiling_;
  Layout in_, out_;
  std::size_t weight_index_;
  std::int64_t at_once_;  // squares
  std::unique_ptr<Kernel> forward_;
  const float* weights_ = nullptr;  // [out][kh][kw][in]
};

}  // namespace

bool CanOwnWinograd(const graph::Node& node, const Layout& in, const Layout& out) {
  return CanWinograd(node) && in.inner == kBlock && out.inner == kBlock && !in.has_padding() &&
         !out.has_padding();
}

std::unique_ptr<Kernel> MakeConvWinograd(const KernelContext& context, const ConvLayouts& layouts) {
  if (!context.training) return MakeConvDnnl(context, layouts);
  return std::make_unique<ConvWinograd>(context, layouts);
}

}  // namespace motley::engine::native
