#include "motley/base/file.h"

#include <fcntl.h>
#include <openssl/evp.h>
#include <openssl/sha.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <limits>
#include <memory>

#include "motley/base/descriptor.h"

namespace motley::base {
namespace {

Status SystemError(const std::filesystem::path& path, std::string_view what) {
  return FileError(path, what, errno);
}

// The uppermost folder of the file system that `path` is on, or would be on.
std::filesystem::path MountOf(const std::filesystem::path& path) {
  std::error_code error;
  std::filesystem::path at = std::filesystem::absolute(path, error);
  struct stat info {};
  while (::stat(at.c_str(), &info) != 0 && at.has_relative_path()) at = at.parent_path();
  struct stat above {};
  while (at.has_relative_path() && ::stat(at.parent_path().c_str(), &above) == 0 &&
         above.st_dev == info.st_dev) {
    at = at.parent_path();
  }
  return at;
}

Status WriteAll(int fd, std::string_view bytes, const std::filesystem::path& path) {
  while (!bytes.empty()) {
    const ssize_t written = ::write(fd, bytes.data(), std::min<std::size_t>(bytes.size(), 1 << 30));
    if (written < 0) {
      if (errno == EINTR) continue;
      return SystemError(path, "write");
    }
    bytes.remove_prefix(static_cast<std::size_t>(written));
  }
  return {};
}

Status SyncFolder(const std::filesystem::path& folder) {
  const Descriptor fd(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (fd.get() < 0) return SystemError(folder, "open");
  if (::fsync(fd.get()) != 0) return SystemError(folder, "sync");
  return {};
}

std::filesystem::path ParentOf(const std::filesystem::path& path) {
  return path.has_parent_path() ? path.parent_path() : std::filesystem::path(".");
}

Status TooLarge(const std::filesystem::path& path, std::uint64_t max_bytes) {
  return InvalidInput("{}: is larger than the {} bytes allowed here", path.string(), max_bytes);
}

// Calls take(bytes) for one part of a regular file after another.
template <typename Take>
Status ForEachPart(const std::filesystem::path& path, std::uint64_t max_bytes, const Take& take) {
  // Not blocking: opening a pipe would otherwise wait for somebody to write to it.
  const Descriptor fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (fd.get() < 0) return SystemError(path, "open");
  struct stat info {};
  if (::fstat(fd.get(), &info) != 0) return SystemError(path, "read");
  if (S_ISDIR(info.st_mode)) return InvalidInput("{}: is a folder, not a file", path.string());
  if (!S_ISREG(info.st_mode)) return InvalidInput("{}: is no regular file", path.string());
  if (static_cast<std::uint64_t>(info.st_size) > max_bytes) return TooLarge(path, max_bytes);
  std::array<char, 1 << 16> chunk;
  while (true) {
    const ssize_t count = ::read(fd.get(), chunk.data(), chunk.size());
    if (count < 0) {
      if (errno == EINTR) continue;
      return SystemError(path, "read");
    }
    if (count == 0) return {};
    MOTLEY_RETURN_IF_ERROR(take(std::string_view(chunk.data(), static_cast<std::size_t>(count))));
  }
}

std::string Hex(std::span<const unsigned char> bytes) {
  std::string hex;
  for (const unsigned char byte : bytes) hex += fmt::format("{:02x}", byte);
  return hex;
}

}  // namespace

Status FileError(const std::filesystem::path& path, std::string_view what, int error) {
  const Code code = error == ENOENT ? Code::kNotFound : Code::kInternal;
  std::string message = fmt::format("{}: cannot {}: {}", path.string(), what, std::strerror(error));
  if (error != ENOSPC && error != EDQUOT) return Status(code, std::move(message));
  const std::string mount = MountOf(path).string();
  message += fmt::format(" (the file system at {})", mount);
  return Status(code, std::move(message))
      .WithFix(
          fmt::format("free space on {}, for example by deleting old runs, or write to another "
                      "file system",
                      mount));
}

Result<std::string> ReadFile(const std::filesystem::path& path, std::uint64_t max_bytes) {
  std::string content;
  MOTLEY_RETURN_IF_ERROR(ForEachPart(path, max_bytes, [&](std::string_view bytes) -> Status {
    content.append(bytes);
    // It may grow while we read.
    return content.size() > max_bytes ? TooLarge(path, max_bytes) : Status();
  }));
  return content;
}

Status WriteFileSynced(const std::filesystem::path& path, std::span<const std::string_view> parts) {
  const Descriptor fd(::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644));
  if (fd.get() < 0) return SystemError(path, "create");
  for (const std::string_view part : parts) {
    MOTLEY_RETURN_IF_ERROR(WriteAll(fd.get(), part, path));
  }
  if (::fsync(fd.get()) != 0) return SystemError(path, "sync");
  return {};
}

Status ReplaceFile(const std::filesystem::path& path, std::string_view content) {
  std::filesystem::path beside = path;
  beside += ".tmp";
  MOTLEY_RETURN_IF_ERROR(WriteFileSynced(beside, {&content, 1}));
  return RenameSynced(beside, path);
}

Status RenameSynced(const std::filesystem::path& from, const std::filesystem::path& to) {
  if (::rename(from.c_str(), to.c_str()) != 0) return SystemError(to, "rename to it");
  return SyncFolder(ParentOf(to));
}

std::string Sha256(std::string_view bytes) {
  std::array<unsigned char, SHA256_DIGEST_LENGTH> digest;
  SHA256(reinterpret_cast<const unsigned char*>(bytes.data()), bytes.size(), digest.data());
  return Hex(digest);
}

Result<std::string> Sha256OfFile(const std::filesystem::path& path) {
  const std::unique_ptr<EVP_MD_CTX, void (*)(EVP_MD_CTX*)> context(EVP_MD_CTX_new(),
                                                                   EVP_MD_CTX_free);
  constexpr std::uint64_t kNoLimit = std::numeric_limits<std::uint64_t>::max();
  bool ok = EVP_DigestInit_ex(context.get(), EVP_sha256(), nullptr) == 1;
  MOTLEY_RETURN_IF_ERROR(ForEachPart(path, kNoLimit, [&](std::string_view bytes) -> Status {
    ok = ok && EVP_DigestUpdate(context.get(), bytes.data(), bytes.size()) == 1;
    return {};
  }));
  std::array<unsigned char, SHA256_DIGEST_LENGTH> digest;
  ok = ok && EVP_DigestFinal_ex(context.get(), digest.data(), nullptr) == 1;
  if (!ok) return Internal("{}: cannot compute its SHA-256", path.string());
  return Hex(digest);
}

}  // namespace motley::base
