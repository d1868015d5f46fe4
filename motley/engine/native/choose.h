#ifndef MOTLEY_ENGINE_NATIVE_CHOOSE_H_
#define MOTLEY_ENGINE_NATIVE_CHOOSE_H_

#include <cstdint>
#include <map>
#include <oneapi/dnnl/dnnl.hpp>
#include <optional>
#include <string>
#include <vector>

#include "motley/engine/device.h"
#include "motley/engine/native/kernel_cache.h"
#include "motley/engine/native/kernels/kernels.h"
#include "motley/graph/graph.h"

namespace motley::engine::native {

// How one convolution is computed.
enum class ConvKernel { kDirect, kWinograd, kLowered };

struct ConvChoice {
  ConvKernel kernel = ConvKernel::kDirect;
  std::int64_t in_inner = 1, out_inner = 1;  // the layouts it wants and gives
  ConvLayouts layouts;                       // when not lowered
  bool own_winograd = false;                 // where oneDNN has none for this processor
};

std::unique_ptr<Kernel> MakeConv(const KernelContext& context, const ConvChoice& choice);

// Chooses a kernel for each convolution: by measuring each candidate, forward and backward, on this
// machine, the conversion of its input included; or as told. A choice holds for the life of the
// device, whatever batch is compiled later.
//
// Thread safety: none.
class ConvChooser {
 public:
  // `given`: node name -> "dnnl", "winograd" or "lowered"; other values are ignored and measured.
  // `cache`: what was measured before, and where new measurements go.
  ConvChooser(const graph::Graph& graph, dnnl::engine engine, const Gemm& gemm,
              std::map<std::string, std::string> given, KernelCache& cache);

  // `in`: what the net has at this point, for the number of samples that is being compiled.
  // `weights`: canonical weights, only to have some.
  const ConvChoice& Choose(graph::NodeId id, const Layout& in, bool wants_gradient,
                           const float* weights);

  // Node name -> kernel, for every convolution chosen so far.
  std::map<std::string, std::string> choices() const;
  // The same with the measurements that decided.
  std::vector<KernelReason> reasons() const;

 private:
  // None where the kernel cannot do this convolution.
  std::optional<ConvChoice> Candidate(graph::NodeId id, ConvKernel kernel) const;
  std::optional<ConvChoice> Lowered(graph::NodeId id) const;
  std::optional<ConvChoice> Winograd(graph::NodeId id) const;
  // Throws dnnl::error where the library cannot do it.
  ConvChoice Dnnl(graph::NodeId id, ConvKernel kernel, dnnl::algorithm backward) const;
  std::optional<ConvChoice> Given(graph::NodeId id) const;
  ConvChoice Fastest(graph::NodeId id, const Layout& in, bool wants_gradient, const float* weights);
  double Measure(graph::NodeId id, const ConvChoice& choice, const Layout& in, bool wants_gradient,
                 const float* weights, double give_up_after) const;

  const graph::Graph& graph_;
  dnnl::engine engine_;
  const Gemm& gemm_;
  std::map<std::string, std::string> given_;
  KernelCache& cache_;
  std::map<graph::NodeId, ConvChoice> chosen_;
  std::map<graph::NodeId, std::string> measured_as_;  // the key in the cache
};

}  // namespace motley::engine::native

#endif  // MOTLEY_ENGINE_NATIVE_CHOOSE_H_
