#ifndef MOTLEY_BASE_FILE_H_
#define MOTLEY_BASE_FILE_H_

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>

#include "motley/base/status.h"

namespace motley::base {

// The failure `error` (an errno) to `what` (a verb) the file or folder `path`. Says which file
// system is full, where that is the reason, and what to do.
Status FileError(const std::filesystem::path& path, std::string_view what, int error);

// The whole regular file. Fails with the path and the reason; refuses more than `max_bytes`, so
// that a wrong path cannot eat the memory.
Result<std::string> ReadFile(const std::filesystem::path& path,
                             std::uint64_t max_bytes = std::uint64_t{16} << 30);

// Writes the parts one after another and syncs them to the disk. Not atomic: for a file that is
// not visible yet.
Status WriteFileSynced(const std::filesystem::path& path, std::span<const std::string_view> parts);

// Writes beside, syncs, renames: a reader, and a kill at any instant, sees the old file or the new.
Status ReplaceFile(const std::filesystem::path& path, std::string_view content);

// Renames a file or folder and syncs the folder that holds it, so that the new name outlives a
// power cut.
Status RenameSynced(const std::filesystem::path& from, const std::filesystem::path& to);

// Lower-case hexadecimal SHA-256.
std::string Sha256(std::string_view bytes);
// The same of a regular file, which need not fit into memory.
Result<std::string> Sha256OfFile(const std::filesystem::path& path);

}  // namespace motley::base

#endif  // MOTLEY_BASE_FILE_H_
