#include <algorithm>

#include "motley/engine/dropout.h"
#include "motley/engine/native/kernels/kernels.h"
#include "motley/engine/native/kernels/simd/loops.h"

namespace motley::engine::native {

void AddTo(float* dst, const float* src, std::int64_t count) {
  static const simd::Loops& loops = simd::BestLoops();
  loops.add_to(dst, src, count);
}

namespace {

// y = min(max(x, 0), ceiling). The gradient passes where 0 < y < ceiling, which the output alone
// tells, so the input may be overwritten.
class Relu final : public Kernel {
 public:
  Relu(std::int64_t size, float ceiling)
      : loops_(simd::BestLoops()), size_(size), ceiling_(ceiling) {}

  KernelNeeds needs() const override { return {.output_in_backward = true, .in_place = true}; }

  void Forward(LaneRun&) override { loops_.relu(b_.in[0], b_.out, size_, ceiling_); }

  void Backward(LaneRun&) override {
    if (b_.in_grad[0] == nullptr) return;
    loops_.relu_backward(b_.out, b_.out_grad, b_.in_grad[0], size_, ceiling_, b_.accumulate[0]);
  }

 private:
  const simd::Loops& loops_;
  std::int64_t size_;
  float ceiling_;
};

// The mask is computed from the key again in the backward pass: cheaper than keeping it.
class Dropout final : public Kernel {
 public:
  explicit Dropout(const KernelContext& context)
      : layout_(context.in[0]),
        node_(context.graph.key(context.id)),
        training_(context.training),
        threshold_(DropoutThreshold(context.node().dropout().probability)),
        scale_(1.0F / (1.0F - context.node().dropout().probability)) {}

  KernelNeeds needs() const override { return {.in_place = true}; }

  void Forward(LaneRun& run) override {
    if (!training_ || threshold_ == 0) {
      if (b_.out != b_.in[0]) {
        std::copy_n(b_.in[0], layout_.size(), b_.out);
      }
      return;
    }
    Apply(run, b_.in[0], b_.out, false);
  }

  void Backward(LaneRun& run) override {
    if (b_.in_grad[0] != nullptr) Apply(run, b_.out_grad, b_.in_grad[0], b_.accumulate[0]);
  }

 private:
  void Apply(const LaneRun& run, const float* x, float* y, bool accumulate) const {
    const std::int64_t pixels = layout_.pixels(), inner = layout_.inner;
    simd::DropoutRun part{.threshold = threshold_, .scale = scale_};
    const auto apply = [&](std::int64_t at, std::int64_t element, std::int64_t step,
                           std::int64_t count) {
      part.first = static_cast<std::uint32_t>(element);
      part.step = static_cast<std::uint32_t>(step);
      part.count = count;
      loops_.dropout(x + at, y + at, part, accumulate);
    };
    for (std::int64_t n = 0; n < layout_.n; ++n) {
      part.key = DropoutKey(run.seed, run.epoch, run.ids[n], node_);
      for (std::int64_t o = 0; o < layout_.outer(); ++o) {
        const std::int64_t base = (n * layout_.outer() + o) * pixels * inner;
        const std::int64_t first = o * inner * pixels;
        if (inner == 1) {
          apply(base, first, 1, pixels);
          continue;
        }
        for (std::int64_t s = 0; s < pixels; ++s) apply(base + s * inner, first + s, pixels, inner);
      }
    }
  }

  const simd::Loops& loops_ = simd::BestLoops();
  Layout layout_;
  int node_;
  bool training_;
  std::uint32_t threshold_;
  float scale_;
};

class Add final : public Kernel {
 public:
  explicit Add(std::int64_t size) : loops_(simd::BestLoops()), size_(size) {}
  KernelNeeds needs() const override { return {}; }

  void Forward(LaneRun&) override { loops_.add(b_.in[0], b_.in[1], b_.out, size_); }

  void Backward(LaneRun&) override {
    for (std::size_t k = 0; k < 2; ++k) {
      float* const dx = b_.in_grad[k];
      if (dx == nullptr) continue;
      if (b_.accumulate[k]) {
        AddTo(dx, b_.out_grad, size_);
      } else {
        std::copy_n(b_.out_grad, size_, dx);
      }
    }
  }

 private:
  const simd::Loops& loops_;
  std::int64_t size_;
};

// In plain layouts flattening only renames; the program lets input and output share memory unless
// somebody else reads the input too.
class Flatten final : public Kernel {
 public:
  explicit Flatten(std::int64_t size) : size_(size) {}
  KernelNeeds needs() const override { return {.in_place = true}; }

  void Forward(LaneRun&) override {
    if (b_.out != b_.in[0]) std::copy_n(b_.in[0], size_, b_.out);
  }

  void Backward(LaneRun&) override {
    float* const dx = b_.in_grad[0];
    if (dx == nullptr || dx == b_.out_grad) return;
    if (b_.accumulate[0]) {
      AddTo(dx, b_.out_grad, size_);
    } else {
      std::copy_n(b_.out_grad, size_, dx);
    }
  }

 private:
  std::int64_t size_;
};

}  // namespace

std::unique_ptr<Kernel> MakeRelu(const KernelContext& context, float ceiling) {
  return std::make_unique<Relu>(context.in[0].size(), ceiling);
}
std::unique_ptr<Kernel> MakeDropout(const KernelContext& context) {
  return std::make_unique<Dropout>(context);
}
std::unique_ptr<Kernel> MakeAdd(const KernelContext& context) {
  return std::make_unique<Add>(context.out.size());
}
std::unique_ptr<Kernel> MakeFlatten(const KernelContext& context) {
  return std::make_unique<Flatten>(context.out.size());
}

}  // namespace motley::engine::native
