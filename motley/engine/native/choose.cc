#include "motley/engine/native/choose.h"

#include <algorithm>
#include <limits>

#include "motley/engine/native/kernel_timer.h"

namespace motley::engine::native {
namespace {

constexpr ConvKernel kCandidates[] = {ConvKernel::kDirect, ConvKernel::kWinograd,
                                      ConvKernel::kLowered};

std::string Name(ConvKernel kernel) {
  switch (kernel) {
    case ConvKernel::kDirect:
      return "dnnl";
    case ConvKernel::kWinograd:
      return "winograd";
    case ConvKernel::kLowered:
      return "lowered";
  }
  return "";
}

std::string Geometry(const graph::ConvAttrs& a, const Layout& in, bool wants_gradient) {
  return fmt::format("{}x{}x{}x{}/{} k{}x{} s{}x{} p{},{},{},{} d{}x{} g{} o{} b{} {}", in.n, in.c,
                     in.h, in.w, in.inner, a.kernel_h, a.kernel_w, a.stride_h, a.stride_w,
                     a.pad.top, a.pad.left, a.pad.bottom, a.pad.right, a.dilation_h, a.dilation_w,
                     a.groups, a.out_channels, a.bias, wants_gradient);
}

}  // namespace

std::unique_ptr<Kernel> MakeConv(const KernelContext& context, const ConvChoice& choice) {
  if (choice.kernel == ConvKernel::kLowered) return MakeConvLowered(context);
  if (choice.own_winograd) return MakeConvWinograd(context, choice.layouts);
  return MakeConvDnnl(context, choice.layouts);
}

ConvChooser::ConvChooser(const graph::Graph& graph, dnnl::engine engine, const Gemm& gemm,
                         std::map<std::string, std::string> given, KernelCache& cache)
    : graph_(graph),
      engine_(std::move(engine)),
      gemm_(gemm),
      given_(std::move(given)),
      cache_(cache) {}

std::optional<ConvChoice> ConvChooser::Candidate(graph::NodeId id, ConvKernel kernel) const {
  switch (kernel) {
    case ConvKernel::kDirect:
      return Dnnl(id, kernel, dnnl::algorithm::convolution_direct);
    case ConvKernel::kWinograd:
      return Winograd(id);
    case ConvKernel::kLowered:
      return Lowered(id);
  }
  return {};
}

std::optional<ConvChoice> ConvChooser::Lowered(graph::NodeId id) const {
  const graph::Node& node = graph_.node(id);
  if (!CanLower(node)) return {};
  ConvChoice choice;
  choice.kernel = ConvKernel::kLowered;
  choice.in_inner = graph_.node(node.inputs[0]).shape[0];
  choice.out_inner = node.shape[0];
  return choice;
}

std::optional<ConvChoice> ConvChooser::Winograd(graph::NodeId id) const {
  const graph::Node& node = graph_.node(id);
  if (!CanWinograd(node)) return {};
  try {
    return Dnnl(id, ConvKernel::kWinograd, dnnl::algorithm::convolution_winograd);
  } catch (const dnnl::error&) {
    // The library has it for some processors only.
  }
  ConvChoice choice = Dnnl(id, ConvKernel::kWinograd, dnnl::algorithm::convolution_direct);
  choice.own_winograd = true;
  const Layout in = PlainLayout(graph_.node(node.inputs[0]).shape, 1).WithInner(choice.in_inner);
  const Layout out = PlainLayout(node.shape, 1).WithInner(choice.out_inner);
  if (!CanOwnWinograd(node, in, out)) return {};
  return choice;
}

ConvChoice ConvChooser::Dnnl(graph::NodeId id, ConvKernel kernel, dnnl::algorithm backward) const {
  ConvChoice choice;
  choice.kernel = kernel;
  choice.layouts = FindConvLayouts(graph_, id, backward, engine_);
  choice.in_inner = choice.layouts.in_inner;
  choice.out_inner = choice.layouts.out_inner;
  return choice;
}

double ConvChooser::Measure(graph::NodeId id, const ConvChoice& choice, const Layout& in,
                            bool wants_gradient, const float* weights, double give_up_after) const {
  const Layout wanted = in.WithInner(choice.in_inner);
  const Layout out = PlainLayout(graph_.node(id).shape, in.n).WithInner(choice.out_inner);
  const auto time = [&](const Layout& from, const Layout& to, const KernelTimer::Make& make) {
    return KernelTimer({graph_, id, from, to, wants_gradient}, gemm_, engine_, weights, make)
        .Time(give_up_after);
  };
  double seconds = time(wanted, out, [&](const KernelContext& c) { return MakeConv(c, choice); });
  if (!in.SameOrder(wanted)) seconds += time(in, wanted, MakeConvert);
  return seconds;
}

ConvChoice ConvChooser::Fastest(graph::NodeId id, const Layout& in, bool wants_gradient,
                                const float* weights) {
  // A few samples are enough to tell; the choice is for the net, not for this batch.
  constexpr std::int64_t kSamples = 8;
  Layout sample = in;
  sample.n = kSamples;
  const std::string key =
      Geometry(graph_.node(id).conv(), sample, wants_gradient) + " gemm " + gemm_.name();
  measured_as_[id] = key;
  const KernelCache::Times* times = cache_.Find(key);
  KernelCache::Times measured = times == nullptr ? KernelCache::Times() : *times;
  const std::size_t known = measured.size();
  double least = std::numeric_limits<double>::infinity();
  for (const auto& [name, seconds] : measured) least = std::min(least, seconds);
  for (const ConvKernel kernel : kCandidates) {
    if (measured.contains(Name(kernel))) continue;
    const auto choice = Candidate(id, kernel);
    if (!choice.has_value()) continue;
    const double seconds = Measure(id, *choice, sample, wants_gradient, weights, least);
    measured[Name(kernel)] = seconds;
    least = std::min(least, seconds);
  }
  if (measured.size() > known) times = &cache_.Add(key, std::move(measured));
  std::optional<ConvChoice> fastest;
  double best = std::numeric_limits<double>::infinity();
  for (const ConvKernel kernel : kCandidates) {
    const auto time = times->find(Name(kernel));
    if (time == times->end() || time->second >= best) continue;
    auto choice = Candidate(id, kernel);
    if (!choice.has_value()) continue;
    fastest = std::move(choice);
    best = time->second;
  }
  return fastest.has_value() ? *fastest : *Candidate(id, ConvKernel::kDirect);
}

std::optional<ConvChoice> ConvChooser::Given(graph::NodeId id) const {
  const auto given = given_.find(graph_.node(id).name);
  if (given == given_.end()) return {};
  for (const ConvKernel kernel : kCandidates) {
    if (given->second == Name(kernel)) return Candidate(id, kernel);
  }
  return {};
}

const ConvChoice& ConvChooser::Choose(graph::NodeId id, const Layout& in, bool wants_gradient,
                                      const float* weights) {
  if (const auto known = chosen_.find(id); known != chosen_.end()) return known->second;
  const auto given = Given(id);
  return chosen_[id] = given.has_value() ? *given : Fastest(id, in, wants_gradient, weights);
}

std::map<std::string, std::string> ConvChooser::choices() const {
  std::map<std::string, std::string> result;
  for (const auto& [id, choice] : chosen_) result[graph_.node(id).name] = Name(choice.kernel);
  return result;
}

std::vector<KernelReason> ConvChooser::reasons() const {
  std::vector<KernelReason> result;
  for (const auto& [id, choice] : chosen_) {
    KernelReason reason{
        .layer = graph_.node(id).name, .kernel = Name(choice.kernel), .seconds = {}};
    if (const auto key = measured_as_.find(id); key != measured_as_.end()) {
      if (const auto* const times = cache_.Find(key->second)) reason.seconds = *times;
    }
    result.push_back(std::move(reason));
  }
  return result;
}

}  // namespace motley::engine::native
