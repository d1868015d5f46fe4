#ifndef MOTLEY_DATA_IMAGES_H_
#define MOTLEY_DATA_IMAGES_H_

#include <filesystem>
#include <memory>
#include <string>

#include "motley/base/status.h"
#include "motley/data/open.h"
#include "motley/data/source.h"

namespace motley::data {

// JPEG and PNG images, class = folder, from a folder or a tar file (plain or gzip). A folder's
// files are read when they are decoded; a tar file is read once and its images, still compressed,
// are kept in memory. Samples are ordered by path, classes by name, so both forms of the same
// images are the same set. The first image of a part is decoded when the part is opened, the others
// when they are needed. Images are colour unless the first one is grey.
base::Result<std::unique_ptr<Source>> Images(const std::filesystem::path& path,
                                             const OpenOptions& options);

// The same from a tar file in memory, called `origin` in messages.
base::Result<std::unique_ptr<Source>> ImagesInTar(const std::string& bytes,
                                                  const std::string& origin,
                                                  const OpenOptions& options);

}  // namespace motley::data

#endif  // MOTLEY_DATA_IMAGES_H_
