#ifndef MOTLEY_ENGINE_REFERENCE_REFERENCE_DEVICE_H_
#define MOTLEY_ENGINE_REFERENCE_REFERENCE_DEVICE_H_

#include <memory>

#include "motley/base/status.h"
#include "motley/engine/device.h"
#include "motley/graph/graph.h"

namespace motley::engine::reference {

// The obvious twin of every fast kernel: plain loops in double precision, one thread, straight from
// the definitions. It judges the fast engines in tests, and is far too slow for anything else.
std::unique_ptr<Device> MakeReferenceDevice(std::shared_ptr<const graph::Graph> graph,
                                            const DeviceOptions& options);

}  // namespace motley::engine::reference

#endif  // MOTLEY_ENGINE_REFERENCE_REFERENCE_DEVICE_H_
