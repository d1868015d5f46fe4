#ifndef MOTLEY_TESTS_DATA_TEST_FILES_H_
#define MOTLEY_TESTS_DATA_TEST_FILES_H_

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "motley/data/dataset.h"

namespace motley::data {

// A folder of its own for one test, removed at its end.
class TestFolder {
 public:
  TestFolder();
  ~TestFolder();
  TestFolder(const TestFolder&) = delete;
  TestFolder& operator=(const TestFolder&) = delete;

  const std::filesystem::path& path() const { return path_; }
  // Writes a file below the folder, with the folders it needs; returns its path.
  std::filesystem::path Write(const std::string& name, std::string_view bytes) const;

 private:
  std::filesystem::path path_;
};

// An IDX file of unsigned bytes: header for `dimensions`, then `payload` whatever its length.
std::string Idx(const std::vector<std::uint32_t>& dimensions, std::string_view payload);

std::string Gzip(std::string_view bytes);

struct TarEntry {
  std::string name;
  std::string bytes;
};
// A ustar archive without compression.
std::string Tar(const std::vector<TarEntry>& entries);

// Interleaved pixels to a file's bytes; channels 1 or 3, for a JPEG also 4 (inks, inverted).
std::string Png(int width, int height, int channels, const std::vector<std::uint8_t>& pixels);
std::string Jpeg(int width, int height, int channels, const std::vector<std::uint8_t>& pixels);

std::vector<std::uint8_t> DecodeOrDie(const Dataset& dataset, SampleId id);

}  // namespace motley::data

#endif  // MOTLEY_TESTS_DATA_TEST_FILES_H_
