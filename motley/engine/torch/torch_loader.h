#ifndef MOTLEY_ENGINE_TORCH_TORCH_LOADER_H_
#define MOTLEY_ENGINE_TORCH_TORCH_LOADER_H_

#include <memory>
#include <string>

#include "motley/base/status.h"
#include "motley/engine/device.h"
#include "motley/graph/graph.h"

namespace motley::engine::torch {

using MadeDevice = base::Result<std::unique_ptr<Device>>;

// MakeTorchDevice of torch_device.h, without being linked with LibTorch: opens the module
// motley_torch.so, which lies beside the program or in ../lib/motley, the first time. Fails with
// kUnavailable where it is not there. The program must export its symbols.
MadeDevice LoadTorchDevice(const std::shared_ptr<const graph::Graph>& graph,
                           const DeviceOptions& options, const std::string& kind);

}  // namespace motley::engine::torch

#endif  // MOTLEY_ENGINE_TORCH_TORCH_LOADER_H_
