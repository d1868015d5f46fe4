#include <gtest/gtest.h>

#include <memory>

#include "motley/engine/torch/kind.h"
#include "motley/engine/torch/torch_device.h"
#include "motley/graph/zoo.h"

namespace motley::engine::torch {
namespace {

TEST(TorchKindTest, ReadsTheCpuAndTheNumberOfAGpu) {
  ASSERT_TRUE(ParseKind("torch:cpu").ok());
  EXPECT_FALSE(ParseKind("torch:cpu")->cuda.has_value());
  ASSERT_TRUE(ParseKind("torch:cuda:12").ok());
  EXPECT_EQ(ParseKind("torch:cuda:12")->cuda, 12);
}

TEST(TorchKindTest, AWrongKindIsRefusedWithARightOne) {
  const auto graph =
      std::make_shared<const graph::Graph>(graph::BuildZoo("lenet", {1, 28, 28}, 10).value());
  for (const char* kind :
       {"", "torch", "native", "torch:", "torch:gpu", "torch:cpu:0", "TORCH:CPU", "torch:cuda",
        "torch:cuda:", "torch:cuda:x", "torch:cuda:-1", "torch:cuda:+1", "torch:cuda: 1",
        "torch:cuda:0x", "torch:cuda:128", "torch:cuda:99999999999"}) {
    SCOPED_TRACE(kind);
    const auto device = MakeTorchDevice(graph, {}, kind);
    ASSERT_FALSE(device.ok());
    EXPECT_EQ(device.status().code(), base::Code::kInvalidInput);
    EXPECT_NE(device.status().fix().find("torch:cuda:0"), std::string::npos);
    // One line that names what was given.
    EXPECT_NE(device.status().message().find(kind), std::string::npos);
    EXPECT_EQ(device.status().message().find('\n'), std::string::npos);
  }
}

#ifndef MOTLEY_HAVE_TORCH
TEST(TorchKindTest, WithoutLibTorchTheMessageSaysHowToGetIt) {
  const auto graph =
      std::make_shared<const graph::Graph>(graph::BuildZoo("lenet", {1, 28, 28}, 10).value());
  const auto device = MakeTorchDevice(graph, {}, "torch:cpu");
  ASSERT_FALSE(device.ok());
  EXPECT_EQ(device.status().code(), base::Code::kUnavailable);
  EXPECT_NE(device.status().fix().find("libtorch-dev"), std::string::npos);
}
#endif

}  // namespace
}  // namespace motley::engine::torch
