#ifndef MOTLEY_ENGINE_TORCH_TORCH_DEVICE_H_
#define MOTLEY_ENGINE_TORCH_TORCH_DEVICE_H_

#include <memory>
#include <string>

#include "motley/base/status.h"
#include "motley/engine/device.h"
#include "motley/graph/graph.h"

namespace motley::engine::torch {

// LibTorch as a device: the graph as calls of its operators, the gradient by its autograd. It
// computes what the other devices compute, in single precision, on any GPU that LibTorch knows.
//
// `kind` is "torch:cpu" or "torch:cuda:N". Fails with kInvalidInput for any other, and with
// kUnavailable where this build has no LibTorch or the machine no such GPU.
//
// LibTorch has one number of threads for the whole process: two devices with different numbers
// work one after the other, but not at the same time.
//
// The gradient is announced as a whole, at the end.
base::Result<std::unique_ptr<Device>> MakeTorchDevice(std::shared_ptr<const graph::Graph> graph,
                                                      const DeviceOptions& options,
                                                      const std::string& kind);

}  // namespace motley::engine::torch

#endif  // MOTLEY_ENGINE_TORCH_TORCH_DEVICE_H_
