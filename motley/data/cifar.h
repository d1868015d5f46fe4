#ifndef MOTLEY_DATA_CIFAR_H_
#define MOTLEY_DATA_CIFAR_H_

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "motley/base/status.h"
#include "motley/data/dataset.h"
#include "motley/data/named_bytes.h"
#include "motley/data/source.h"

namespace motley::data {

// The binary format of CIFAR: records of label bytes and 3x32x32 pixels, without a header.
struct CifarFormat {
  std::size_t label_bytes = 1;  // CIFAR-10: 1. CIFAR-100: 2, the fine label last
  std::vector<std::string> classes;
};

// One set from all files, in order. Fails with the file and the byte offset when a file is empty or
// ends within a record, or when a label is beyond the classes.
base::Result<std::shared_ptr<const Dataset>> ParseCifar(const std::vector<NamedBytes>& files,
                                                        const CifarFormat& format);

// A folder with data_batch_1.bin … data_batch_5.bin and test_batch.bin (CIFAR-10; class names from
// batches.meta.txt if it is there), or train.bin and test.bin (CIFAR-100; fine_label_names.txt), as
// the archives of its authors unpack; the folder above it will do as well.
std::unique_ptr<Source> CifarFolder(std::filesystem::path folder);

}  // namespace motley::data

#endif  // MOTLEY_DATA_CIFAR_H_
