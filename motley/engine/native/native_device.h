#ifndef MOTLEY_ENGINE_NATIVE_NATIVE_DEVICE_H_
#define MOTLEY_ENGINE_NATIVE_NATIVE_DEVICE_H_

#include <memory>

#include "motley/base/status.h"
#include "motley/engine/device.h"
#include "motley/graph/graph.h"

namespace motley::engine::native {

// This machine's CPU: one lane per core, each with its own part of the batch, its own activations
// and its own gradient; lanes meet only where batch norm needs the whole batch, and at the end.
// Lanes are summed in a fixed order, so a run is bit-identical for the same lanes and kernels.
base::Result<std::unique_ptr<Device>> MakeNativeDevice(std::shared_ptr<const graph::Graph> graph,
                                                       const DeviceOptions& options);

// How many cores this process may use.
int UsableCores();

// Single-precision GFLOP/s of the best plain GEMM on `threads` cores at once, measured for about
// `seconds`: the ceiling that `motley bench` compares with.
double MeasureGemmGflops(int threads, double seconds);

}  // namespace motley::engine::native

#endif  // MOTLEY_ENGINE_NATIVE_NATIVE_DEVICE_H_
