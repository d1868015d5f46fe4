#ifndef MOTLEY_RUN_CHECKPOINT_H_
#define MOTLEY_RUN_CHECKPOINT_H_

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "motley/base/status.h"
#include "motley/data/ledger.h"
#include "motley/graph/graph.h"
#include "motley/run/pools.h"

namespace motley::run {

// Mean loss and accuracy over a whole dataset.
struct Evaluation {
  double loss = 0.0;
  double accuracy = 0.0;
  std::int64_t samples = 0;  // 0: there was none yet
};

// Everything that a job needs to go on as if it had never stopped.
//
// A state whose `committed` ranges cover the whole epoch stands just before that epoch's
// evaluation; after the evaluation the epoch counts up and the ranges are empty again.
struct TrainState {
  std::int64_t step = 0;                       // steps committed
  std::int64_t samples = 0;                    // samples committed, all epochs
  double seconds = 0.0;                        // time so far, evaluations and checkpoints included
  double compute_seconds = 0.0;                // of it, in training steps of the device
  double wait_seconds = 0.0;                   // of it, waiting for data
  std::uint64_t epoch = 0;                     // counts from 0: epochs completed and evaluated
  std::int64_t epoch_size = 0;                 // public and private samples together
  std::vector<PrivatePool> private_pools;      // the last ones of them, in order
  std::vector<data::Ledger::Range> committed;  // of this epoch
  double epoch_loss_sum = 0.0;                 // of the committed samples of this epoch
  std::int64_t epoch_correct = 0;
  Evaluation test;  // the last one
  std::vector<float> weights, velocity, buffers;
  std::map<std::string, std::string> kernel_choices;
  // What the job was: checked against the job that resumes (model, data, seed, …), and enough to
  // export the net. Key -> value, readable.
  std::map<std::string, std::string> job;
};

// A checkpoint is a folder ckpt-<step>/ with manifest.json (readable) and state.safetensors (the
// parameters and buffers under their names, velocities under "velocity.<name>"), written under a
// temporary name, synced and renamed; `latest` is a symbolic link, replaced by rename. A kill at
// any instant leaves the previous one usable. One process at a time may write to `folder`, which is
// created if it is missing.
//
// Saves, then removes all but the newest `keep` and leftovers of interrupted saves. A checkpoint of
// the same step is replaced. Those of later steps, which a resume went behind, stay until this run
// has overtaken them: the user may still want them.
base::Status SaveCheckpoint(const std::filesystem::path& folder, const graph::Graph& graph,
                            const TrainState& state, int keep);

// The newest usable checkpoint folder below `folder`: one that was finished after `latest` was made
// (a kill came in between), the target of `latest`, or else by number. Usable means that the
// manifest can be read and that the state has the size and the SHA-256 it names, so the whole file
// is read. `passed_over`, if given, gets the reason for each better candidate that is not usable.
// kNotFound when there is none, kInvalidInput when there are some but none is usable.
base::Result<std::filesystem::path> FindCheckpoint(const std::filesystem::path& folder,
                                                   std::vector<std::string>* passed_over = nullptr);

// The manifest alone: everything of TrainState but weights, velocity and buffers.
base::Result<TrainState> LoadManifest(const std::filesystem::path& checkpoint);

// The whole state. Refuses, with the file and the place, what does not fit the graph.
base::Result<TrainState> LoadCheckpoint(const std::filesystem::path& checkpoint,
                                        const graph::Graph& graph);

}  // namespace motley::run

#endif  // MOTLEY_RUN_CHECKPOINT_H_
