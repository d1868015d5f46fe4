#include "motley/data/image_store.h"

#include <algorithm>
#include <system_error>
#include <utility>

#include "motley/base/file.h"
#include "motley/data/codec.h"
#include "motley/data/image_layout.h"
#include "motley/data/tar.h"

namespace motley::data {
namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t kMaxImageBytes = std::uint64_t{64} << 20;

class FolderStore final : public ImageStore {
 public:
  FolderStore(fs::path folder, std::vector<std::string> names)
      : ImageStore(std::move(names)), folder_(std::move(folder)) {}

  std::string Origin(std::size_t index) const override {
    return (folder_ / names()[index]).string();
  }
  base::Result<std::string_view> Read(std::size_t index, std::string& buffer) const override {
    MOTLEY_ASSIGN_OR_RETURN(buffer, base::ReadFile(folder_ / names()[index], kMaxImageBytes));
    return std::string_view(buffer);
  }

 private:
  fs::path folder_;
};

class TarStore final : public ImageStore {
 public:
  struct Entry {
    std::string name;
    std::size_t offset, size;  // in the arena
  };
  // Requires entries sorted by name.
  TarStore(std::string origin, std::vector<std::string> names, std::vector<Entry> entries,
           std::string arena)
      : ImageStore(std::move(names)),
        origin_(std::move(origin)),
        entries_(std::move(entries)),
        arena_(std::move(arena)) {}

  std::string Origin(std::size_t index) const override { return origin_ + ": " + names()[index]; }
  base::Result<std::string_view> Read(std::size_t index, std::string&) const override {
    return std::string_view(arena_).substr(entries_[index].offset, entries_[index].size);
  }

 private:
  std::string origin_;
  std::vector<Entry> entries_;
  std::string arena_;
};

// Collects what a tar reader finds, then puts it in order.
class TarCollector {
 public:
  explicit TarCollector(std::string origin) : origin_(std::move(origin)) {}

  TarVisitor Visitor() {
    return {.wanted = [](const std::string& name) { return IsImageName(name); },
            .take = [this](const std::string& name, const std::string& bytes) -> base::Status {
              // Now, because what is kept costs memory until somebody decodes it.
              if (!LooksLikeImage(bytes)) {
                return base::InvalidInput("{}: {}: byte 0: neither a JPEG nor a PNG", origin_,
                                          name);
              }
              entries_.push_back({name, arena_.size(), bytes.size()});
              arena_ += bytes;
              return {};
            }};
  }

  base::Result<std::shared_ptr<const ImageStore>> Finish() {
    std::sort(entries_.begin(), entries_.end(),
              [](const auto& a, const auto& b) { return a.name < b.name; });
    const auto twice =
        std::adjacent_find(entries_.begin(), entries_.end(),
                           [](const auto& a, const auto& b) { return a.name == b.name; });
    if (twice != entries_.end()) {
      return base::InvalidInput("{}: entry '{}' occurs twice", origin_, twice->name);
    }
    std::vector<std::string> names;
    names.reserve(entries_.size());
    for (auto& entry : entries_) names.push_back(std::move(entry.name));
    arena_.shrink_to_fit();
    return std::shared_ptr<const ImageStore>(std::make_shared<TarStore>(
        origin_, std::move(names), std::move(entries_), std::move(arena_)));
  }

 private:
  std::string origin_;
  std::vector<TarStore::Entry> entries_;
  std::string arena_;
};

// Images are compressed already: an archive of them that expands a hundredfold is no such archive.
TarLimits LimitsFor(std::uint64_t archive_bytes) {
  constexpr std::uint64_t kMaxStoreBytes = std::uint64_t{64} << 30;
  constexpr std::uint64_t kMaxExpansion = 100;
  return {.entry_bytes = kMaxImageBytes,
          .total_bytes =
              std::min(kMaxStoreBytes,
                       kMaxImageBytes + kMaxExpansion * std::min(kMaxStoreBytes, archive_bytes))};
}

}  // namespace

base::Result<std::shared_ptr<const ImageStore>> StoreOfFolder(const fs::path& folder) {
  constexpr int kMaxDepth = 16;  // ends a circle of links
  std::vector<std::string> names;
  std::error_code error;
  fs::recursive_directory_iterator walk(folder, fs::directory_options::follow_directory_symlink,
                                        error);
  for (; !error && walk != fs::recursive_directory_iterator(); walk.increment(error)) {
    if (walk.depth() >= kMaxDepth) walk.disable_recursion_pending();
    std::error_code ignored;  // a dangling link is no image
    if (!walk->is_regular_file(ignored)) continue;
    auto name = walk->path().lexically_relative(folder).generic_string();
    if (IsImageName(name)) names.push_back(std::move(name));
  }
  if (error) return base::Internal("{}: cannot list: {}", folder.string(), error.message());
  std::sort(names.begin(), names.end());
  return std::shared_ptr<const ImageStore>(std::make_shared<FolderStore>(folder, std::move(names)));
}

base::Result<std::shared_ptr<const ImageStore>> StoreOfTarFile(const fs::path& path) {
  std::error_code error;
  const std::uintmax_t bytes = fs::file_size(path, error);
  if (error) return base::InvalidInput("{}: {}", path.string(), error.message());
  TarCollector collector(path.string());
  MOTLEY_RETURN_IF_ERROR(ReadTarFile(path, LimitsFor(bytes), collector.Visitor()));
  return collector.Finish();
}

base::Result<std::shared_ptr<const ImageStore>> StoreOfTarBytes(std::string_view bytes,
                                                                const std::string& origin) {
  TarCollector collector(origin);
  MOTLEY_RETURN_IF_ERROR(ReadTarBytes(bytes, origin, LimitsFor(bytes.size()), collector.Visitor()));
  return collector.Finish();
}

}  // namespace motley::data
