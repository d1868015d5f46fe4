#include "motley/data/cifar.h"

#include <cstdint>
#include <string_view>
#include <system_error>
#include <utility>

#include "motley/base/file.h"
#include "motley/data/memory_dataset.h"

namespace motley::data {
namespace {

namespace fs = std::filesystem;

constexpr ImageShape kShape{.channels = 3, .height = 32, .width = 32};

// The largest file of the originals has 154 MB.
constexpr std::uint64_t kMaxFileBytes = std::uint64_t{1} << 30;

bool Exists(const fs::path& path) {
  std::error_code ignored;
  return fs::exists(path, ignored);
}

base::Status AppendRecords(const NamedBytes& file, const CifarFormat& format,
                           MemoryDataset::Parts& parts) {
  const std::size_t record = format.label_bytes + kShape.size();
  const std::string_view bytes = file.bytes;
  if (bytes.empty()) return base::InvalidInput("{}: byte 0: the file is empty", file.origin);
  if (bytes.size() % record != 0) {
    return base::InvalidInput("{}: byte {}: the file ends within record {} (of {} bytes each)",
                              file.origin, bytes.size(), bytes.size() / record, record);
  }
  for (std::size_t at = 0; at < bytes.size(); at += record) {
    const std::size_t label_at = at + format.label_bytes - 1;
    const auto label = static_cast<std::uint8_t>(bytes[label_at]);
    if (label >= format.classes.size()) {
      return base::InvalidInput("{}: byte {}: label {}, but there are only {} classes", file.origin,
                                label_at, label, format.classes.size());
    }
    parts.labels.push_back(label);
    parts.bytes += bytes.substr(label_at + 1, kShape.size());
  }
  return {};
}

// One name per line; empty lines do not count.
base::Result<std::vector<std::string>> ReadNames(const fs::path& path, std::size_t expected) {
  constexpr std::uint64_t kMaxBytes = 1 << 20;
  MOTLEY_ASSIGN_OR_RETURN(const auto text, base::ReadFile(path, kMaxBytes));
  std::vector<std::string> names;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = std::min(text.find('\n', begin), text.size());
    std::string line = text.substr(begin, end - begin);
    if (line.ends_with('\r')) line.pop_back();
    if (!line.empty()) names.push_back(std::move(line));
    begin = end + 1;
  }
  if (names.size() == expected) return names;
  return base::InvalidInput("{}: {} class names, expected {}", path.string(), names.size(),
                            expected)
      .WithFix("restore the file, or delete it: the names are known without it");
}

// Which of the two sets lies in a folder, and what its files are called.
struct Layout {
  fs::path folder;
  std::size_t label_bytes;
  std::vector<std::string> train, test;
  std::string names_file;
  std::vector<std::string> names;  // when there is no such file
};

Layout Cifar10(fs::path folder) {
  return {
      std::move(folder),
      1,
      {"data_batch_1.bin", "data_batch_2.bin", "data_batch_3.bin", "data_batch_4.bin",
       "data_batch_5.bin"},
      {"test_batch.bin"},
      "batches.meta.txt",
      {"airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"}};
}

Layout Cifar100(fs::path folder) {
  std::vector<std::string> numbers;
  for (int i = 0; i < 100; ++i) numbers.push_back(std::to_string(i));
  return {std::move(folder), 2, {"train.bin"}, {"test.bin"}, "fine_label_names.txt",
          std::move(numbers)};
}

base::Result<Layout> FindLayout(const fs::path& folder) {
  for (const auto& place : {folder, folder / "cifar-10-batches-bin", folder / "cifar-100-binary"}) {
    if (Exists(place / "data_batch_1.bin") || Exists(place / "test_batch.bin")) {
      return Cifar10(place);
    }
    if (Exists(place / "train.bin") || Exists(place / "test.bin")) return Cifar100(place);
  }
  return base::NotFound(
             "{}: neither data_batch_1.bin (CIFAR-10) nor train.bin (CIFAR-100) is there",
             folder.string())
      .WithFix("unpack the binary version of CIFAR-10 or CIFAR-100 into that folder");
}

class CifarFolderSource final : public Source {
 public:
  explicit CifarFolderSource(fs::path folder) : folder_(std::move(folder)) {}

  base::Result<std::shared_ptr<const Dataset>> Open(Part part, const Dataset*) const override {
    MOTLEY_ASSIGN_OR_RETURN(auto layout, FindLayout(folder_));
    CifarFormat format{layout.label_bytes, std::move(layout.names)};
    const fs::path names_path = layout.folder / layout.names_file;
    if (Exists(names_path)) {
      MOTLEY_ASSIGN_OR_RETURN(format.classes, ReadNames(names_path, format.classes.size()));
    }
    std::vector<NamedBytes> files;
    for (const auto& name : part == Part::kTrain ? layout.train : layout.test) {
      const fs::path path = layout.folder / name;
      MOTLEY_ASSIGN_OR_RETURN(auto bytes, base::ReadFile(path, kMaxFileBytes));
      files.push_back({path.string(), std::move(bytes)});
    }
    return ParseCifar(files, format);
  }

 private:
  fs::path folder_;
};

}  // namespace

base::Result<std::shared_ptr<const Dataset>> ParseCifar(const std::vector<NamedBytes>& files,
                                                        const CifarFormat& format) {
  MemoryDataset::Parts parts{.shape = kShape, .classes = format.classes};
  for (const auto& file : files) MOTLEY_RETURN_IF_ERROR(AppendRecords(file, format, parts));
  return std::shared_ptr<const Dataset>(std::make_shared<MemoryDataset>(std::move(parts)));
}

std::unique_ptr<Source> CifarFolder(fs::path folder) {
  return std::make_unique<CifarFolderSource>(std::move(folder));
}

}  // namespace motley::data
