#include "motley/data/idx.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "motley/base/file.h"
#include "motley/data/gzip.h"
#include "motley/data/memory_dataset.h"

namespace motley::data {
namespace {

constexpr std::size_t kMaxHeader = 20;  // magic and four dimensions
constexpr std::uint64_t kMaxBytes = std::uint64_t{16} << 30;

struct Header {
  std::vector<std::uint64_t> dimensions;
  std::uint64_t header_bytes = 0;
  std::uint64_t total_bytes = 0;  // of the whole file
};

std::uint64_t BigEndian32(std::string_view bytes, std::size_t at) {
  std::uint64_t value = 0;
  for (std::size_t i = 0; i < 4; ++i) value = value << 8 | static_cast<std::uint8_t>(bytes[at + i]);
  return value;
}

base::Result<Header> ParseHeader(std::string_view bytes, const std::string& origin) {
  if (bytes.size() < 4) {
    return base::InvalidInput("{}: byte {}: the file ends within the IDX magic number", origin,
                              bytes.size());
  }
  const auto rank = static_cast<std::size_t>(static_cast<std::uint8_t>(bytes[3]));
  if (bytes.substr(0, 3) != std::string_view("\0\0\x08", 3) || rank < 1 || rank > 4) {
    return base::InvalidInput(
        "{}: byte 0: not an IDX file of unsigned bytes with 1 to 4 dimensions (magic {:08x})",
        origin, BigEndian32(bytes, 0));
  }
  Header header;
  header.header_bytes = 4 + 4 * rank;
  if (bytes.size() < header.header_bytes) {
    return base::InvalidInput("{}: byte {}: the file ends within its IDX header", origin,
                              bytes.size());
  }
  std::uint64_t product = 1;
  for (std::size_t i = 0; i < rank; ++i) {
    header.dimensions.push_back(BigEndian32(bytes, 4 + 4 * i));
    // Both factors are below 2^35, so the product cannot overflow before it is refused.
    product *= header.dimensions.back();
    if (product > kMaxBytes) {
      return base::InvalidInput("{}: byte {}: the header promises more than {} bytes", origin,
                                4 + 4 * i, kMaxBytes);
    }
  }
  header.total_bytes = header.header_bytes + product;
  return header;
}

base::Status CheckLength(const NamedBytes& file, const Header& header) {
  if (file.bytes.size() < header.total_bytes) {
    return base::InvalidInput("{}: byte {}: the file ends here; its header promises {} bytes",
                              file.origin, file.bytes.size(), header.total_bytes);
  }
  if (file.bytes.size() > header.total_bytes) {
    return base::InvalidInput("{}: byte {}: more data than the header promises", file.origin,
                              header.total_bytes);
  }
  return {};
}

base::Result<ImageShape> ShapeOf(const Header& header, const std::string& origin) {
  constexpr std::uint64_t kMaxSide = 16384;
  const auto& d = header.dimensions;
  if (d.size() < 3) {
    return base::InvalidInput("{}: byte 3: {} dimensions, images need 3 or 4", origin, d.size());
  }
  for (std::size_t i = 0; i < d.size(); ++i) {
    if (d[i] == 0 || (i > 0 && d[i] > kMaxSide)) {
      return base::InvalidInput("{}: byte {}: dimension {} is {}", origin, 4 + 4 * i, i, d[i]);
    }
  }
  return ImageShape{.channels = d.size() == 4 ? static_cast<int>(d[1]) : 1,
                    .height = static_cast<int>(d[d.size() - 2]),
                    .width = static_cast<int>(d[d.size() - 1])};
}

base::Status CheckLabels(const std::vector<std::int32_t>& labels, int classes, bool guessed,
                         const std::string& origin) {
  const auto largest = std::max_element(labels.begin(), labels.end());
  const auto at = largest - labels.begin() + 8;
  if (*largest >= classes) {
    return base::InvalidInput("{}: byte {}: label {}, but there are only {} classes", origin, at,
                              *largest, classes);
  }
  std::vector<bool> seen(static_cast<std::size_t>(classes));
  for (const auto label : labels) seen[static_cast<std::size_t>(label)] = true;
  const auto present = std::count(seen.begin(), seen.end(), true);
  if (guessed && 2 * present < classes) {
    return base::InvalidInput("{}: byte {}: label {}, but only {} different labels occur", origin,
                              at, *largest, present)
        .WithFix("number the classes 0, 1, 2, … without gaps, or replace the damaged file");
  }
  return {};
}

base::Result<std::vector<std::int32_t>> ParseLabels(const NamedBytes& file, std::uint64_t images) {
  MOTLEY_ASSIGN_OR_RETURN(const auto header, ParseHeader(file.bytes, file.origin));
  if (header.dimensions.size() != 1) {
    return base::InvalidInput("{}: byte 3: {} dimensions, labels need 1", file.origin,
                              header.dimensions.size());
  }
  if (header.dimensions[0] != images) {
    return base::InvalidInput("{}: byte 4: {} labels for {} images", file.origin,
                              header.dimensions[0], images);
  }
  MOTLEY_RETURN_IF_ERROR(CheckLength(file, header));
  std::vector<std::int32_t> labels;
  labels.reserve(file.bytes.size() - 8);
  for (const char byte : std::string_view(file.bytes).substr(8)) {
    labels.push_back(static_cast<std::uint8_t>(byte));
  }
  return labels;
}

class IdxFolderSource final : public Source {
 public:
  explicit IdxFolderSource(std::filesystem::path folder) : folder_(std::move(folder)) {}

  base::Result<std::shared_ptr<const Dataset>> Open(Part part,
                                                    const Dataset* train) const override {
    const std::string stem = part == Part::kTrain ? "train" : "t10k";
    MOTLEY_ASSIGN_OR_RETURN(auto images, ReadIdxFile(folder_, stem + "-images"));
    MOTLEY_ASSIGN_OR_RETURN(const auto labels, ReadIdxFile(folder_, stem + "-labels"));
    std::optional<int> classes;
    if (train != nullptr) classes = static_cast<int>(train->classes().size());
    return ParseIdx(std::move(images), labels, classes);
  }

 private:
  std::filesystem::path folder_;
};

}  // namespace

base::Result<std::shared_ptr<const Dataset>> ParseIdx(NamedBytes images, const NamedBytes& labels,
                                                      std::optional<int> classes) {
  MOTLEY_ASSIGN_OR_RETURN(const auto header, ParseHeader(images.bytes, images.origin));
  MOTLEY_ASSIGN_OR_RETURN(const auto shape, ShapeOf(header, images.origin));
  MOTLEY_RETURN_IF_ERROR(CheckLength(images, header));
  MOTLEY_ASSIGN_OR_RETURN(auto numbers, ParseLabels(labels, header.dimensions[0]));
  const int count = classes.value_or(*std::max_element(numbers.begin(), numbers.end()) + 1);
  MOTLEY_RETURN_IF_ERROR(CheckLabels(numbers, count, !classes.has_value(), labels.origin));
  MemoryDataset::Parts parts{.shape = shape,
                             .classes = {},
                             .labels = std::move(numbers),
                             .bytes = std::move(images.bytes),
                             .offset = header.header_bytes};
  for (int i = 0; i < count; ++i) parts.classes.push_back(std::to_string(i));
  return std::shared_ptr<const Dataset>(std::make_shared<MemoryDataset>(std::move(parts)));
}

base::Result<NamedBytes> ExpandIdx(NamedBytes file) {
  if (!file.bytes.starts_with("\x1f\x8b")) return file;
  const std::string origin = file.origin + " (expanded)";
  MOTLEY_ASSIGN_OR_RETURN(const auto start, Inflate(file.bytes, file.origin, kMaxHeader));
  MOTLEY_ASSIGN_OR_RETURN(const auto header, ParseHeader(start, origin));
  if (header.total_bytes / kMaxDeflateRatio > file.bytes.size()) {
    return base::InvalidInput("{}: byte 4: the header promises {} bytes, which {} cannot expand to",
                              origin, header.total_bytes, file.bytes.size());
  }
  MOTLEY_ASSIGN_OR_RETURN(auto bytes, Inflate(file.bytes, file.origin, header.total_bytes + 1));
  return NamedBytes{origin, std::move(bytes)};
}

base::Result<NamedBytes> ReadIdxFile(const std::filesystem::path& folder, const std::string& stem) {
  const bool images = stem.ends_with("images");
  const std::vector<std::string> ranks =
      images ? std::vector<std::string>{"idx3", "idx4"} : std::vector<std::string>{"idx1"};
  for (const auto& rank : ranks) {
    for (const std::string separator : {"-", "."}) {
      for (const std::string ending : {"", ".gz"}) {
        const auto path = folder / (stem + separator + rank + "-ubyte" + ending);
        std::error_code ignored;  // what cannot be looked at is not there
        if (!std::filesystem::is_regular_file(path, ignored)) continue;
        MOTLEY_ASSIGN_OR_RETURN(auto bytes, base::ReadFile(path, kMaxBytes));
        return ExpandIdx({path.string(), std::move(bytes)});
      }
    }
  }
  return base::NotFound("{}: no file {}-{}-ubyte, plain or .gz", folder.string(), stem, ranks[0])
      .WithFix(
          "put the four IDX files (train-images-idx3-ubyte, train-labels-idx1-ubyte, "
          "t10k-images-idx3-ubyte, t10k-labels-idx1-ubyte) into that folder");
}

std::unique_ptr<Source> IdxFolder(std::filesystem::path folder) {
  return std::make_unique<IdxFolderSource>(std::move(folder));
}

}  // namespace motley::data
