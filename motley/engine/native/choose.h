#ifndef MOTLEY_ENGINE_NATIVE_CHOOSE_H_
#define MOTLEY_ENGINE_NATIVE_CHOOSE_H_

#include <cstdint>
#include <map>
#include <oneapi/dnnl/dnnl.hpp>
#include <string>

#include "motley/engine/native/kernels/kernels.h"
#include "motley/graph/graph.h"

namespace motley::engine::native {

// How one convolution is computed.
struct ConvChoice {
  bool lowered = false;
  std::int64_t in_inner = 1, out_inner = 1;  // the layouts it wants and gives
  ConvLayouts layouts;                       // when not lowered
};

// Chooses a kernel for each convolution: by measuring each candidate, forward and backward, on this
// machine, the conversion of its input included; or as told. A choice holds for the life of the
// device, whatever batch is compiled later.
//
// Thread safety: none.
class ConvChooser {
 public:
  // `given`: node name -> "dnnl" or "lowered"; other values are ignored and measured.
  ConvChooser(const graph::Graph& graph, dnnl::engine engine, const Gemm& gemm,
              std::map<std::string, std::string> given);

  // `in`: what the net has at this point, for the number of samples that is being compiled.
  // `weights`: canonical weights, only to have some.
  const ConvChoice& Choose(graph::NodeId id, const Layout& in, bool wants_gradient,
                           const float* weights);

  // Node name -> kernel, for every convolution chosen so far.
  std::map<std::string, std::string> choices() const;

 private:
  ConvChoice Candidate(graph::NodeId id, bool lowered) const;
  double Measure(graph::NodeId id, const ConvChoice& choice, const Layout& in, bool wants_gradient,
                 const float* weights, double give_up_after) const;
  bool LoweredIsFaster(graph::NodeId id, const Layout& in, bool wants_gradient,
                       const float* weights);

  const graph::Graph& graph_;
  dnnl::engine engine_;
  const Gemm& gemm_;
  std::map<std::string, std::string> given_;
  std::map<graph::NodeId, ConvChoice> chosen_;
  std::map<std::string, bool> measured_;  // by geometry: nets repeat their layers
};

}  // namespace motley::engine::native

#endif  // MOTLEY_ENGINE_NATIVE_CHOOSE_H_
