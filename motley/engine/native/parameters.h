#ifndef MOTLEY_ENGINE_NATIVE_PARAMETERS_H_
#define MOTLEY_ENGINE_NATIVE_PARAMETERS_H_

#include <cstdint>
#include <memory>
#include <oneapi/dnnl/dnnl.hpp>
#include <optional>
#include <vector>

#include "motley/engine/native/aligned.h"
#include "motley/engine/native/reorder.h"
#include "motley/graph/graph.h"

namespace motley::engine::native {

// What the gradient of a matrix is the product of, for all samples of the step: gradient^T * input.
struct GradientFactors {
  float* input = nullptr;     // [samples][in]
  float* gradient = nullptr;  // [samples][out]
};

// The parameters as the kernels want them. Outside a device weights and gradients are flat and
// canonical; inside, a convolution kernel may want a blocked copy of its weights, and leave its
// gradient blocked. This class keeps the copies, shared by all lanes, and knows each gradient's
// layout, which is the same for all lanes, so that lanes can be summed element by element.
//
// Thread safety: Copy and SetGradientLayout while compiling, in one thread. Refresh by all lanes at
// once, each copy by one of them.
class Parameters {
 public:
  explicit Parameters(const graph::Graph& graph, dnnl::engine engine);

  // A copy of parameter `index` in `layout`, valid after each Refresh. The same request gives the
  // same copy. `plain` describes the canonical layout in the dimensions that `layout` uses, or the
  // part of it that is wanted.
  // Copies that only the backward pass reads are not refreshed for inference.
  float* Copy(int index, const dnnl::memory::desc& plain, const dnnl::memory::desc& layout,
              bool backward_only);

  int copies() const { return static_cast<int>(copies_.size()); }
  // Converts copy `i` from the canonical weights.
  void Refresh(int i, const float* weights, bool training);

  // Declares that the gradient of parameter `index` is left in `layout`.
  void SetGradientLayout(int index, const dnnl::memory::desc& plain,
                         const dnnl::memory::desc& layout);
  // Declares that parameter `index`, a matrix, gets its gradient as two factors (GradientFactors).
  void LeaveAsFactors(int index) { as_factors_[static_cast<std::size_t>(index)] = true; }
  bool LeftAsFactors(int index) const { return as_factors_[static_cast<std::size_t>(index)]; }
  // In floats, padding included.
  std::int64_t GradientSize(int index) const;
  // Whether the gradient is left in the canonical layout.
  bool GradientIsPlain(int index) const;
  // Converts a gradient to the canonical layout.
  void ExportGradient(int index, const float* gradient, float* canonical);

 private:
  struct CopyEntry {
    int index = 0;
    dnnl::memory::desc layout;
    bool backward_only = false;
    AlignedFloats values;
    Reorder reorder;
  };
  struct GradientEntry {
    dnnl::memory::desc layout;
    Reorder reorder;
    bool is_part = false;  // the rest of the gradient is zero
  };

  const graph::Graph& graph_;
  dnnl::engine engine_;
  std::vector<std::unique_ptr<CopyEntry>> copies_;
  std::vector<std::optional<GradientEntry>> gradients_;  // by parameter; none: canonical
  std::vector<bool> as_factors_;                         // by parameter
};

}  // namespace motley::engine::native

#endif  // MOTLEY_ENGINE_NATIVE_PARAMETERS_H_
