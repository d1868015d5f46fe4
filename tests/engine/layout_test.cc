#include "motley/engine/native/layout.h"

#include <gtest/gtest.h>

#include "motley/engine/native/kernels/kernels.h"

namespace motley::engine::native {
namespace {

TEST(LayoutTest, EveryLayoutIsRecognisedAgain) {
  for (const std::int64_t channels : {1, 3, 8, 13, 16, 20, 32}) {
    const Layout plain{.n = 2, .c = channels, .h = 5, .w = 3};
    for (const std::int64_t inner :
         {std::int64_t{1}, std::int64_t{8}, std::int64_t{16}, channels}) {
      EXPECT_EQ(InnerOf(ToDnnl(plain.WithInner(inner)), plain), inner) << channels;
    }
  }
}

// Sixteen channels are one whole block, and NHWC as well: the same bytes under two names, of which
// oneDNN has fast kernels for one only.
TEST(LayoutTest, AConvolutionOfOneBlockIsNotTakenForPlain) {
  const dnnl::engine engine(dnnl::engine::kind::cpu, 0);
  const auto inner = [&](int channels) {
    graph::GraphBuilder b("net", {channels, 8, 8});
    const graph::NodeId conv = b.Conv(
        "conv", b.input(),
        {.out_channels = channels, .kernel_h = 3, .kernel_w = 3, .pad = graph::Padding::Same(1)});
    const graph::NodeId logits = b.GlobalAvgPool("pool", conv);
    const graph::Graph graph = std::move(b).Build(logits).value();
    return FindConvLayouts(graph, conv, dnnl::algorithm::convolution_direct, engine).out_inner;
  };
  EXPECT_EQ(inner(16), inner(32));
}

}  // namespace
}  // namespace motley::engine::native
