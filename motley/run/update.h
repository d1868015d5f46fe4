#ifndef MOTLEY_RUN_UPDATE_H_
#define MOTLEY_RUN_UPDATE_H_

#include <cstdint>
#include <span>
#include <string>

#include "motley/graph/graph.h"
#include "motley/optim/sgd.h"

namespace motley::run {

// Averages the statistics of a step into the running ones: `sums` are sums over `samples` samples.
// Both spans cover all buffers of the graph. Returns the name of a statistic that is not finite, in
// quotes; empty when all are.
std::string UpdateBuffers(const graph::Graph& graph, std::span<const float> sums,
                          std::int64_t samples, std::span<float> buffers);

// For a step that was to be over `planned` samples and is over fewer: the learning rate follows the
// batch in proportion.
optim::SgdOptions ForFewer(optim::SgdOptions sgd, std::int64_t samples, std::int64_t planned);

bool AllFinite(std::span<const float> values);

}  // namespace motley::run

#endif  // MOTLEY_RUN_UPDATE_H_
