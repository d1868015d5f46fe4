#include "apps/motley/run_dir.h"

#include <fcntl.h>
#include <fmt/chrono.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <system_error>
#include <utility>

#include "motley/run/checkpoint.h"

namespace motley::app {
namespace {

namespace fs = std::filesystem;
using base::InvalidInput;
using base::Result;
using base::Status;

Result<std::optional<ResumePoint>> PointIn(const RunFiles& files) {
  ResumePoint point{.files = files, .checkpoint = {}, .passed_over = {}};
  auto checkpoint = run::FindCheckpoint(files.checkpoints(), &point.passed_over);
  if (checkpoint.ok()) {
    point.checkpoint = std::move(checkpoint).value();
    return std::optional(std::move(point));
  }
  if (checkpoint.status().code() == base::Code::kNotFound) return std::optional<ResumePoint>();
  return std::move(checkpoint).status();
}

// The run below `runs` that was written to last and has a checkpoint.
std::optional<ResumePoint> NewestRun(const fs::path& runs) {
  std::vector<std::pair<fs::file_time_type, fs::path>> by_time;
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator(runs, error)) {
    const auto time = fs::last_write_time(RunFiles{entry.path()}.checkpoints(), error);
    if (!error) by_time.emplace_back(time, entry.path());
  }
  std::sort(by_time.rbegin(), by_time.rend());
  std::vector<std::string> passed_over;
  for (const auto& [time, folder] : by_time) {
    auto point = PointIn({folder});
    if (!point.ok()) passed_over.push_back(point.status().message());
    if (!point.ok() || !*point) continue;
    auto& reasons = (*point)->passed_over;
    reasons.insert(reasons.begin(), passed_over.begin(), passed_over.end());
    return std::move(point).value();
  }
  return std::nullopt;
}

}  // namespace

Result<fs::path> LatestRun(const fs::path& runs) {
  std::optional<std::pair<fs::file_time_type, fs::path>> latest;
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator(runs, error)) {
    const auto time = fs::last_write_time(RunFiles{entry.path()}.events(), error);
    if (!error && (!latest || time > latest->first)) latest.emplace(time, entry.path());
  }
  if (latest) return latest->second;
  return base::NotFound("there is no run below {}/", runs.string())
      .WithFix("give the run directory");
}

Result<std::optional<ResumePoint>> FindResumePoint(const std::string& resume,
                                                   const std::string& out, const fs::path& runs) {
  if (resume.empty()) return std::optional<ResumePoint>();
  if (resume == "auto") {
    if (out.empty()) return NewestRun(runs);
    return PointIn({out});
  }
  if (!out.empty() && fs::path(out).lexically_normal() != fs::path(resume).lexically_normal()) {
    return InvalidInput("--resume {} and --out {} name two run directories", resume, out)
        .WithFix("leave --out away: a resumed run goes on in its own directory");
  }
  MOTLEY_ASSIGN_OR_RETURN(auto point, PointIn({resume}));
  if (point) return point;
  return InvalidInput("--resume {}: there is no usable checkpoint in {}", resume,
                      RunFiles{resume}.checkpoints().string())
      .WithFix("give a run directory that `motley train` wrote, or start without --resume");
}

fs::path DefaultRunFolder(const fs::path& runs, std::time_t now, const std::string& model) {
  const fs::path first = runs / fmt::format("{:%Y%m%d-%H%M%S}-{}", fmt::localtime(now), model);
  fs::path folder = first;
  for (int number = 2; fs::exists(folder); ++number) {
    folder = fs::path(fmt::format("{}-{}", first.string(), number));
  }
  return folder;
}

Status CheckFree(const RunFiles& files, bool restart) {
  // events.jsonl is the first file of a run, so a folder without it holds somebody else's files.
  const bool holds_run = fs::exists(files.events());
  if (holds_run && restart) return {};
  const std::string folder = files.folder.string();
  if (holds_run) {
    return InvalidInput("--out {}: this folder already holds a run", folder)
        .WithFix(fmt::format("go on with it by --resume {}, or choose another --out", folder));
  }
  for (const fs::path& file : {files.summary(), files.checkpoints(), files.job(), files.onnx()}) {
    if (!fs::exists(file)) continue;
    return InvalidInput("--out {}: the run would overwrite {}", folder, file.string())
        .WithFix("choose another --out, for example one that does not exist yet");
  }
  return {};
}

Result<RunLock> RunLock::Take(const RunFiles& files) {
  std::error_code error;
  fs::create_directories(files.folder, error);
  const int descriptor =
      error ? -1 : ::open(files.folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (descriptor < 0) {
    return InvalidInput("{}: cannot make this folder: {}", files.folder.string(),
                        error ? error.message() : std::strerror(errno))
        .WithFix("choose a folder that you can write to with --out");
  }
  RunLock lock(descriptor);
  if (::flock(descriptor, LOCK_EX | LOCK_NB) != 0) {
    return InvalidInput("{}: another motley process is working in this folder",
                        files.folder.string())
        .WithFix("wait for it or stop it, or choose another --out");
  }
  if (::access(files.folder.c_str(), W_OK) != 0) {
    return InvalidInput("{}: no permission to write here", files.folder.string())
        .WithFix("choose a folder that you can write to with --out");
  }
  return lock;
}

RunLock::RunLock(RunLock&& other) noexcept : descriptor_(std::exchange(other.descriptor_, -1)) {}

RunLock::~RunLock() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

}  // namespace motley::app
