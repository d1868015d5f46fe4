#ifndef MOTLEY_GRAPH_SAFETENSORS_H_
#define MOTLEY_GRAPH_SAFETENSORS_H_

#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "motley/base/status.h"
#include "motley/graph/graph.h"

namespace motley::graph {

// One named float array to be written.
struct NamedArray {
  std::string name;
  Shape shape;
  std::span<const float> values;
};

// One named float array that was read.
struct StoredArray {
  Shape shape;
  std::vector<float> values;
};

// Writes F32 arrays in the safetensors format (8-byte header length, JSON header, data), synced to
// the disk. `metadata` goes under "__metadata__".
base::Status WriteSafetensors(const std::filesystem::path& file, std::span<const NamedArray> arrays,
                              const std::map<std::string, std::string>& metadata = {});

// Parses F32 arrays. Refuses, with the place, anything that the bytes do not back: header lengths,
// overlapping or wrong offsets, shapes whose product overflows, other types. `origin` names the
// file in messages.
base::Result<std::map<std::string, StoredArray>> ParseSafetensors(std::string_view bytes,
                                                                  const std::string& origin);

// A model's parameters and buffers under their names.
base::Status SaveWeights(const std::filesystem::path& file, const Model& model);

// Fills model.weights and model.buffers by name. Every parameter and buffer of the graph must be
// there with its shape; arrays that the graph does not know are refused, except torch's
// num_batches_tracked.
base::Status LoadWeights(const std::filesystem::path& file, Model& model);

}  // namespace motley::graph

#endif  // MOTLEY_GRAPH_SAFETENSORS_H_
