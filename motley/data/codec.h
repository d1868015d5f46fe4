#ifndef MOTLEY_DATA_CODEC_H_
#define MOTLEY_DATA_CODEC_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "motley/base/status.h"

namespace motley::data {

// Pixels as files hold them: rows of interleaved channels.
struct Image {
  int channels = 0, height = 0, width = 0;
  std::vector<std::uint8_t> pixels;
};

struct CodecOptions {
  // 1 or 3: converted to grey or colour; 0: grey if the file is grey, else colour.
  int channels = 0;
  // A JPEG much larger than this may come out reduced by 2, 4 or 8, never below it: decoding is
  // then several times faster. 0: always whole.
  int enough_height = 0, enough_width = 0;
};

// Whether the bytes begin like a JPEG or a PNG.
bool LooksLikeImage(std::string_view bytes);

// Decodes a JPEG or PNG, told apart by its first bytes. Sides up to 16384 and 2^26 pixels, and no
// more pixels than the bytes can hold, checked before anything is allocated. Fails with `origin`
// and the decoder's reason; data that is cut off or damaged is a failure, not a grey area in the
// picture. Transparent parts become black.
base::Result<Image> DecodeImage(std::string_view bytes, const std::string& origin,
                                const CodecOptions& options);

// The two behind it.
base::Result<Image> DecodeJpeg(std::string_view bytes, const std::string& origin,
                               const CodecOptions& options);
base::Result<Image> DecodePng(std::string_view bytes, const std::string& origin,
                              const CodecOptions& options);

// Refuses sides and areas beyond the limits, and empty images.
base::Status CheckDimensions(std::uint64_t height, std::uint64_t width, const std::string& origin);
// The same, and a header that promises more than `bytes` bytes of a file can hold.
base::Status CheckPromise(std::uint64_t height, std::uint64_t width, std::uint64_t bytes,
                          const std::string& origin);

}  // namespace motley::data

#endif  // MOTLEY_DATA_CODEC_H_
