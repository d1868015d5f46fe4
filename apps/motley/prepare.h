#ifndef MOTLEY_APPS_MOTLEY_PREPARE_H_
#define MOTLEY_APPS_MOTLEY_PREPARE_H_

#include <filesystem>
#include <functional>
#include <map>
#include <string>

#include "apps/motley/console.h"
#include "apps/motley/job.h"
#include "motley/base/status.h"
#include "motley/data/dataset.h"
#include "motley/data/transform.h"
#include "motley/graph/graph.h"

namespace motley::app {

// What a checkpoint keeps of its job, readable: key -> value.
using JobFacts = std::map<std::string, std::string>;

// Everything that a job names, opened and checked against each other.
struct Prepared {
  data::DataPair data;
  data::Transform train_transform, test_transform;
  graph::Model model;
  std::string onnx_bytes;  // of model.onnx, for the run directory; empty for the zoo
  JobFacts facts;
  // A named dataset was not here and could not be fetched: `data` has its shape only, and the facts
  // about its content mean nothing.
  bool stand_in = false;
};

struct PrepareOptions {
  std::filesystem::path cache;  // of named datasets
  bool fetch = true;            // a missing named dataset; otherwise it is stood in for
  // A resumed job has its weights already; the file they once came from may be gone.
  bool load_weights = true;
  // The copy of model.onnx in the run directory of a resumed job, for when the original is gone.
  std::filesystem::path onnx_copy;
  std::function<void(const std::string&)> on_progress;
};

// Opens the data and builds the network for its shape and classes. Writes nothing but the cache.
base::Result<Prepared> Prepare(const ResolvedJob& resolved, const PrepareOptions& options);

// Refuses to go on with a checkpoint of another model, other data, another seed or batch, and names
// the key that differs.
base::Status CheckSameJob(const JobFacts& checkpoint, const ResolvedJob& resolved,
                          const JobFacts& now);

// The network that a checkpoint with these facts belongs to. `run` is the run directory.
base::Result<graph::Graph> RebuildGraph(const JobFacts& facts, const std::filesystem::path& run);

// $XDG_DATA_HOME/motley, or ~/.local/share/motley.
base::Result<std::filesystem::path> DataCache(const Environment& environment);

// Where this machine's kernel measurements are kept. Empty when the environment names no place:
// then they are made in each run.
std::filesystem::path KernelCacheFile(const Environment& environment);

// Where what is known of this machine's devices is kept. Empty: likewise.
std::filesystem::path ProbeCacheFile(const Environment& environment);

// "lenet", or the name of the ONNX file without its folder and ending.
std::string ModelName(const Job& job);

// "3x224x224" -> {3, 224, 224}.
base::Result<graph::Shape> ParseShape(const std::string& text);

}  // namespace motley::app

#endif  // MOTLEY_APPS_MOTLEY_PREPARE_H_
