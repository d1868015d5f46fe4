#ifndef MOTLEY_DATA_TAR_H_
#define MOTLEY_DATA_TAR_H_

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>

#include "motley/base/status.h"

namespace motley::data {

struct TarLimits {
  std::uint64_t entry_bytes = std::uint64_t{64} << 20;
  // Of the wanted entries, their 512 bytes of header included: they cost memory, too.
  std::uint64_t total_bytes = std::uint64_t{1} << 40;
  std::int64_t entries = 100'000'000;
};

// What to do with the regular files of an archive, in the archive's order. Names are relative and
// have no "." or ".." in them.
struct TarVisitor {
  std::function<bool(const std::string& name)> wanted;  // others are passed over unread
  std::function<base::Status(const std::string& name, std::string bytes)> take;
};

// Reads a tar or gzipped tar (nothing else is accepted). Nothing is written anywhere. Fails with
// the archive, the entry and the reason when it is broken, cut off, larger than the limits, or has
// an absolute name or one that climbs up, or when a wanted entry is a link. Memory grows with what
// arrives.
base::Status ReadTarFile(const std::filesystem::path& path, const TarLimits& limits,
                         const TarVisitor& visitor);
base::Status ReadTarBytes(std::string_view bytes, const std::string& origin,
                          const TarLimits& limits, const TarVisitor& visitor);

}  // namespace motley::data

#endif  // MOTLEY_DATA_TAR_H_
