#ifndef MOTLEY_DATA_IDX_H_
#define MOTLEY_DATA_IDX_H_

#include <filesystem>
#include <memory>
#include <optional>
#include <string>

#include "motley/base/status.h"
#include "motley/data/dataset.h"
#include "motley/data/named_bytes.h"
#include "motley/data/source.h"

namespace motley::data {

// Images (unsigned bytes, [n, height, width] or [n, channels, height, width]) and their labels
// (unsigned bytes, [n]) in the IDX format of MNIST, uncompressed. Classes are "0", "1", …: as many
// as `classes` says, else up to the largest label. Fails with the file and the byte offset when a
// file is cut off, too long or not IDX, when the counts differ, or when a label is beyond the
// classes (without `classes`: when fewer than half of the labels up to the largest one occur, as
// after a flipped bit).
base::Result<std::shared_ptr<const Dataset>> ParseIdx(NamedBytes images, const NamedBytes& labels,
                                                      std::optional<int> classes);

// Expands `file` if it is gzip; never to more than its IDX header promises plus one byte.
base::Result<NamedBytes> ExpandIdx(NamedBytes file);

// The file DIR/`stem` as Yann LeCun named it (train-images-idx3-ubyte) or with a dot instead of
// the second dash, plain or with .gz; `stem` is "train-images", "train-labels", "t10k-images" or
// "t10k-labels". Expanded.
base::Result<NamedBytes> ReadIdxFile(const std::filesystem::path& folder, const std::string& stem);

// A folder with the four files; the t10k pair is only needed for the test part.
std::unique_ptr<Source> IdxFolder(std::filesystem::path folder);

}  // namespace motley::data

#endif  // MOTLEY_DATA_IDX_H_
