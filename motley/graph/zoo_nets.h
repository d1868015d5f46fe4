#ifndef MOTLEY_GRAPH_ZOO_NETS_H_
#define MOTLEY_GRAPH_ZOO_NETS_H_

#include <cstdint>
#include <string>

#include "motley/base/status.h"
#include "motley/graph/graph.h"

// Inside of the zoo: one function per network. Use zoo.h.
namespace motley::graph::zoo {

// What a network of the zoo is built for; checked by BuildZoo.
struct NetSpec {
  std::string name;
  Shape input;
  int classes = 0;
};

// zoo_classic.cc
base::Result<Graph> Lenet(const NetSpec& spec);
base::Result<Graph> CifarQuick(const NetSpec& spec);
base::Result<Graph> Caffenet(const NetSpec& spec);
base::Result<Graph> Alexnet(const NetSpec& spec);
// zoo_residual.cc
base::Result<Graph> Resnet18(const NetSpec& spec);
base::Result<Graph> Resnet18Cifar(const NetSpec& spec);
base::Result<Graph> Resnet50(const NetSpec& spec);
// zoo_mobile.cc
base::Result<Graph> MobilenetV2(const NetSpec& spec);
base::Result<Graph> Squeezenet(const NetSpec& spec);
base::Result<Graph> ShufflenetV2(const NetSpec& spec);
// zoo_inception.cc
base::Result<Graph> InceptionV3(const NetSpec& spec);
// zoo_nasnet.cc
base::Result<Graph> NasnetMobile(const NetSpec& spec);

// A convolution with a square kernel, as most nets use it. Without bias unless asked: most are
// followed by batch norm.
struct Square {
  int out = 0;
  int kernel = 1;
  int stride = 1;
  int pad = 0;
  int groups = 1;
  bool bias = false;
};

inline ConvAttrs Conv(const Square& square) {
  return {.out_channels = square.out,
          .kernel_h = square.kernel,
          .kernel_w = square.kernel,
          .stride_h = square.stride,
          .stride_w = square.stride,
          .pad = Padding::Same(square.pad),
          .groups = square.groups,
          .bias = square.bias};
}

// 3x3 pooling with stride 2, the most common one; the nets differ in padding and rounding.
inline PoolAttrs Pool3x3Stride2(int pad, bool ceil_mode) {
  return {.kernel_h = 3,
          .kernel_w = 3,
          .stride_h = 2,
          .stride_w = 2,
          .pad = Padding::Same(pad),
          .ceil_mode = ceil_mode};
}

}  // namespace motley::graph::zoo

#endif  // MOTLEY_GRAPH_ZOO_NETS_H_
