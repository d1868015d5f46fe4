#ifndef MOTLEY_DATA_GZIP_H_
#define MOTLEY_DATA_GZIP_H_

#include <cstdint>
#include <string>
#include <string_view>

#include "motley/base/status.h"

namespace motley::data {

// The most that one byte of a deflate stream, which is inside of gzip and PNG, can expand to: a
// copy of 258 bytes takes at least two bits.
inline constexpr std::uint64_t kMaxDeflateRatio = 1032;

// The first `limit` bytes of what `bytes` (gzip, one or several members) expands to, or fewer when
// it ends before. Memory grows with what arrives, never with what a header says. Fails with
// `origin` and the compressed offset when the stream is broken or cut off before the limit.
base::Result<std::string> Inflate(std::string_view bytes, const std::string& origin,
                                  std::uint64_t limit);

}  // namespace motley::data

#endif  // MOTLEY_DATA_GZIP_H_
