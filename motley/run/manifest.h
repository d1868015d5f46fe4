#ifndef MOTLEY_RUN_MANIFEST_H_
#define MOTLEY_RUN_MANIFEST_H_

#include <cstdint>
#include <string>
#include <string_view>

#include "motley/base/status.h"
#include "motley/run/checkpoint.h"

namespace motley::run {

// The version of manifest.json. Raised when a reader of the old form would be misled.
inline constexpr int kManifestVersion = 1;

// manifest.json: everything of a checkpoint that a person may want to read.
struct Manifest {
  TrainState state;              // without weights, velocity and buffers
  std::int64_t state_bytes = 0;  // the size of state.safetensors, so that a torn one is seen
};

std::string ManifestText(const TrainState& state, std::int64_t state_bytes);

// Refuses, with `origin` and the key, what is missing, of another type or out of range: the file
// may have been torn or edited. Unknown keys are passed over.
base::Result<Manifest> ParseManifest(std::string_view text, const std::string& origin);

}  // namespace motley::run

#endif  // MOTLEY_RUN_MANIFEST_H_
