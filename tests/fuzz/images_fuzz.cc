#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "motley/data/codec.h"
#include "motley/data/images.h"
#include "motley/data/resize.h"

namespace {

namespace data = motley::data;

// Larger pictures are accepted by design and only slow the search down.
constexpr int kMaxSide = 2048;

// A PNG says its size in bytes 16 to 23.
bool IsLargePng(std::string_view bytes) {
  if (!bytes.starts_with("\x89PNG") || bytes.size() < 24) return false;
  return bytes[16] != 0 || bytes[17] != 0 || bytes[20] != 0 || bytes[21] != 0 ||
         static_cast<unsigned char>(bytes[18]) >= kMaxSide / 256 ||
         static_cast<unsigned char>(bytes[22]) >= kMaxSide / 256;
}

// Decodes the bytes as a picture, in every way that a dataset may.
void DecodeAll(std::string_view bytes) {
  for (const data::CodecOptions& options :
       {data::CodecOptions{}, data::CodecOptions{.channels = 1},
        data::CodecOptions{.channels = 3, .enough_height = 8, .enough_width = 8}}) {
    const auto image = data::DecodeImage(bytes, "image", options);
    if (!image.ok()) continue;
    if (image->height <= kMaxSide && image->width <= kMaxSide) {
      (void)data::Resize(*image, 7, 5);
    }
  }
}

void OpenAsTar(const std::string& bytes) {
  const auto source = data::ImagesInTar(bytes, "tar", {.resize_height = 5, .resize_width = 6});
  if (!source.ok()) return;
  for (const data::Part part : {data::Part::kTrain, data::Part::kTest, data::Part::kTestOnly}) {
    const auto set = (*source)->Open(part, nullptr);
    if (!set.ok()) continue;
    std::vector<std::uint8_t> pixels(static_cast<std::size_t>((*set)->pixels_per_sample()));
    const auto last = static_cast<data::SampleId>((*set)->size() - 1);
    const auto ignored = (*set)->Decode(last, pixels);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* bytes, std::size_t size) {
  const std::string text(reinterpret_cast<const char*>(bytes), size);
  if (text.starts_with("\xff\xd8") || text.starts_with("\x89PNG")) {
    if (!IsLargePng(text)) DecodeAll(text);
  } else {
    OpenAsTar(text);
  }
  return 0;
}
