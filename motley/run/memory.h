#ifndef MOTLEY_RUN_MEMORY_H_
#define MOTLEY_RUN_MEMORY_H_

#include <filesystem>

namespace motley::run {

// `root` is "/" but in tests.

// Memory that this process occupies, in bytes; 0 when the kernel does not tell.
double ResidentBytes(const std::filesystem::path& root);

// Memory that this process could still get, in bytes: what the machine has left, or the cgroup of
// this process, or one above it, if that is less. What a cgroup's files keep in memory counts as
// left, because the kernel gives it up. Infinite where nobody says.
double FreeBytes(const std::filesystem::path& root);

}  // namespace motley::run

#endif  // MOTLEY_RUN_MEMORY_H_
