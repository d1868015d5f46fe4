#include "motley/cluster/security.h"

#include <fcntl.h>
#include <openssl/crypto.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <system_error>
#include <thread>

#include "motley/base/clock.h"
#include "motley/base/file.h"

namespace motley::cluster {
namespace {

constexpr std::uint64_t kMaxBytes = std::uint64_t{16} << 20;

std::filesystem::path FolderOf(const std::filesystem::path& path) {
  return path.has_parent_path() ? path.parent_path() : std::filesystem::path(".");
}

base::Status RefuseModeBits(const std::filesystem::path& path, mode_t refused,
                            std::string_view who_may, std::string_view chmod) {
  struct stat info {};
  if (::stat(path.c_str(), &info) != 0) return base::FileError(path, "open", errno);
  if ((info.st_mode & refused) == 0) return {};
  return base::InvalidInput("{}: {} (mode {:04o})", path.string(), who_may, info.st_mode & 07777)
      .WithFix(fmt::format("chmod {} '{}'", chmod, path.string()));
}

base::Status CheckFolder(const std::filesystem::path& folder) {
  return RefuseModeBits(folder, S_IWGRP | S_IWOTH, "others than its owner may write to this folder",
                        "go-w");
}

base::Status MakeFolder(std::filesystem::path folder) {
  if (!folder.has_filename()) folder = FolderOf(folder);  // "keys/": parent_path() is "keys"
  std::error_code error;
  std::filesystem::create_directories(FolderOf(folder), error);
  if (error) return base::FileError(FolderOf(folder), "make this folder", error.value());
  if (::mkdir(folder.c_str(), 0700) != 0 && errno != EEXIST) {
    return base::FileError(folder, "make this folder", errno);
  }
  return CheckFolder(folder);
}

// Held as long as this object lives; the system lets go of it for a process that was killed.
class Lock {
 public:
  explicit Lock(std::filesystem::path path) : path_(std::move(path)) {}
  ~Lock() {
    if (fd_ >= 0) ::close(fd_);
  }
  Lock(const Lock&) = delete;
  Lock& operator=(const Lock&) = delete;

  // By asking again and again, because waiting in flock() has no deadline.
  base::Status Take(double wait_seconds) {
    fd_ = ::open(path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0600);
    if (fd_ < 0) return base::FileError(path_, "open", errno);
    const base::RealClock clock;
    const double end = clock.Now() + wait_seconds;
    while (::flock(fd_, LOCK_EX | LOCK_NB) != 0) {
      if (errno != EWOULDBLOCK && errno != EINTR) return base::FileError(path_, "lock", errno);
      if (clock.Now() > end) {
        return base::Unavailable("{}: another process has held this lock for {:g} s",
                                 path_.string(), wait_seconds)
            .WithFix("wait for the other motley that uses this folder, or end it");
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    return {};
  }

 private:
  const std::filesystem::path path_;
  int fd_ = -1;
};

}  // namespace

std::string RandomHex(int bytes) {
  std::array<unsigned char, 256> random;  // getentropy gives no more at once
  MOTLEY_CHECK(bytes >= 0 && bytes <= 256, "{} random bytes", bytes);
  const auto count = static_cast<std::size_t>(bytes);
  // Going on would mean secrets that can be guessed.
  MOTLEY_CHECK(::getentropy(random.data(), count) == 0, "no random bytes of the operating system");
  std::string hex;
  for (std::size_t i = 0; i < count; ++i) hex += fmt::format("{:02x}", random[i]);
  return hex;
}

bool SameSecret(std::string_view a, std::string_view b) {
  return a.size() == b.size() && CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0;
}

base::Result<std::string> ReadPrivateFile(const std::filesystem::path& path) {
  MOTLEY_RETURN_IF_ERROR(CheckFolder(FolderOf(path)));
  MOTLEY_RETURN_IF_ERROR(RefuseModeBits(
      path, S_IRWXG | S_IRWXO, "others than its owner may read or write this file", "600"));
  return base::ReadFile(path, kMaxBytes);
}

base::Status WritePrivateFile(const std::filesystem::path& path, std::string_view content) {
  if (content.size() > kMaxBytes) {
    return base::InvalidInput("{}: would be larger than {} bytes", path.string(), kMaxBytes);
  }
  std::filesystem::path beside = path;
  beside += ".tmp";
  ::unlink(beside.c_str());  // of a process that was killed
  // Made here, because the mode must be right before the first byte is in it.
  const int fd = ::open(beside.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  if (fd < 0) return base::FileError(beside, "create", errno);
  ::close(fd);
  base::Status status = base::WriteFileSynced(beside, {&content, 1});
  if (status.ok()) status = base::RenameSynced(beside, path);
  if (!status.ok()) ::unlink(beside.c_str());
  return status;
}

base::Status WithFolderLocked(const std::filesystem::path& folder,
                              const std::function<base::Status()>& work, double wait_seconds) {
  MOTLEY_RETURN_IF_ERROR(MakeFolder(folder));
  Lock lock(folder / ".lock");
  MOTLEY_RETURN_IF_ERROR(lock.Take(wait_seconds));
  return work();
}

}  // namespace motley::cluster
