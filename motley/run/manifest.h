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

// What state.safetensors must be, so that a torn or damaged one is seen.
struct StateFile {
  std::int64_t bytes = 0;
  std::string sha256;
};

// manifest.json: everything of a checkpoint that a person may want to read.
struct Manifest {
  TrainState state;  // without weights, velocity and buffers
  StateFile file;
};

std::string ManifestText(const TrainState& state, const StateFile& file);

// Refuses, with `origin` and the key, what is missing, of another type or out of range: the file
// may have been torn or edited. Unknown keys are passed over.
base::Result<Manifest> ParseManifest(std::string_view text, const std::string& origin);

}  // namespace motley::run

#endif  // MOTLEY_RUN_MANIFEST_H_
