#include "motley/run/checkpoint.h"

#include <fcntl.h>
#include <stdio.h>  // renameat2
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <limits>
#include <optional>
#include <span>
#include <string_view>
#include <system_error>
#include <utility>

#include "motley/base/file.h"
#include "motley/graph/safetensors.h"
#include "motley/run/manifest.h"

namespace motley::run {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kPrefix = "ckpt-";
constexpr std::string_view kTemporaryPrefix = ".tmp-";  // never worth anything
constexpr std::string_view kAsidePrefix = ".old-";      // see Publish
constexpr const char* kManifestFile = "manifest.json";
constexpr const char* kStateFile = "state.safetensors";
constexpr const char* kLatest = "latest";
constexpr const char* kDamaged = "resume from another checkpoint; this one is damaged";
constexpr std::uint64_t kMaxManifestBytes = std::uint64_t{4} << 20;
constexpr std::uint64_t kMaxStateHeaderBytes = std::uint64_t{64} << 20;

base::Status Failed(const fs::path& path, std::string_view what, const std::error_code& error) {
  return base::FileError(path, what, error.value());
}

std::error_code LastError() { return {errno, std::generic_category()}; }

// The step of "ckpt-<step>", after `prefix`; none for any other name.
std::optional<std::int64_t> StepOf(std::string_view name, std::string_view prefix) {
  if (!name.starts_with(prefix)) return std::nullopt;
  name.remove_prefix(prefix.size());
  std::int64_t step = 0;
  const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), step);
  if (error != std::errc() || end != name.data() + name.size() || step < 0) return std::nullopt;
  return step;
}

base::Result<std::vector<std::string>> NamesIn(const fs::path& folder) {
  std::vector<std::string> names;
  std::error_code error;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end;
       entry.increment(error)) {
    names.push_back(entry->path().filename().string());
  }
  if (error) return Failed(folder, "list", error);
  return names;
}

// The names "<prefix><step>" with step <= last, newest first.
std::vector<std::string> NewestFirst(const std::vector<std::string>& names,
                                     const std::string& prefix, std::int64_t last) {
  std::vector<std::int64_t> steps;
  for (const std::string& name : names) {
    const auto step = StepOf(name, prefix);
    if (step && *step <= last) steps.push_back(*step);
  }
  std::sort(steps.rbegin(), steps.rend());
  std::vector<std::string> sorted;
  for (const std::int64_t step : steps) sorted.push_back(fmt::format("{}{}", prefix, step));
  return sorted;
}

// Calls visit(name, shape, values) for every array of the state, in the order of the file.
template <typename State, typename Visit>
base::Status ForEachArray(const graph::Graph& graph, State& state, Visit visit) {
  const auto part = [](auto& flat, const graph::Tensor& tensor) {
    return std::span(flat).subspan(static_cast<std::size_t>(tensor.offset),
                                   static_cast<std::size_t>(tensor.size));
  };
  for (const graph::Tensor& tensor : graph.parameters()) {
    MOTLEY_RETURN_IF_ERROR(visit(tensor.name, tensor.shape, part(state.weights, tensor)));
  }
  for (const graph::Tensor& tensor : graph.buffers()) {
    MOTLEY_RETURN_IF_ERROR(visit(tensor.name, tensor.shape, part(state.buffers, tensor)));
  }
  for (const graph::Tensor& tensor : graph.parameters()) {
    MOTLEY_RETURN_IF_ERROR(
        visit("velocity." + tensor.name, tensor.shape, part(state.velocity, tensor)));
  }
  return {};
}

base::Status WriteInto(const fs::path& folder, const graph::Graph& graph, const TrainState& state) {
  std::vector<graph::NamedArray> arrays;
  MOTLEY_RETURN_IF_ERROR(ForEachArray(
      graph, state,
      [&arrays](std::string name, const graph::Shape& shape, std::span<const float> values) {
        arrays.push_back({std::move(name), shape, values});
        return base::Status();
      }));
  MOTLEY_RETURN_IF_ERROR(graph::WriteSafetensors(folder / kStateFile, arrays));
  StateFile file;
  std::error_code error;
  file.bytes = static_cast<std::int64_t>(fs::file_size(folder / kStateFile, error));
  if (error) return Failed(folder / kStateFile, "read the size", error);
  MOTLEY_ASSIGN_OR_RETURN(file.sha256, base::Sha256OfFile(folder / kStateFile));
  // Syncs the folder as well, with the state's entry in it.
  return base::ReplaceFile(folder / kManifestFile, ManifestText(state, file));
}

// Gives the finished folder its name. Where that is taken (a resume came to the same step again, or
// the epoch's evaluation was added) the two are exchanged in one system call. File systems without
// it (NFS) need two renames; in between, the old folder is found under its name set aside.
base::Status Publish(const fs::path& temporary, const fs::path& name) {
  std::error_code error;
  if (!fs::exists(fs::symlink_status(name, error))) return base::RenameSynced(temporary, name);
  if (::renameat2(AT_FDCWD, temporary.c_str(), AT_FDCWD, name.c_str(), RENAME_EXCHANGE) == 0) {
    fs::remove_all(temporary, error);
    return error ? Failed(temporary, "remove", error) : base::Status();
  }
  if (errno != EINVAL && errno != ENOSYS && errno != EOPNOTSUPP) {
    return Failed(name, "replace", LastError());
  }
  const fs::path aside =
      name.parent_path() / (std::string(kAsidePrefix) + name.filename().string());
  fs::remove_all(aside, error);
  MOTLEY_RETURN_IF_ERROR(base::RenameSynced(name, aside));
  return base::RenameSynced(temporary, name);
}

base::Status PointLatestTo(const fs::path& folder, const std::string& name) {
  const fs::path link = folder / fmt::format("{}latest-{}", kTemporaryPrefix, ::getpid());
  std::error_code error;
  fs::remove(link, error);
  fs::create_symlink(name, link, error);
  if (error) return Failed(link, "create the link", error);
  return base::RenameSynced(link, folder / kLatest);
}

base::Status Prune(const fs::path& folder, std::int64_t step, int keep) {
  MOTLEY_ASSIGN_OR_RETURN(const auto names, NamesIn(folder));
  std::vector<std::string> unwanted = NewestFirst(names, std::string(kPrefix), step);
  const auto kept = std::min<std::size_t>(unwanted.size(), static_cast<std::size_t>(keep));
  unwanted.erase(unwanted.begin(), unwanted.begin() + static_cast<std::ptrdiff_t>(kept));
  for (const std::string& name : names) {
    if (name.starts_with(kTemporaryPrefix) || name.starts_with(kAsidePrefix)) {
      unwanted.push_back(name);
    }
  }
  for (const std::string& name : unwanted) {
    std::error_code error;
    fs::remove_all(folder / name, error);
    if (error) return Failed(folder / name, "remove", error);
  }
  return {};
}

base::Result<Manifest> ReadManifest(const fs::path& checkpoint) {
  const fs::path file = checkpoint / kManifestFile;
  MOTLEY_ASSIGN_OR_RETURN(const std::string text, base::ReadFile(file, kMaxManifestBytes));
  MOTLEY_ASSIGN_OR_RETURN(Manifest manifest, ParseManifest(text, file.string()));
  const fs::path state = checkpoint / kStateFile;
  std::error_code error;
  const std::uintmax_t bytes = fs::file_size(state, error);
  if (error) return Failed(state, "read", error);
  if (bytes != static_cast<std::uintmax_t>(manifest.file.bytes)) {
    return base::InvalidInput("{}: has {} bytes, but the manifest beside it says {}",
                              state.string(), bytes, manifest.file.bytes)
        .WithFix(kDamaged);
  }
  return manifest;
}

base::Status CheckContent(const fs::path& state, const Manifest& manifest,
                          const std::string& sha256) {
  if (sha256 == manifest.file.sha256) return {};
  return base::InvalidInput("{}: its content is damaged: SHA-256 {}, but the manifest says {}",
                            state.string(), sha256, manifest.file.sha256)
      .WithFix(kDamaged);
}

base::Status CheckUsable(const fs::path& checkpoint) {
  MOTLEY_ASSIGN_OR_RETURN(const Manifest manifest, ReadManifest(checkpoint));
  const fs::path state = checkpoint / kStateFile;
  MOTLEY_ASSIGN_OR_RETURN(const std::string sha256, base::Sha256OfFile(state));
  return CheckContent(state, manifest, sha256);
}

// Whether the checkpoint was finished after the link `latest` was made: then a kill came between
// the two, and the link points behind it.
bool WrittenAfter(const fs::path& link, const fs::path& checkpoint) {
  struct stat linked {
  }, written{};
  if (::lstat(link.c_str(), &linked) != 0) return false;
  if (::stat((checkpoint / kManifestFile).c_str(), &written) != 0) return false;
  const auto order = [](const timespec& time) { return std::pair(time.tv_sec, time.tv_nsec); };
  return order(written.st_mtim) > order(linked.st_mtim);
}

// The names that a resume tries, best first.
base::Result<std::vector<std::string>> Candidates(const fs::path& folder) {
  MOTLEY_ASSIGN_OR_RETURN(const auto names, NamesIn(folder));
  constexpr std::int64_t kAnyStep = std::numeric_limits<std::int64_t>::max();
  const auto by_step = NewestFirst(names, std::string(kPrefix), kAnyStep);
  std::vector<std::string> candidates;
  const auto add = [&candidates](const std::string& name) {
    const auto found = std::find(candidates.begin(), candidates.end(), name);
    if (found == candidates.end()) candidates.push_back(name);
  };
  std::error_code error;
  const std::string target = fs::read_symlink(folder / kLatest, error).string();
  // Only a name in this folder: `latest` never points elsewhere unless somebody else made it.
  if (!error && StepOf(target, kPrefix)) {
    for (const std::string& name : by_step) {
      if (WrittenAfter(folder / kLatest, folder / name)) add(name);
    }
    add(target);
  }
  for (const std::string& name : by_step) add(name);
  const std::string aside = std::string(kAsidePrefix) + std::string(kPrefix);
  for (const std::string& name : NewestFirst(names, aside, kAnyStep)) add(name);
  return candidates;
}

}  // namespace

base::Status SaveCheckpoint(const fs::path& folder, const graph::Graph& graph,
                            const TrainState& state, int keep) {
  MOTLEY_CHECK(keep >= 1, "keep is {}", keep);
  const auto parameters = static_cast<std::size_t>(graph.parameter_count());
  MOTLEY_CHECK(state.weights.size() == parameters && state.velocity.size() == parameters &&
                   state.buffers.size() == static_cast<std::size_t>(graph.buffer_count()),
               "the state does not fit the graph '{}'", graph.name());
  const std::string name = fmt::format("{}{}", kPrefix, state.step);
  const fs::path temporary = folder / fmt::format("{}{}-{}", kTemporaryPrefix, name, ::getpid());
  std::error_code error;
  fs::remove_all(temporary, error);
  fs::create_directories(temporary, error);
  if (error) return Failed(temporary, "create", error);
  if (auto written = WriteInto(temporary, graph, state); !written.ok()) {
    fs::remove_all(temporary, error);  // gives the space back; a full disk is the likely reason
    return std::move(written).In("checkpoint of step " + std::to_string(state.step));
  }
  MOTLEY_RETURN_IF_ERROR(Publish(temporary, folder / name));
  MOTLEY_RETURN_IF_ERROR(PointLatestTo(folder, name));
  return Prune(folder, state.step, keep);
}

base::Result<fs::path> FindCheckpoint(const fs::path& folder,
                                      std::vector<std::string>* passed_over) {
  std::error_code error;
  if (!fs::is_directory(folder, error)) {
    return base::NotFound("{}: there is no such folder", folder.string());
  }
  MOTLEY_ASSIGN_OR_RETURN(const auto candidates, Candidates(folder));
  std::vector<std::string> reasons;
  for (const std::string& name : candidates) {
    const base::Status usable = CheckUsable(folder / name);
    if (!usable.ok()) {
      reasons.push_back(usable.message());
      continue;
    }
    if (passed_over != nullptr) *passed_over = std::move(reasons);
    return folder / name;
  }
  if (reasons.empty()) return base::NotFound("{}: holds no checkpoint", folder.string());
  // Not the same as none: starting afresh here would overwrite somebody's work.
  return base::InvalidInput("{}: holds no usable checkpoint; {}", folder.string(), reasons.front())
      .WithFix("use the motley that wrote it, or start in another folder with --out");
}

base::Result<TrainState> LoadManifest(const fs::path& checkpoint) {
  MOTLEY_ASSIGN_OR_RETURN(Manifest manifest, ReadManifest(checkpoint));
  return std::move(manifest.state);
}

base::Result<TrainState> LoadCheckpoint(const fs::path& checkpoint, const graph::Graph& graph) {
  MOTLEY_ASSIGN_OR_RETURN(Manifest manifest, ReadManifest(checkpoint));
  TrainState& state = manifest.state;
  const auto parameters = static_cast<std::size_t>(graph.parameter_count());
  const auto buffers = static_cast<std::size_t>(graph.buffer_count());
  const fs::path file = checkpoint / kStateFile;
  const std::uint64_t max_bytes = sizeof(float) * (2 * parameters + buffers) + kMaxStateHeaderBytes;
  MOTLEY_ASSIGN_OR_RETURN(const std::string bytes, base::ReadFile(file, max_bytes));
  MOTLEY_RETURN_IF_ERROR(CheckContent(file, manifest, base::Sha256(bytes)));
  MOTLEY_ASSIGN_OR_RETURN(auto arrays, graph::ParseSafetensors(bytes, file.string()));
  if (bytes.size() < sizeof(float) * (2 * parameters + buffers)) {
    return base::InvalidInput("{}: has {} bytes, too few for the net '{}'", file.string(),
                              bytes.size(), graph.name());
  }
  state.weights.resize(parameters);
  state.velocity.resize(parameters);
  state.buffers.resize(buffers);
  MOTLEY_RETURN_IF_ERROR(ForEachArray(
      graph, state,
      [&](const std::string& name, const graph::Shape& shape,
          std::span<float> values) -> base::Status {
        const auto found = arrays.find(name);
        if (found == arrays.end()) {
          return base::InvalidInput("{}: has no '{}', which the net '{}' needs", file.string(),
                                    name, graph.name());
        }
        if (found->second.shape != shape) {
          return base::InvalidInput("{}: '{}' is {}, but the net '{}' needs {}", file.string(),
                                    name, graph::ToString(found->second.shape), graph.name(),
                                    graph::ToString(shape));
        }
        std::copy(found->second.values.begin(), found->second.values.end(), values.begin());
        arrays.erase(found);
        return {};
      }));
  if (!arrays.empty()) {
    return base::InvalidInput("{}: '{}' is no part of the net '{}'", file.string(),
                              arrays.begin()->first, graph.name());
  }
  return std::move(state);
}

}  // namespace motley::run
