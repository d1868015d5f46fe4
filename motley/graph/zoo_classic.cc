// The nets before batch norm: Caffe's lenet, cifar_quick and caffenet, torchvision's alexnet. Names
// of layers are the authors'. Caffe rounds the size of a pooled image up.
#include <utility>

#include "motley/graph/zoo_nets.h"

namespace motley::graph::zoo {
namespace {

constexpr bool kCeil = true;

PoolAttrs Pool2x2() { return {.ceil_mode = kCeil}; }

}  // namespace

base::Result<Graph> Lenet(const NetSpec& spec) {
  GraphBuilder net(spec.name, spec.input);
  NodeId x = net.Conv("conv1", net.input(), Conv({.out = 20, .kernel = 5, .bias = true}));
  x = net.MaxPool("pool1", x, Pool2x2());
  x = net.Conv("conv2", x, Conv({.out = 50, .kernel = 5, .bias = true}));
  x = net.MaxPool("pool2", x, Pool2x2());
  x = net.Flatten("flatten", x);
  x = net.FullyConnected("ip1", x, {.out_features = 500});
  x = net.Relu("relu1", x);
  x = net.FullyConnected("ip2", x, {.out_features = spec.classes});
  return std::move(net).Build(x);
}

base::Result<Graph> CifarQuick(const NetSpec& spec) {
  GraphBuilder net(spec.name, spec.input);
  const Square conv5x5{.out = 32, .kernel = 5, .pad = 2, .bias = true};
  NodeId x = net.Conv("conv1", net.input(), Conv(conv5x5));
  x = net.MaxPool("pool1", x, Pool3x3Stride2(0, kCeil));
  x = net.Relu("relu1", x);
  x = net.Conv("conv2", x, Conv(conv5x5));
  x = net.Relu("relu2", x);
  x = net.AvgPool("pool2", x, Pool3x3Stride2(0, kCeil));
  x = net.Conv("conv3", x, Conv({.out = 64, .kernel = 5, .pad = 2, .bias = true}));
  x = net.Relu("relu3", x);
  x = net.AvgPool("pool3", x, Pool3x3Stride2(0, kCeil));
  x = net.Flatten("flatten", x);
  x = net.FullyConnected("ip1", x, {.out_features = 64});
  x = net.FullyConnected("ip2", x, {.out_features = spec.classes});
  return std::move(net).Build(x);
}

base::Result<Graph> Caffenet(const NetSpec& spec) {
  GraphBuilder net(spec.name, spec.input);
  NodeId x =
      net.Conv("conv1", net.input(), Conv({.out = 96, .kernel = 11, .stride = 4, .bias = true}));
  x = net.Relu("relu1", x);
  x = net.MaxPool("pool1", x, Pool3x3Stride2(0, kCeil));
  x = net.Lrn("norm1", x, {});
  x = net.Conv("conv2", x, Conv({.out = 256, .kernel = 5, .pad = 2, .groups = 2, .bias = true}));
  x = net.Relu("relu2", x);
  x = net.MaxPool("pool2", x, Pool3x3Stride2(0, kCeil));
  x = net.Lrn("norm2", x, {});
  x = net.Conv("conv3", x, Conv({.out = 384, .kernel = 3, .pad = 1, .bias = true}));
  x = net.Relu("relu3", x);
  x = net.Conv("conv4", x, Conv({.out = 384, .kernel = 3, .pad = 1, .groups = 2, .bias = true}));
  x = net.Relu("relu4", x);
  x = net.Conv("conv5", x, Conv({.out = 256, .kernel = 3, .pad = 1, .groups = 2, .bias = true}));
  x = net.Relu("relu5", x);
  x = net.MaxPool("pool5", x, Pool3x3Stride2(0, kCeil));
  x = net.Flatten("flatten", x);
  x = net.FullyConnected("fc6", x, {.out_features = 4096});
  x = net.Relu("relu6", x);
  x = net.Dropout("drop6", x, {});
  x = net.FullyConnected("fc7", x, {.out_features = 4096});
  x = net.Relu("relu7", x);
  x = net.Dropout("drop7", x, {});
  x = net.FullyConnected("fc8", x, {.out_features = spec.classes});
  return std::move(net).Build(x);
}

// torchvision pools the features to 6x6 before the classifier, which changes nothing at its own
// input size; here the classifier takes what the features give.
base::Result<Graph> Alexnet(const NetSpec& spec) {
  GraphBuilder net(spec.name, spec.input);
  NodeId x = net.Conv("features.0", net.input(),
                      Conv({.out = 64, .kernel = 11, .stride = 4, .pad = 2, .bias = true}));
  x = net.Relu("features.1", x);
  x = net.MaxPool("features.2", x, Pool3x3Stride2(0, false));
  x = net.Conv("features.3", x, Conv({.out = 192, .kernel = 5, .pad = 2, .bias = true}));
  x = net.Relu("features.4", x);
  x = net.MaxPool("features.5", x, Pool3x3Stride2(0, false));
  x = net.Conv("features.6", x, Conv({.out = 384, .kernel = 3, .pad = 1, .bias = true}));
  x = net.Relu("features.7", x);
  x = net.Conv("features.8", x, Conv({.out = 256, .kernel = 3, .pad = 1, .bias = true}));
  x = net.Relu("features.9", x);
  x = net.Conv("features.10", x, Conv({.out = 256, .kernel = 3, .pad = 1, .bias = true}));
  x = net.Relu("features.11", x);
  x = net.MaxPool("features.12", x, Pool3x3Stride2(0, false));
  x = net.Flatten("flatten", x);
  x = net.Dropout("classifier.0", x, {});
  x = net.FullyConnected("classifier.1", x, {.out_features = 4096});
  x = net.Relu("classifier.2", x);
  x = net.Dropout("classifier.3", x, {});
  x = net.FullyConnected("classifier.4", x, {.out_features = 4096});
  x = net.Relu("classifier.5", x);
  x = net.FullyConnected("classifier.6", x, {.out_features = spec.classes});
  return std::move(net).Build(x);
}

}  // namespace motley::graph::zoo
