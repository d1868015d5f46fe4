#include "tests/data/test_files.h"

#include <jpeglib.h>
#include <png.h>
#include <stdlib.h>  // NOLINT(modernize-deprecated-headers): mkdtemp, free
#include <zlib.h>

#include <algorithm>
#include <fstream>

#include "motley/base/check.h"

namespace motley::data {

namespace fs = std::filesystem;

TestFolder::TestFolder() {
  std::string name = (fs::temp_directory_path() / "motley-data-XXXXXX").string();
  MOTLEY_CHECK(::mkdtemp(name.data()) != nullptr, "no temporary folder");
  path_ = name;
}

TestFolder::~TestFolder() {
  std::error_code ignored;
  fs::remove_all(path_, ignored);
}

fs::path TestFolder::Write(const std::string& name, std::string_view bytes) const {
  const fs::path path = path_ / name;
  fs::create_directories(path.parent_path());
  std::ofstream(path, std::ios::binary) << bytes;
  return path;
}

std::string Idx(const std::vector<std::uint32_t>& dimensions, std::string_view payload) {
  std::string bytes("\0\0\x08", 3);
  bytes += static_cast<char>(dimensions.size());
  for (const auto dimension : dimensions) {
    for (int shift = 24; shift >= 0; shift -= 8) bytes += static_cast<char>(dimension >> shift);
  }
  return bytes.append(payload);
}

std::string Gzip(std::string_view bytes) {
  z_stream stream{};
  MOTLEY_CHECK(deflateInit2(&stream, 9, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY) == Z_OK,
               "zlib");
  std::string input(bytes);
  std::string out(deflateBound(&stream, input.size()) + 64, '\0');
  stream.next_in = reinterpret_cast<Bytef*>(input.data());
  stream.avail_in = static_cast<uInt>(input.size());
  stream.next_out = reinterpret_cast<Bytef*>(out.data());
  stream.avail_out = static_cast<uInt>(out.size());
  MOTLEY_CHECK(deflate(&stream, Z_FINISH) == Z_STREAM_END, "zlib");
  out.resize(stream.total_out);
  deflateEnd(&stream);
  return out;
}

std::string Tar(const std::vector<TarEntry>& entries) {
  std::string out;
  for (const auto& [name, bytes] : entries) {
    std::string header(512, '\0');
    const auto put = [&header](std::size_t at, const std::string& text) {
      std::copy(text.begin(), text.end(), header.begin() + static_cast<std::ptrdiff_t>(at));
    };
    put(0, name);
    put(100, "0000644");
    put(108, "0000000");
    put(116, "0000000");
    put(124, fmt::format("{:011o}", bytes.size()));
    put(136, "00000000000");
    put(148, "        ");
    put(156, "0");
    put(257, std::string("ustar\0"
                         "00",
                         8));
    unsigned sum = 0;
    for (const char c : header) sum += static_cast<unsigned char>(c);
    put(148, fmt::format("{:06o}", sum) + std::string("\0 ", 2));
    out += header + bytes + std::string((512 - bytes.size() % 512) % 512, '\0');
  }
  return out + std::string(1024, '\0');
}

std::string Png(int width, int height, int channels, const std::vector<std::uint8_t>& pixels) {
  png_image image{};
  image.version = PNG_IMAGE_VERSION;
  image.width = static_cast<png_uint_32>(width);
  image.height = static_cast<png_uint_32>(height);
  image.format = channels == 1 ? PNG_FORMAT_GRAY : PNG_FORMAT_RGB;
  png_alloc_size_t size = 0;
  MOTLEY_CHECK(png_image_write_to_memory(&image, nullptr, &size, 0, pixels.data(), 0, nullptr) != 0,
               "{}", image.message);
  std::string out(size, '\0');
  MOTLEY_CHECK(
      png_image_write_to_memory(&image, out.data(), &size, 0, pixels.data(), 0, nullptr) != 0, "{}",
      image.message);
  out.resize(size);
  return out;
}

std::string Jpeg(int width, int height, int channels, const std::vector<std::uint8_t>& pixels) {
  jpeg_compress_struct encoder{};
  jpeg_error_mgr errors{};
  encoder.err = jpeg_std_error(&errors);
  jpeg_create_compress(&encoder);
  unsigned char* buffer = nullptr;
  unsigned long size = 0;  // NOLINT(google-runtime-int): libjpeg's type
  jpeg_mem_dest(&encoder, &buffer, &size);
  encoder.image_width = static_cast<JDIMENSION>(width);
  encoder.image_height = static_cast<JDIMENSION>(height);
  encoder.input_components = channels;
  encoder.in_color_space = channels == 1 ? JCS_GRAYSCALE : channels == 3 ? JCS_RGB : JCS_CMYK;
  jpeg_set_defaults(&encoder);
  jpeg_set_quality(&encoder, 95, TRUE);
  jpeg_start_compress(&encoder, TRUE);
  std::vector<std::uint8_t> row(static_cast<std::size_t>(width * channels));
  for (int y = 0; y < height; ++y) {
    std::copy_n(pixels.begin() + static_cast<std::ptrdiff_t>(y) * width * channels, row.size(),
                row.begin());
    JSAMPROW rows[] = {row.data()};
    jpeg_write_scanlines(&encoder, rows, 1);
  }
  jpeg_finish_compress(&encoder);
  std::string out(reinterpret_cast<const char*>(buffer), size);
  jpeg_destroy_compress(&encoder);
  ::free(buffer);
  return out;
}

std::vector<std::uint8_t> DecodeOrDie(const Dataset& dataset, SampleId id) {
  std::vector<std::uint8_t> pixels(static_cast<std::size_t>(dataset.pixels_per_sample()));
  const auto status = dataset.Decode(id, pixels);
  MOTLEY_CHECK(status.ok(), "{}", status.message());
  return pixels;
}

}  // namespace motley::data
