#ifndef MOTLEY_ENGINE_NATIVE_KERNELS_TRIM_H_
#define MOTLEY_ENGINE_NATIVE_KERNELS_TRIM_H_

#include <oneapi/dnnl/dnnl.hpp>

#include "motley/engine/native/layout.h"
#include "motley/graph/graph.h"

namespace motley::engine::native {

// A convolution without the rows and columns of its kernel that only ever meet the padding: on an
// image of one pixel a padded 3x3 kernel is its centre. Small images in nets made for large ones
// have such layers at their end, where the weights are: two thirds of resnet18's, at 32x32.
struct TrimmedConv {
  graph::ConvAttrs attrs;   // with the smaller kernel, and the padding that goes with it
  int row = 0, column = 0;  // where the smaller kernel lies in the whole one
  bool smaller = false;

  TrimmedConv(const graph::ConvAttrs& whole, const Layout& in, const Layout& out);

  // The part of weights with the canonical layout `whole` that the smaller kernel has.
  dnnl::memory::desc Part(const dnnl::memory::desc& whole) const;
};

}  // namespace motley::engine::native

#endif  // MOTLEY_ENGINE_NATIVE_KERNELS_TRIM_H_
