#ifndef MOTLEY_DATA_IMAGE_STORE_H_
#define MOTLEY_DATA_IMAGE_STORE_H_

#include <cstddef>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "motley/base/status.h"

namespace motley::data {

// Compressed images under sorted, unique names.
//
// Thread safety: const, may be read from any number of threads.
class ImageStore {
 public:
  virtual ~ImageStore() = default;

  const std::vector<std::string>& names() const { return names_; }
  // What messages call an image: the path of its file, or the archive and the entry.
  virtual std::string Origin(std::size_t index) const = 0;
  // The file's bytes: a view into the store, or into `buffer`, which is overwritten.
  virtual base::Result<std::string_view> Read(std::size_t index, std::string& buffer) const = 0;

 protected:
  explicit ImageStore(std::vector<std::string> names) : names_(std::move(names)) {}

 private:
  std::vector<std::string> names_;
};

// All images below a folder; links are followed.
base::Result<std::shared_ptr<const ImageStore>> StoreOfFolder(const std::filesystem::path& folder);
// All images in a tar file, in memory. Refuses a name that occurs twice.
base::Result<std::shared_ptr<const ImageStore>> StoreOfTarFile(const std::filesystem::path& path);
base::Result<std::shared_ptr<const ImageStore>> StoreOfTarBytes(std::string_view bytes,
                                                                const std::string& origin);

}  // namespace motley::data

#endif  // MOTLEY_DATA_IMAGE_STORE_H_
