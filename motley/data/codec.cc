#include "motley/data/codec.h"

#include <png.h>

#include "motley/data/gzip.h"

namespace motley::data {
namespace {

constexpr std::string_view kJpegStart = "\xff\xd8";
constexpr std::string_view kPngStart = "\x89PNG";

struct PngCloser {
  png_image& image;
  ~PngCloser() { png_image_free(&image); }
};

}  // namespace

base::Status CheckDimensions(std::uint64_t height, std::uint64_t width, const std::string& origin) {
  constexpr std::uint64_t kMaxSide = 16384;
  constexpr std::uint64_t kMaxPixels = std::uint64_t{1} << 26;
  if (height >= 1 && width >= 1 && height <= kMaxSide && width <= kMaxSide &&
      height * width <= kMaxPixels) {
    return {};
  }
  return base::InvalidInput("{}: {}x{} pixels; sides up to {} and {} pixels are read", origin,
                            width, height, kMaxSide, kMaxPixels);
}

base::Status CheckPromise(std::uint64_t height, std::uint64_t width, std::uint64_t bytes,
                          const std::string& origin) {
  MOTLEY_RETURN_IF_ERROR(CheckDimensions(height, width, origin));
  // Nothing is denser than a PNG of one bit per pixel; a JPEG spends a bit on 64 pixels at least.
  constexpr std::uint64_t kPixelsPerByte = 8 * kMaxDeflateRatio;
  if (height * width / kPixelsPerByte <= bytes) return {};
  return base::InvalidInput("{}: promises {}x{} pixels, which its {} bytes cannot hold", origin,
                            width, height, bytes);
}

base::Result<Image> DecodePng(std::string_view bytes, const std::string& origin,
                              const CodecOptions& options) {
  png_image reader{};
  reader.version = PNG_IMAGE_VERSION;
  const PngCloser closer{reader};
  if (png_image_begin_read_from_memory(&reader, bytes.data(), bytes.size()) == 0) {
    return base::InvalidInput("{}: PNG: {}", origin, reader.message);
  }
  MOTLEY_RETURN_IF_ERROR(CheckPromise(reader.height, reader.width, bytes.size(), origin));
  const bool grey = options.channels == 1 ||
                    (options.channels == 0 && (reader.format & PNG_FORMAT_FLAG_COLOR) == 0);
  reader.format = grey ? PNG_FORMAT_GRAY : PNG_FORMAT_RGB;
  Image image{.channels = grey ? 1 : 3,
              .height = static_cast<int>(reader.height),
              .width = static_cast<int>(reader.width)};
  image.pixels.resize(PNG_IMAGE_SIZE(reader));
  // Without a background colour, transparent pixels are laid over what the buffer holds: zeros.
  if (png_image_finish_read(&reader, nullptr, image.pixels.data(), 0, nullptr) == 0) {
    return base::InvalidInput("{}: PNG: {}", origin, reader.message);
  }
  return image;
}

bool LooksLikeImage(std::string_view bytes) {
  return bytes.starts_with(kJpegStart) || bytes.starts_with(kPngStart);
}

base::Result<Image> DecodeImage(std::string_view bytes, const std::string& origin,
                                const CodecOptions& options) {
  if (bytes.starts_with(kJpegStart)) return DecodeJpeg(bytes, origin, options);
  if (bytes.starts_with(kPngStart)) return DecodePng(bytes, origin, options);
  return base::InvalidInput("{}: byte 0: neither a JPEG nor a PNG", origin);
}

}  // namespace motley::data
