// The trade of lowering: how many images b_p are lowered at once, against speed and memory, for
// layers of which lowering is the fastest kernel or near it. One core.

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <limits>
#include <vector>

#include "motley/engine/native/kernel_timer.h"
#include "motley/engine/native/kernels/kernels.h"
#include "motley/engine/native/lanes.h"
#include "motley/graph/zoo.h"

namespace motley::engine::native {
namespace {

constexpr std::int64_t kBatch = 64;

struct Layer {
  const char* net;
  graph::Shape input;
  const char* name;
};

void Measure(const Layer& layer) {
  const graph::Model model =
      graph::InitialModel(graph::BuildZoo(layer.net, layer.input, 10).value(), 1);
  const graph::Graph& net = model.graph;
  const auto node = std::find_if(net.nodes().begin(), net.nodes().end(),
                                 [&](const graph::Node& n) { return n.name == layer.name; });
  MOTLEY_CHECK(node != net.nodes().end(), "{} has no layer {}", layer.net, layer.name);
  const auto id = static_cast<graph::NodeId>(node - net.nodes().begin());

  const dnnl::engine engine(dnnl::engine::kind::cpu, 0);
  const Gemm gemm("");
  const Layout in = PlainLayout(net.node(node->inputs[0]).shape, kBatch);
  const Layout nhwc = in.WithInner(in.c);
  const Layout out = PlainLayout(node->shape, kBatch).WithInner(node->shape[0]);
  const double flops = 3.0 * static_cast<double>(kBatch * net.ForwardFlops(id));
  for (std::int64_t images = 1; images <= kBatch; images *= 2) {
    KernelTimer timer({net, id, nhwc, out, true}, gemm, engine, model.weights.data(),
                      [&](const KernelContext& context) {
                        return MakeConvLowered(context, images * out.pixels());
                      });
    const auto bytes = static_cast<double>(timer.needs().scratch_floats) * sizeof(float);
    std::vector<double> seconds;
    for (int repetition = 0; repetition < 5; ++repetition) {
      seconds.push_back(timer.Time(std::numeric_limits<double>::infinity()));
    }
    std::sort(seconds.begin(), seconds.end());
    fmt::print("{:<10} {:<20} {:>5} {:>7} {:>9.1f} {:>9.2f}\n", layer.net, layer.name, images,
               images * out.pixels(), flops / seconds[seconds.size() / 2] / 1e9, bytes / 1e6);
    std::fflush(stdout);  // it takes a while
  }
}

}  // namespace
}  // namespace motley::engine::native

int main() {
  using motley::engine::native::Layer;
  fmt::print("{:<10} {:<20} {:>5} {:>7} {:>9} {:>9}\n", "net", "layer", "b_p", "rows", "GFLOP/s",
             "MB");
  // On a lane's thread, where the libraries are set to one thread.
  motley::engine::native::LanePool pool(1);
  pool.Run(1, motley::engine::native::LanePool::Wanted::kAll, [](int) {
    for (const Layer& layer :
         {Layer{"lenet", {1, 28, 28}, "conv2"}, Layer{"cifar_quick", {3, 32, 32}, "conv2"},
          Layer{"resnet18", {3, 32, 32}, "layer3.0.conv1"},
          Layer{"caffenet", {3, 227, 227}, "conv3"}}) {
      motley::engine::native::Measure(layer);
    }
  });
}
