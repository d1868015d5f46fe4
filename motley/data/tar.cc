#include "motley/data/tar.h"

#include <archive.h>
#include <archive_entry.h>

#include <algorithm>
#include <fstream>
#include <memory>
#include <utility>

namespace motley::data {
namespace {

constexpr std::size_t kTarBlock = 512;

struct ArchiveCloser {
  void operator()(archive* reader) const { archive_read_free(reader); }
};
using Reader = std::unique_ptr<archive, ArchiveCloser>;

base::Status Broken(archive* reader, const std::string& place) {
  const char* reason = archive_error_string(reader);
  return base::InvalidInput("{}: {}", place, reason != nullptr ? reason : "unknown tar error");
}

base::Result<Reader> NewReader(const std::string& origin) {
  Reader reader(archive_read_new());
  // Only what is promised: every further format would be code that hostile bytes can reach.
  if (reader == nullptr || archive_read_support_format_tar(reader.get()) != ARCHIVE_OK ||
      archive_read_support_filter_gzip(reader.get()) != ARCHIVE_OK) {
    return base::Internal("{}: libarchive cannot start", origin);
  }
  return reader;
}

// "./a//b" -> "a/b".
base::Result<std::string> CleanName(const std::string_view whole, const std::string& origin) {
  std::string_view name = whole;
  if (name.starts_with('/')) {
    return base::InvalidInput("{}: entry '{}': absolute name", origin, name);
  }
  std::string clean;
  while (!name.empty()) {
    const auto part = name.substr(0, name.find('/'));
    name.remove_prefix(std::min(name.size(), part.size() + 1));
    if (part.empty() || part == ".") continue;
    if (part == "..") return base::InvalidInput("{}: entry '{}': climbs up", origin, whole);
    if (!clean.empty()) clean += '/';
    clean += part;
  }
  return clean;
}

const char* NameOf(archive_entry* entry) {
  // The first is null when the name does not fit the process's locale.
  const char* name = archive_entry_pathname(entry);
  return name != nullptr ? name : archive_entry_pathname_utf8(entry);
}

base::Result<std::string> ReadEntry(archive* reader, const std::string& place,
                                    const TarLimits& limits, std::uint64_t left) {
  std::string bytes;
  for (;;) {
    const void* block = nullptr;
    std::size_t size = 0;
    la_int64_t offset = 0;
    const int code = archive_read_data_block(reader, &block, &size, &offset);
    if (code == ARCHIVE_EOF) return bytes;
    if (code != ARCHIVE_OK) return Broken(reader, place);
    // A hole costs the archive nothing and would cost us memory.
    if (offset != static_cast<la_int64_t>(bytes.size())) {
      return base::InvalidInput("{}: sparse entries are not supported", place);
    }
    if (bytes.size() + size > limits.entry_bytes) {
      return base::InvalidInput("{}: larger than the limit of {} bytes", place, limits.entry_bytes);
    }
    if (bytes.size() + size > left) {
      return base::InvalidInput("{}: beyond the {} bytes that this archive may expand to", place,
                                limits.total_bytes);
    }
    bytes.append(static_cast<const char*>(block), size);
  }
}

base::Status Visit(archive* reader, const std::string& origin, const TarLimits& limits,
                   const TarVisitor& visitor) {
  std::uint64_t left = limits.total_bytes;
  for (std::int64_t count = 0;; ++count) {
    archive_entry* entry = nullptr;
    const int code = archive_read_next_header(reader, &entry);
    if (code == ARCHIVE_EOF) return {};
    const std::string at = fmt::format("{}: byte {}", origin, archive_read_header_position(reader));
    if (code != ARCHIVE_OK && code != ARCHIVE_WARN) return Broken(reader, at);
    if (count >= limits.entries) {
      return base::InvalidInput("{}: more than {} entries", at, limits.entries);
    }
    const char* raw = NameOf(entry);
    if (raw == nullptr) return base::InvalidInput("{}: an entry without a readable name", at);
    MOTLEY_ASSIGN_OR_RETURN(const auto name, CleanName(raw, at));
    if (archive_entry_filetype(entry) == AE_IFDIR || !visitor.wanted(name)) continue;
    if (archive_entry_filetype(entry) != AE_IFREG || archive_entry_hardlink(entry) != nullptr) {
      return base::InvalidInput("{}: entry '{}' is a link or a special file", origin, name)
          .WithFix("pack the archive with tar --dereference --hard-dereference");
    }
    MOTLEY_ASSIGN_OR_RETURN(
        auto bytes, ReadEntry(reader, fmt::format("{}: entry '{}'", origin, name), limits, left));
    left -= std::min<std::uint64_t>(left, bytes.size() + kTarBlock);
    MOTLEY_RETURN_IF_ERROR(visitor.take(name, std::move(bytes)));
  }
}

bool IsCompressed(archive* reader) { return archive_filter_code(reader, 0) != ARCHIVE_FILTER_NONE; }

// An archive ends with blocks of zeros. libarchive does without them, and so takes a plain tar
// that was cut off between two entries for a whole one. (gzip notices by itself.)
base::Status CheckEnd(std::string_view tail, const std::string& origin) {
  const bool zeros = std::all_of(tail.begin(), tail.end(), [](char c) { return c == 0; });
  if (tail.size() == kTarBlock && zeros) return {};
  return base::InvalidInput("{}: the archive is cut off: the blocks that mark its end are missing",
                            origin);
}

base::Result<std::string> ReadTail(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::string tail(kTarBlock, '\0');
  if (file.seekg(-static_cast<std::streamoff>(kTarBlock), std::ios::end) &&
      file.read(tail.data(), static_cast<std::streamsize>(tail.size()))) {
    return tail;
  }
  return base::InvalidInput("{}: cannot read the end of the archive", path.string());
}

}  // namespace

base::Status ReadTarFile(const std::filesystem::path& path, const TarLimits& limits,
                         const TarVisitor& visitor) {
  constexpr std::size_t kBlock = std::size_t{256} << 10;
  MOTLEY_ASSIGN_OR_RETURN(const Reader reader, NewReader(path.string()));
  if (archive_read_open_filename(reader.get(), path.c_str(), kBlock) != ARCHIVE_OK) {
    return Broken(reader.get(), path.string());
  }
  MOTLEY_RETURN_IF_ERROR(Visit(reader.get(), path.string(), limits, visitor));
  if (IsCompressed(reader.get())) return {};
  MOTLEY_ASSIGN_OR_RETURN(const auto tail, ReadTail(path));
  return CheckEnd(tail, path.string());
}

base::Status ReadTarBytes(std::string_view bytes, const std::string& origin,
                          const TarLimits& limits, const TarVisitor& visitor) {
  MOTLEY_ASSIGN_OR_RETURN(const Reader reader, NewReader(origin));
  if (archive_read_open_memory(reader.get(), bytes.data(), bytes.size()) != ARCHIVE_OK) {
    return Broken(reader.get(), origin);
  }
  MOTLEY_RETURN_IF_ERROR(Visit(reader.get(), origin, limits, visitor));
  if (IsCompressed(reader.get())) return {};
  return CheckEnd(bytes.substr(bytes.size() - std::min(bytes.size(), kTarBlock)), origin);
}

}  // namespace motley::data
