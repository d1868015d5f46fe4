#ifndef MOTLEY_APPS_MOTLEY_RUN_DIR_H_
#define MOTLEY_APPS_MOTLEY_RUN_DIR_H_

#include <ctime>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "motley/base/status.h"

namespace motley::app {

// The files of a run directory.
struct RunFiles {
  std::filesystem::path folder;
  std::filesystem::path events() const { return folder / "events.jsonl"; }
  std::filesystem::path summary() const { return folder / "summary.json"; }
  std::filesystem::path checkpoints() const { return folder / "checkpoints"; }
  std::filesystem::path job() const { return folder / "job.toml"; }
  std::filesystem::path onnx() const { return folder / "model.onnx"; }
  std::filesystem::path cluster() const { return folder / "cluster"; }  // of `motley serve`
};

// A run to go on with.
struct ResumePoint {
  RunFiles files;
  std::filesystem::path checkpoint;
  std::vector<std::string> passed_over;  // why newer checkpoints or runs are not used
};

// What `--resume` means, with `--out`, both empty when not given: DIR must hold a checkpoint;
// "auto" takes the checkpoint of --out, or of the newest run below `runs`, if there is one. None:
// start afresh.
base::Result<std::optional<ResumePoint>> FindResumePoint(const std::string& resume,
                                                         const std::string& out,
                                                         const std::filesystem::path& runs);

// The run below `runs` that was written to last.
base::Result<std::filesystem::path> LatestRun(const std::filesystem::path& runs);

// runs/20260131-120000-lenet, or with a number behind it if that exists.
std::filesystem::path DefaultRunFolder(const std::filesystem::path& runs, std::time_t now,
                                       const std::string& model);

// Refuses a folder that already holds a run, or a file of ours that somebody else may have put
// there. With `restart` a run that never reached a checkpoint may be begun again.
base::Status CheckFree(const RunFiles& files, bool restart);

// Holds a run directory for this process; the kernel lets go of it when the process ends, however
// it ends.
class RunLock {
 public:
  // Creates the folder if needed. Fails when another process works in it.
  static base::Result<RunLock> Take(const RunFiles& files);
  RunLock(RunLock&& other) noexcept;
  RunLock(const RunLock&) = delete;
  RunLock& operator=(const RunLock&) = delete;
  RunLock& operator=(RunLock&&) = delete;
  ~RunLock();

 private:
  explicit RunLock(int descriptor) : descriptor_(descriptor) {}
  int descriptor_;
};

}  // namespace motley::app

#endif  // MOTLEY_APPS_MOTLEY_RUN_DIR_H_
