#ifndef MOTLEY_DATA_MNIST_H_
#define MOTLEY_DATA_MNIST_H_

#include <filesystem>
#include <memory>

#include "motley/base/status.h"
#include "motley/data/open.h"
#include "motley/data/source.h"

namespace motley::data {

// options.cache/mnist, fetched first if no file of the set is there. Checked against the SHA-256
// of the original files.
base::Result<std::filesystem::path> FetchMnist(const OpenOptions& options);

// Whether some file is there. A folder that holds something else is the user's, and reading it says
// what is missing; fetching into it would have to overwrite.
bool HasMnist(const OpenOptions& options);

// The original MNIST digits: 60,000 and 10,000 images of 28x28. Fetched, or stood in for, when a
// part is opened.
std::unique_ptr<Source> Mnist(OpenOptions options);

}  // namespace motley::data

#endif  // MOTLEY_DATA_MNIST_H_
