#include <unistd.h>

#include <functional>
#include <system_error>

#include "apps/motley/commands.h"
#include "apps/motley/prepare.h"
#include "apps/motley/run_dir.h"
#include "motley/base/file.h"
#include "motley/graph/onnx.h"
#include "motley/graph/safetensors.h"
#include "motley/run/checkpoint.h"

namespace motley::app {
namespace {

namespace fs = std::filesystem;
using base::InvalidInput;
using base::Result;
using base::Status;

// Under another name first, so that a failure leaves an older file as it was.
Status WriteBeside(const fs::path& file, const std::function<Status(const fs::path&)>& write) {
  std::error_code error;
  const fs::file_status there = fs::symlink_status(file, error);
  if (fs::exists(there) && !fs::is_regular_file(there)) {
    return InvalidInput("{}: is there already and is no regular file", file.string())
        .WithFix("give the name of a new file");
  }
  fs::path beside = file;
  beside += fmt::format(".partial-{}", ::getpid());
  Status status = write(beside);
  if (status.ok()) status = base::RenameSynced(beside, file);
  if (!status.ok()) {
    std::error_code ignored;
    fs::remove(beside, ignored);
  }
  return status;
}

struct Found {
  fs::path checkpoint;
  std::int64_t step = 0;
  graph::Model model;
};

Result<Found> LoadNewest(const RunFiles& files) {
  std::vector<std::string> passed_over;
  auto checkpoint = run::FindCheckpoint(files.checkpoints(), &passed_over);
  if (!checkpoint.ok()) {
    return InvalidInput("{}: there is no usable checkpoint in {}", files.folder.string(),
                        files.checkpoints().string())
        .WithFix("give a run directory that `motley train` wrote; its last lines name it");
  }
  for (const std::string& reason : passed_over) {
    fmt::print(stderr, "motley: warning: passed over: {}\n", reason);
  }
  MOTLEY_ASSIGN_OR_RETURN(const run::TrainState manifest, run::LoadManifest(*checkpoint));
  auto graph = RebuildGraph(manifest.job, files.folder);
  if (!graph.ok()) return std::move(graph).status().In(checkpoint->string());
  MOTLEY_ASSIGN_OR_RETURN(run::TrainState state, run::LoadCheckpoint(*checkpoint, *graph));
  return Found{
      *checkpoint, state.step,
      graph::Model{std::move(graph).value(), std::move(state.weights), std::move(state.buffers)}};
}

}  // namespace

Result<int> Export(const ExportArgs& args) {
  if (args.onnx.empty() && args.safetensors.empty()) {
    return InvalidInput("export: no file to write is named")
        .WithFix("add --onnx FILE, --safetensors FILE or both");
  }
  if (fs::path(args.onnx).lexically_normal() == fs::path(args.safetensors).lexically_normal()) {
    return InvalidInput("export: --onnx and --safetensors name the same file, {}", args.onnx)
        .WithFix("give each a name of its own");
  }
  const RunFiles files{args.run};
  MOTLEY_ASSIGN_OR_RETURN(const Found found, LoadNewest(files));
  nlohmann::ordered_json json = {{"run", args.run},
                                 {"checkpoint", found.checkpoint.string()},
                                 {"step", found.step},
                                 {"parameters", found.model.graph.parameter_count()}};
  if (!args.onnx.empty()) {
    MOTLEY_RETURN_IF_ERROR(WriteBeside(
        args.onnx, [&](const fs::path& file) { return graph::WriteOnnx(file, found.model); }));
    json["onnx"] = args.onnx;
  }
  if (!args.safetensors.empty()) {
    MOTLEY_RETURN_IF_ERROR(WriteBeside(args.safetensors, [&](const fs::path& file) {
      return graph::SaveWeights(file, found.model);
    }));
    json["safetensors"] = args.safetensors;
  }
  if (args.json) {
    fmt::print("{}\n", Dump(json));
    return kExitDone;
  }
  for (const std::string& file : {args.onnx, args.safetensors}) {
    if (!file.empty()) fmt::print("wrote {} (step {} of {})\n", file, found.step, args.run);
  }
  return kExitDone;
}

}  // namespace motley::app
