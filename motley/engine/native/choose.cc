#include "motley/engine/native/choose.h"

#include <algorithm>
#include <limits>

#include "motley/base/clock.h"

namespace motley::engine::native {
namespace {

constexpr char kDnnl[] = "dnnl";
constexpr char kLowered[] = "lowered";

std::string Geometry(const graph::ConvAttrs& a, const Layout& in, bool wants_gradient) {
  return fmt::format("{}x{}x{}x{}/{} k{}x{} s{}x{} p{},{},{},{} d{}x{} g{} o{} b{} {}", in.n, in.c,
                     in.h, in.w, in.inner, a.kernel_h, a.kernel_w, a.stride_h, a.stride_w,
                     a.pad.top, a.pad.left, a.pad.bottom, a.pad.right, a.dilation_h, a.dilation_w,
                     a.groups, a.out_channels, a.bias, wants_gradient);
}

// A kernel with memory of its own, for timing.
class Bench {
 public:
  Bench(std::unique_ptr<Kernel> kernel, const Layout& in, const Layout& out, bool wants_gradient)
      : kernel_(std::move(kernel)),
        in_(in.size()),
        out_(out.size()),
        in_grad_(in.size()),
        out_grad_(out.size()),
        scratch_(kernel_->needs().scratch_floats),
        workspace_(kernel_->needs().workspace_floats) {
    kernel_->Bind({.in = {in_.data()},
                   .out = out_.data(),
                   .in_grad = {wants_gradient ? in_grad_.data() : nullptr},
                   .accumulate = {false},
                   .out_grad = out_grad_.data(),
                   .workspace = workspace_.data(),
                   .scratch = scratch_.data()});
  }

  // Seconds of one forward and backward pass: the best of three after one to warm up. Stops as soon
  // as it is clear that the answer is above `give_up_after`.
  double Time(LaneRun& run, double give_up_after) {
    const base::RealClock clock;
    double best = std::numeric_limits<double>::infinity();
    for (int repetition = 0; repetition < 4; ++repetition) {
      const double begin = clock.Now();
      kernel_->Forward(run);
      kernel_->Backward(run);
      const double seconds = clock.Now() - begin;
      if (repetition > 0) best = std::min(best, seconds);
      if (seconds > 3.0 * give_up_after) return seconds;
    }
    return best;
  }

 private:
  std::unique_ptr<Kernel> kernel_;
  AlignedFloats in_, out_, in_grad_, out_grad_, scratch_, workspace_;
};

}  // namespace

ConvChooser::ConvChooser(const graph::Graph& graph, dnnl::engine engine, const Gemm& gemm,
                         std::map<std::string, std::string> given)
    : graph_(graph), engine_(std::move(engine)), gemm_(gemm), given_(std::move(given)) {}

ConvChoice ConvChooser::Candidate(graph::NodeId id, bool lowered) const {
  const graph::Node& node = graph_.node(id);
  if (lowered) {
    return {.lowered = true,
            .in_inner = graph_.node(node.inputs[0]).shape[0],
            .out_inner = node.shape[0]};
  }
  ConvChoice choice;
  choice.layouts = FindConvLayouts(graph_, id, engine_);
  choice.in_inner = choice.layouts.in_inner;
  choice.out_inner = choice.layouts.out_inner;
  return choice;
}

double ConvChooser::Measure(graph::NodeId id, const ConvChoice& choice, const Layout& in,
                            bool wants_gradient, const float* weights, double give_up_after) const {
  const Layout wanted = in.WithInner(choice.in_inner);
  const Layout out = PlainLayout(graph_.node(id).shape, in.n).WithInner(choice.out_inner);
  Parameters parameters(graph_, engine_);
  KernelContext context{.graph = graph_,
                        .id = id,
                        .training = true,
                        .in = {wanted},
                        .out = out,
                        .wants_gradient = {wants_gradient},
                        .relu_ceiling = {},
                        .parameters = parameters,
                        .gemm = gemm_,
                        .engine = engine_};
  auto kernel = choice.lowered ? MakeConvLowered(context) : MakeConvDnnl(context, choice.layouts);
  parameters.Refresh(weights, true, 0, 1);

  std::vector<AlignedFloats> memory;
  std::vector<float*> gradients(graph_.parameters().size(), nullptr);
  for (const int index : graph_.parameters_of(id)) {
    memory.emplace_back(parameters.GradientSize(index));
    gradients[static_cast<std::size_t>(index)] = memory.back().data();
  }
  LaneRun run;
  run.weights = weights;
  run.gradients = gradients;
  double seconds = Bench(std::move(kernel), wanted, out, wants_gradient).Time(run, give_up_after);
  if (!in.SameOrder(wanted)) {
    context.in = {in};
    context.out = wanted;
    seconds += Bench(MakeConvert(context), in, wanted, wants_gradient).Time(run, give_up_after);
  }
  return seconds;
}

bool ConvChooser::LoweredIsFaster(graph::NodeId id, const Layout& in, bool wants_gradient,
                                  const float* weights) {
  if (!CanLower(graph_.node(id))) return false;
  // A few samples are enough to tell; the choice is for the net, not for this batch.
  constexpr std::int64_t kSamples = 8;
  Layout sample = in;
  sample.n = std::min(in.n, kSamples);
  const std::string key = Geometry(graph_.node(id).conv(), sample, wants_gradient);
  if (const auto known = measured_.find(key); known != measured_.end()) return known->second;
  const double dnnl = Measure(id, Candidate(id, false), sample, wants_gradient, weights,
                              std::numeric_limits<double>::infinity());
  const double lowered = Measure(id, Candidate(id, true), sample, wants_gradient, weights, dnnl);
  return measured_[key] = lowered < dnnl;
}

const ConvChoice& ConvChooser::Choose(graph::NodeId id, const Layout& in, bool wants_gradient,
                                      const float* weights) {
  if (const auto known = chosen_.find(id); known != chosen_.end()) return known->second;
  const auto given = given_.find(graph_.node(id).name);
  bool lowered = false;
  if (given != given_.end() && (given->second == kDnnl || given->second == kLowered)) {
    lowered = given->second == kLowered && CanLower(graph_.node(id));
  } else {
    lowered = LoweredIsFaster(id, in, wants_gradient, weights);
  }
  return chosen_[id] = Candidate(id, lowered);
}

std::map<std::string, std::string> ConvChooser::choices() const {
  std::map<std::string, std::string> result;
  for (const auto& [id, choice] : chosen_) {
    result[graph_.node(id).name] = choice.lowered ? kLowered : kDnnl;
  }
  return result;
}

}  // namespace motley::engine::native
