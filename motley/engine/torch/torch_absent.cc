// Stands in for torch_device.cc in a build without LibTorch.
#include "motley/engine/torch/kind.h"
#include "motley/engine/torch/torch_device.h"

namespace motley::engine::torch {

base::Result<std::unique_ptr<Device>> MakeTorchDevice(std::shared_ptr<const graph::Graph>,
                                                      const DeviceOptions&,
                                                      const std::string& kind) {
  MOTLEY_RETURN_IF_ERROR(ParseKind(kind).status());
  return base::Unavailable("{}: this build of Motley has no LibTorch", kind)
      .WithFix("install libtorch-dev and build again, or use kind = \"native\"");
}

}  // namespace motley::engine::torch
