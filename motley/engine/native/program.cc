#include "motley/engine/native/program.h"

#include <algorithm>
#include <limits>

#include "motley/base/clock.h"

namespace motley::engine::native {
namespace {

using graph::NodeId;
using graph::Op;

// Concat keeps blocks where all inputs have them; otherwise it gives plain planes.
std::int64_t ConcatInner(const std::vector<Layout>& in, std::int64_t channels) {
  const std::int64_t inner = in.front().inner;
  bool blocks = true, rows = true;
  for (const Layout& layout : in) {
    blocks = blocks && layout.inner == inner && !layout.has_padding();
    rows = rows && layout.inner == layout.c && layout.c > 1;
  }
  if (blocks && (inner == 8 || inner == 16)) return inner;
  return rows ? channels : 1;
}

// Slice keeps whole blocks.
std::int64_t SliceInner(const Layout& in, const graph::SliceAttrs& a) {
  const std::int64_t channels = a.end - a.begin;
  if ((in.inner == 8 || in.inner == 16) && channels % in.inner == 0) return in.inner;
  return in.inner == in.c ? channels : 1;
}

}  // namespace

Program::Program(const graph::Graph& graph, const Options& options, ConvChooser& chooser,
                 Parameters& parameters, const Gemm& gemm, const dnnl::engine& engine,
                 const float* weights)
    : graph_(graph), options_(options), parameters_(parameters), gemm_(gemm), engine_(engine) {
  DraftSteps(chooser, weights);
  MakeKernels(chooser, weights);
  ShareMemory();
  OrderGradients();
  PlanBuffers();
}

void Program::DraftSteps(ConvChooser& chooser, const float* weights) {
  values_.push_back({.layout = PlainLayout(graph_.input_shape(), options_.samples),
                     .wants_gradient = options_.training && graph_.is_head()});
  value_of_.assign(static_cast<std::size_t>(graph_.size()), 0);
  for (const Fusion& nodes : FuseNodes(graph_)) DraftNodes(nodes, chooser, weights);
  for (const Step& step : steps_) {
    for (const int in : step.in) ++values_[static_cast<std::size_t>(in)].consumers;
  }
}

// The layouts that a node takes and gives. Whatever only passes over its elements keeps the layout
// that its input has.
void Program::DraftNodes(const Fusion& nodes, ConvChooser& chooser, const float* weights) {
  const graph::Node& node = graph_.node(nodes.first);
  std::vector<NodeId> inputs = node.inputs;
  if (nodes.other.has_value()) inputs.push_back(*nodes.other);
  std::vector<int> in;
  std::vector<Layout> layouts;
  for (const NodeId input : inputs) {
    in.push_back(value_of_[static_cast<std::size_t>(input)]);
    layouts.push_back(values_[static_cast<std::size_t>(in.back())].layout);
  }
  const std::int64_t inner = layouts.front().inner;
  constexpr std::int64_t kAsItIs = 0;
  switch (node.op) {
    case Op::kConv: {
      const bool wants = values_[static_cast<std::size_t>(in[0])].wants_gradient;
      const ConvChoice& choice = chooser.Choose(nodes.first, layouts[0], wants, weights);
      return Draft(nodes, in, choice.in_inner, choice.out_inner);
    }
    case Op::kAdd:
    case Op::kBatchNorm:
      return Draft(nodes, in, inner, inner);
    case Op::kConcat:
      return Draft(nodes, in, kAsItIs, ConcatInner(layouts, node.shape[0]));
    case Op::kSlice:
      return Draft(nodes, in, kAsItIs, SliceInner(layouts[0], node.slice()));
    case Op::kGlobalAvgPool:
      return Draft(nodes, in, kAsItIs, 1);
    case Op::kFlatten:
    case Op::kFullyConnected:
    case Op::kSoftmaxCrossEntropy:
    case Op::kBoundary:
      return Draft(nodes, in, 1, 1);
    default:
      return Draft(nodes, in, kAsItIs, inner);
  }
}

// Adds a step whose inputs are all in `in_inner` (0: as they are).
void Program::Draft(const Fusion& nodes, std::vector<int> in, std::int64_t in_inner,
                    std::int64_t out_inner) {
  Step step;
  step.node = nodes.first;
  step.relu_ceiling = nodes.relu_ceiling;
  step.has_parameters = !graph_.parameters_of(nodes.first).empty();
  bool wants = step.has_parameters;
  for (int& value : in) {
    if (in_inner != 0) value = Convert(value, in_inner);
    const Value& v = values_[static_cast<std::size_t>(value)];
    step.in_layouts.push_back(in_inner == 0 ? v.layout : v.layout.WithInner(in_inner));
    wants = wants || v.wants_gradient;
  }
  step.in = std::move(in);
  step.out = static_cast<int>(values_.size());
  values_.push_back(
      {.layout = PlainLayout(graph_.node(nodes.last).shape, options_.samples).WithInner(out_inner),
       .wants_gradient = options_.training && wants,
       .producer = static_cast<int>(steps_.size())});
  value_of_[static_cast<std::size_t>(nodes.last)] = step.out;
  steps_.push_back(std::move(step));
}

// A value with the elements of `value` in another layout; the same one where no byte would move,
// and an earlier conversion where there is one.
int Program::Convert(int value, std::int64_t inner) {
  const Value from = values_[static_cast<std::size_t>(value)];
  const Layout wanted = from.layout.WithInner(inner);
  if (from.layout.SameOrder(wanted)) return value;
  for (const Step& step : steps_) {
    if (step.convert && step.in[0] == value &&
        values_[static_cast<std::size_t>(step.out)].layout == wanted) {
      return step.out;
    }
  }
  Step step;
  step.node = from.producer < 0 ? 0 : steps_[static_cast<std::size_t>(from.producer)].node;
  step.convert = true;
  step.in = {value};
  step.in_layouts = {from.layout};
  step.out = static_cast<int>(values_.size());
  values_.push_back({.layout = wanted,
                     .wants_gradient = from.wants_gradient,
                     .producer = static_cast<int>(steps_.size())});
  steps_.push_back(std::move(step));
  return steps_.back().out;
}

void Program::MakeKernels(ConvChooser& chooser, const float* weights) {
  for (Step& step : steps_) {
    KernelContext context{.graph = graph_,
                          .id = step.node,
                          .training = options_.training,
                          .in = step.in_layouts,
                          .out = values_[static_cast<std::size_t>(step.out)].layout,
                          .wants_gradient = {},
                          .relu_ceiling = step.relu_ceiling,
                          .parameters = parameters_,
                          .gemm = gemm_,
                          .engine = engine_};
    for (const int in : step.in) {
      context.wants_gradient.push_back(values_[static_cast<std::size_t>(in)].wants_gradient);
    }
    step.label = step.convert ? "convert" : std::string(graph::OpName(context.node().op));
    if (context.in.size() == 2 && context.node().op == Op::kBatchNorm) step.label += " + add";
    if (step.relu_ceiling.has_value()) step.label += " + relu";
    step.kernel = step.convert ? MakeConvert(context) : MakeKernel(context, step, chooser, weights);
  }
}

std::unique_ptr<Kernel> Program::MakeKernel(const KernelContext& context, Step& step,
                                            ConvChooser& chooser, const float* weights) {
  switch (context.node().op) {
    case Op::kConv: {
      const ConvChoice& choice =
          chooser.Choose(step.node, step.in_layouts[0], context.wants_gradient[0], weights);
      step.label += " (" + chooser.choices()[context.node().name] + ")";
      return MakeConv(context, choice);
    }
    case Op::kBatchNorm: {
      const auto begin = graph_.nodes().begin();
      const auto ordinal = std::count_if(begin, begin + step.node, [](const graph::Node& node) {
        return node.op == Op::kBatchNorm;
      });
      return MakeBatchNorm(context, static_cast<int>(ordinal));
    }
    case Op::kRelu:
      return MakeRelu(context, std::numeric_limits<float>::infinity());
    case Op::kRelu6:
      return MakeRelu(context, 6.0F);
    case Op::kMaxPool:
      return MakeMaxPool(context);
    case Op::kAvgPool:
      return MakeAvgPool(context);
    case Op::kGlobalAvgPool:
      return MakeGlobalAvgPool(context);
    case Op::kFullyConnected:
      return MakeFullyConnected(context);
    case Op::kAdd:
      return MakeAdd(context);
    case Op::kConcat:
      return MakeConcat(context);
    case Op::kSlice:
      return MakeSlice(context);
    case Op::kChannelShuffle:
      return MakeChannelShuffle(context);
    case Op::kPad:
      return MakePad(context);
    case Op::kFlatten:
      return MakeFlatten(context);
    case Op::kDropout:
      return MakeDropout(context);
    case Op::kLrn:
      return MakeLrn(context);
    case Op::kSoftmaxCrossEntropy:
      return MakeLoss(context);
    case Op::kBoundary:
      return MakeBoundary(context);
    case Op::kInput:
      break;
  }
  MOTLEY_CHECK(false, "node '{}' has no kernel", context.node().name);
  return nullptr;
}

// Lets a step write over its input where nobody needs that any more, and over the gradient of its
// output.
void Program::ShareMemory() {
  for (std::size_t v = 0; v < values_.size(); ++v) {
    values_[v].root = values_[v].gradient_root = static_cast<int>(v);
  }
  for (const Step& step : steps_) {
    const KernelNeeds needs = step.kernel->needs();
    const Value& in = values_[static_cast<std::size_t>(step.in[0])];
    Value& out = values_[static_cast<std::size_t>(step.out)];
    if (in.consumers != 1 || in.layout.size() != out.layout.size()) continue;
    if (in.wants_gradient != out.wants_gradient) continue;
    if (needs.in_place || needs.in_place_gradient) out.gradient_root = in.gradient_root;
    const bool producer_looks_back =
        in.producer >= 0 &&
        steps_[static_cast<std::size_t>(in.producer)].kernel->needs().output_in_backward;
    if (needs.in_place && !(options_.training && producer_looks_back)) out.root = in.root;
  }
}

// Going backwards, the first step that has a gradient for a value writes it, later ones add.
void Program::OrderGradients() {
  std::vector<bool> written(values_.size(), false);
  for (std::size_t s = steps_.size(); s-- > 0;) {
    Step& step = steps_[s];
    step.accumulate.assign(step.in.size(), false);
    const bool is_loss = !step.convert && step.node == graph_.loss();
    step.reached = is_loss || written[static_cast<std::size_t>(step.out)];
    if (!options_.training || !step.reached) continue;
    for (std::size_t k = 0; k < step.in.size(); ++k) {
      const auto in = static_cast<std::size_t>(step.in[k]);
      step.accumulate[k] = written[in];
      if (values_[in].wants_gradient) written[in] = true;
    }
  }
}

int Program::AddBuffer(std::int64_t floats, int first, int last) {
  buffers_.push_back({.bytes = floats * std::int64_t{sizeof(float)}, .first = first, .last = last});
  return static_cast<int>(buffers_.size()) - 1;
}

// Ticks: step s runs forward at s and backward at 2 * steps - 1 - s.
void Program::PlanBuffers() {
  const int steps = static_cast<int>(steps_.size());
  const int end = options_.training ? 2 * steps - 1 : steps - 1;
  const auto backward = [end](int s) { return end - s; };

  struct Life {
    std::int64_t floats = 0;
    int first = std::numeric_limits<int>::max(), last = -1;
    void Use(int tick) {
      first = std::min(first, tick);
      last = std::max(last, tick);
    }
  };
  std::vector<Life> data(values_.size()), gradient(values_.size());
  const auto life = [&](std::vector<Life>& lives, int value) -> Life& {
    const Value& v = values_[static_cast<std::size_t>(value)];
    Life& result = lives[static_cast<std::size_t>(&lives == &data ? v.root : v.gradient_root)];
    result.floats = std::max(result.floats, v.layout.size());
    return result;
  };
  life(data, 0).Use(0);
  if (values_[0].wants_gradient) life(gradient, 0).Use(end);
  std::int64_t scratch = 0;
  for (int s = 0; s < steps; ++s) {
    Step& step = steps_[static_cast<std::size_t>(s)];
    const KernelNeeds needs = step.kernel->needs();
    scratch = std::max(scratch, needs.scratch_floats);
    const bool trains = options_.training && step.reached;
    if (needs.workspace_floats > 0) {
      step.workspace = AddBuffer(needs.workspace_floats, s, trains ? backward(s) : s);
    }
    life(data, step.out).Use(s);
    if (trains && needs.output_in_backward) life(data, step.out).Use(backward(s));
    if (trains && values_[static_cast<std::size_t>(step.out)].wants_gradient) {
      life(gradient, step.out).Use(backward(s));
    }
    if (trains && needs.input_in_backward) life(data, step.in[0]).Use(backward(s));
    for (const int in : step.in) {
      life(data, in).Use(s);
      if (trains && values_[static_cast<std::size_t>(in)].wants_gradient) {
        life(gradient, in).Use(backward(s));
      }
    }
  }
  life(data, value_of_[static_cast<std::size_t>(graph_.logits())]).Use(steps - 1);
  scratch_ = AddBuffer(scratch, 0, end);
  for (std::size_t v = 0; v < values_.size(); ++v) {
    if (data[v].last >= 0) values_[v].data = AddBuffer(data[v].floats, data[v].first, data[v].last);
    if (gradient[v].last >= 0) {
      values_[v].gradient = AddBuffer(gradient[v].floats, gradient[v].first, gradient[v].last);
    }
  }
  arena_floats_ = PlanMemory(buffers_) / std::int64_t{sizeof(float)};
}

float* Program::At(int buffer) const {
  if (buffer < 0) return nullptr;
  return arena_ + buffers_[static_cast<std::size_t>(buffer)].offset / std::int64_t{sizeof(float)};
}

void Program::Bind(float* arena) {
  if (arena == arena_) return;
  arena_ = arena;
  const auto root = [this](int value) -> const Value& {
    return values_[static_cast<std::size_t>(values_[static_cast<std::size_t>(value)].root)];
  };
  const auto gradient = [this](int value) {
    const Value& v = values_[static_cast<std::size_t>(value)];
    return At(values_[static_cast<std::size_t>(v.gradient_root)].gradient);
  };
  for (Step& step : steps_) {
    Bindings b;
    for (const int in : step.in) {
      b.in.push_back(At(root(in).data));
      const bool wants = values_[static_cast<std::size_t>(in)].wants_gradient && step.reached;
      b.in_grad.push_back(wants ? gradient(in) : nullptr);
    }
    b.out = At(root(step.out).data);
    b.out_grad = gradient(step.out);
    b.accumulate = step.accumulate;
    b.workspace = At(step.workspace);
    b.scratch = At(scratch_);
    step.kernel->Bind(b);
  }
  // The loss reads the logits in the plain layout.
  logits_ = At(root(steps_.back().in[0]).data);
}

void Program::Run(LaneRun& run, const std::function<void(NodeId)>& on_node) {
  MOTLEY_CHECK(arena_ != nullptr, "the program is not bound");
  Forward(run);
  if (!options_.training) return;
  Backward(run, on_node);
  const Value& input = values_.front();
  if (!input.wants_gradient) return;
  std::copy_n(At(input.gradient), input.layout.size(), run.input_gradient);
}

void Program::Forward(LaneRun& run) {
  const Value& input = values_.front();
  std::copy_n(run.images, input.layout.size(), At(input.data));
  for (Step& step : steps_) {
    if (run.stop_forward && run.stop_forward()) throw Stopped();
    Timed(step.forward_seconds, [&] { step.kernel->Forward(run); });
    ++step.runs;
  }
}

template <typename Work>
void Program::Timed(double& seconds, const Work& work) const {
  if (!options_.profile) return work();
  const base::RealClock clock;
  const double begin = clock.Now();
  work();
  seconds += clock.Now() - begin;
}

void Program::AddProfile(std::vector<LayerTime>& times) const {
  if (times.empty()) times.resize(steps_.size());
  MOTLEY_CHECK(times.size() == steps_.size(), "programs of one net have the same steps");
  for (std::size_t s = 0; s < steps_.size(); ++s) {
    const Step& step = steps_[s];
    const Layout& out = values_[static_cast<std::size_t>(step.out)].layout;
    const KernelNeeds needs = step.kernel->needs();
    double inputs = 0.0, wanted = 0.0, parameters = 0.0;
    for (std::size_t k = 0; k < step.in.size(); ++k) {
      const auto floats = static_cast<double>(step.in_layouts[k].size());
      inputs += floats;
      if (values_[static_cast<std::size_t>(step.in[k])].wants_gradient) wanted += floats;
    }
    if (step.has_parameters) {
      for (const int index : graph_.parameters_of(step.node)) {
        parameters +=
            static_cast<double>(graph_.parameters()[static_cast<std::size_t>(index)].size);
      }
    }
    const auto outputs = static_cast<double>(out.size());
    const auto first = static_cast<double>(step.in_layouts[0].size());
    const auto runs = static_cast<double>(step.runs) * sizeof(float);
    const double flops = step.convert ? 0.0
                                      : static_cast<double>(graph_.ForwardFlops(step.node)) *
                                            static_cast<double>(options_.samples * step.runs);
    LayerTime& time = times[s];
    time.layer = graph_.node(step.node).name;
    time.kernel = step.label;
    time.forward.seconds += step.forward_seconds;
    time.forward.flops += flops;
    time.forward.bytes += runs * (inputs + outputs + parameters);
    if (!options_.training || !step.reached) continue;
    time.backward.seconds += step.backward_seconds;
    time.backward.flops += wanted > 0.0 ? 2.0 * flops : flops;
    time.backward.bytes += runs * (outputs + wanted + (needs.input_in_backward ? first : 0.0) +
                                   (needs.output_in_backward ? outputs : 0.0) +
                                   (wanted > 0.0 ? 2.0 : 1.0) * parameters);
  }
}

void Program::Backward(LaneRun& run, const std::function<void(NodeId)>& on_node) {
  for (std::size_t s = steps_.size(); s-- > 0;) {
    Step& step = steps_[s];
    if (run.stop_backward && run.stop_backward()) throw Stopped();
    if (step.reached) {
      Timed(step.backward_seconds, [&] { step.kernel->Backward(run); });
    } else if (step.has_parameters && !run.accumulate) {
      for (const int index : graph_.parameters_of(step.node)) {
        if (parameters_.LeftAsFactors(index)) continue;
        std::fill_n(run.gradients[static_cast<std::size_t>(index)], parameters_.GradientSize(index),
                    0.0F);
      }
    }
    if (step.has_parameters) on_node(step.node);
  }
}

}  // namespace motley::engine::native
