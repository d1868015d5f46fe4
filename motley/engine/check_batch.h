#ifndef MOTLEY_ENGINE_CHECK_BATCH_H_
#define MOTLEY_ENGINE_CHECK_BATCH_H_

#include <span>

#include "motley/base/check.h"
#include "motley/base/status.h"
#include "motley/data/batch.h"
#include "motley/graph/graph.h"

namespace motley::engine {

// What a device looks at before it computes. A caller that hands over arrays of another size is
// broken; a label that the net does not have is the data's fault.
inline base::Status CheckBatch(const graph::Graph& graph, const data::Batch* batch,
                               std::span<const float> weights) {
  MOTLEY_CHECK(batch != nullptr, "a step needs a batch");
  MOTLEY_CHECK(std::ssize(weights) == graph.parameter_count(), "{} weights for a net with {}",
               weights.size(), graph.parameter_count());
  const std::int64_t pixels = graph::Count(graph.input_shape());
  MOTLEY_CHECK(std::ssize(batch->images) == batch->size() * pixels,
               "{} floats for {} samples of {}", batch->images.size(), batch->size(),
               graph::ToString(graph.input_shape()));
  MOTLEY_CHECK(batch->ids.size() == batch->labels.size(), "every sample has an id");
  if (graph.is_body()) return {};  // labels are the head's business
  for (std::size_t i = 0; i < batch->labels.size(); ++i) {
    if (batch->labels[i] >= 0 && batch->labels[i] < graph.num_classes()) continue;
    return base::InvalidInput("sample {} has label {}, but the net has {} classes", batch->ids[i],
                              batch->labels[i], graph.num_classes());
  }
  return {};
}

}  // namespace motley::engine

#endif  // MOTLEY_ENGINE_CHECK_BATCH_H_
