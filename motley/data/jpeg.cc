// jpeglib.h needs size_t and FILE first.
#include <cstddef>
#include <cstdio>
// A line between: the order matters.
#include <jerror.h>
#include <jpeglib.h>

#include <array>
#include <csetjmp>

#include "motley/data/codec.h"

namespace motley::data {
namespace {

// libjpeg leaves by longjmp. So everything it touches lies here, and the functions that call
// setjmp hold no object with a destructor.
struct Decoder {
  jpeg_decompress_struct jpeg;
  jpeg_error_mgr errors;
  jpeg_progress_mgr progress;
  std::jmp_buf escape;
  std::array<char, JMSG_LENGTH_MAX> message;
};

[[noreturn]] void Escape(j_common_ptr jpeg) {
  auto* decoder = static_cast<Decoder*>(jpeg->client_data);
  jpeg->err->format_message(jpeg, decoder->message.data());
  std::longjmp(decoder->escape, 1);
}

// libjpeg calls damage a warning and fills the rest with grey. A network would learn from that.
void OnMessage(j_common_ptr jpeg, int level) {
  if (level >= 0) return;
  switch (jpeg->err->msg_code) {
    case JWRN_EXTRANEOUS_DATA:  // padding between markers: some cameras write it
    case JWRN_ADOBE_XFORM:
    case JWRN_JFIF_MAJOR:
      return;
    default:
      Escape(jpeg);
  }
}

// A progressive file may repeat its scans without end, each at the cost of the whole picture.
void OnProgress(j_common_ptr jpeg) {
  constexpr int kMaxScans = 100;
  auto* decoder = static_cast<Decoder*>(jpeg->client_data);
  if (decoder->jpeg.input_scan_number > kMaxScans) {
    jpeg->err->msg_code = JERR_BAD_PROGRESSION;
    Escape(jpeg);
  }
}

void Init(Decoder& decoder) {
  decoder.jpeg.err = jpeg_std_error(&decoder.errors);
  decoder.errors.error_exit = Escape;
  decoder.errors.emit_message = OnMessage;
  decoder.jpeg.client_data = &decoder;
}

bool ReadHeader(Decoder& decoder, const unsigned char* data, std::size_t size) {
  if (setjmp(decoder.escape) != 0) return false;  // NOLINT(cert-err52-cpp)
  jpeg_create_decompress(&decoder.jpeg);
  decoder.progress.progress_monitor = OnProgress;
  decoder.jpeg.progress = &decoder.progress;
  jpeg_mem_src(&decoder.jpeg, data, size);
  jpeg_read_header(&decoder.jpeg, TRUE);
  return true;
}

// Made for printing, with four inks. libjpeg leaves the conversion of those to its callers.
bool IsPrint(const Decoder& decoder) {
  return decoder.jpeg.jpeg_color_space == JCS_CMYK || decoder.jpeg.jpeg_color_space == JCS_YCCK;
}

// Four inks to grey or RGB. Adobe's programs, and after them all others, store inks inverted and
// say so with a marker.
std::vector<std::uint8_t> FromInks(const std::vector<std::uint8_t>& inks, bool inverted,
                                   bool grey) {
  std::vector<std::uint8_t> out;
  out.reserve(inks.size() / 4 * (grey ? 1 : 3));
  const int flip = inverted ? 0 : 255;
  for (std::size_t i = 0; i + 3 < inks.size(); i += 4) {
    std::array<int, 3> rgb{};
    for (std::size_t c = 0; c < 3; ++c) {
      rgb[c] = ((inks[i + c] ^ flip) * (inks[i + 3] ^ flip) + 127) / 255;
    }
    if (grey) {  // ITU-R 601, as libjpeg's own
      out.push_back(static_cast<std::uint8_t>((299 * rgb[0] + 587 * rgb[1] + 114 * rgb[2]) / 1000));
    } else {
      for (const int value : rgb) out.push_back(static_cast<std::uint8_t>(value));
    }
  }
  return out;
}

// Fixes the size of the output without decoding.
bool SetOutput(Decoder& decoder, bool grey, unsigned eighths) {
  if (setjmp(decoder.escape) != 0) return false;  // NOLINT(cert-err52-cpp)
  decoder.jpeg.out_color_space = IsPrint(decoder) ? JCS_CMYK : grey ? JCS_GRAYSCALE : JCS_RGB;
  decoder.jpeg.dct_method = JDCT_ISLOW;
  decoder.jpeg.scale_num = eighths;
  decoder.jpeg.scale_denom = 8;
  jpeg_calc_output_dimensions(&decoder.jpeg);
  return true;
}

bool ReadRows(Decoder& decoder, unsigned char* out, std::size_t stride) {
  if (setjmp(decoder.escape) != 0) return false;  // NOLINT(cert-err52-cpp)
  jpeg_start_decompress(&decoder.jpeg);
  while (decoder.jpeg.output_scanline < decoder.jpeg.output_height) {
    JSAMPROW row = out + decoder.jpeg.output_scanline * stride;
    jpeg_read_scanlines(&decoder.jpeg, &row, 1);
  }
  jpeg_finish_decompress(&decoder.jpeg);
  return true;
}

unsigned ChooseEighths(const Decoder& decoder, const CodecOptions& options) {
  if (options.enough_height <= 0 || options.enough_width <= 0) return 8;
  for (const unsigned eighths : {1U, 2U, 4U}) {
    if (decoder.jpeg.image_height * eighths / 8 >= static_cast<unsigned>(options.enough_height) &&
        decoder.jpeg.image_width * eighths / 8 >= static_cast<unsigned>(options.enough_width)) {
      return eighths;
    }
  }
  return 8;
}

struct DecoderCloser {
  Decoder& decoder;
  ~DecoderCloser() { jpeg_destroy_decompress(&decoder.jpeg); }
};

base::Status Failure(const Decoder& decoder, const std::string& origin) {
  return base::InvalidInput("{}: JPEG: {}", origin, decoder.message.data());
}

}  // namespace

base::Result<Image> DecodeJpeg(std::string_view bytes, const std::string& origin,
                               const CodecOptions& options) {
  Decoder decoder{};
  const DecoderCloser closer{decoder};
  Init(decoder);
  if (!ReadHeader(decoder, reinterpret_cast<const unsigned char*>(bytes.data()), bytes.size())) {
    return Failure(decoder, origin);
  }
  MOTLEY_RETURN_IF_ERROR(
      CheckPromise(decoder.jpeg.image_height, decoder.jpeg.image_width, bytes.size(), origin));
  const bool grey = options.channels == 1 ||
                    (options.channels == 0 && decoder.jpeg.jpeg_color_space == JCS_GRAYSCALE);
  if (!SetOutput(decoder, grey, ChooseEighths(decoder, options))) return Failure(decoder, origin);
  Image image{.channels = grey ? 1 : 3,
              .height = static_cast<int>(decoder.jpeg.output_height),
              .width = static_cast<int>(decoder.jpeg.output_width)};
  const std::size_t stride = static_cast<std::size_t>(image.width) *
                             static_cast<std::size_t>(decoder.jpeg.out_color_components);
  image.pixels.resize(stride * static_cast<std::size_t>(image.height));
  if (!ReadRows(decoder, image.pixels.data(), stride)) return Failure(decoder, origin);
  if (IsPrint(decoder)) {
    image.pixels = FromInks(image.pixels, decoder.jpeg.saw_Adobe_marker != FALSE, grey);
  }
  return image;
}

}  // namespace motley::data
