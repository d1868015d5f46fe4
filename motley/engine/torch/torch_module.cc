// The way into the module that torch_loader.cc opens.
#include "motley/engine/torch/torch_device.h"
#include "motley/engine/torch/torch_loader.h"

extern "C" __attribute__((visibility("default"))) void MotleyMakeTorchDevice(
    const std::shared_ptr<const motley::graph::Graph>* graph,
    const motley::engine::DeviceOptions* options, const std::string* kind,
    motley::engine::torch::MadeDevice* made) {
  *made = motley::engine::torch::MakeTorchDevice(*graph, *options, *kind);
}
