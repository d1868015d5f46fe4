#ifndef MOTLEY_DATA_LOADER_H_
#define MOTLEY_DATA_LOADER_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "motley/base/status.h"
#include "motley/data/batch.h"
#include "motley/data/dataset.h"
#include "motley/data/transform.h"

namespace motley::data {

struct LoaderOptions {
  int threads = 1;
  std::uint64_t seed = 0;
};

// Decodes and augments ahead of the device, in its own threads. Batches come out in the order in
// which they were submitted, and are the same for any number of threads.
//
// Thread safety: Submit and Next from one thread. The destructor stops the threads without waiting
// for batches that nobody took.
class Loader {
 public:
  // Requires transform.Check(*dataset).
  Loader(std::shared_ptr<const Dataset> dataset, Transform transform, LoaderOptions options);
  ~Loader();

  // Queues a batch; returns at once.
  void Submit(std::vector<SampleId> ids, std::uint64_t epoch);
  // How many were submitted and not yet taken.
  std::int64_t pending() const;
  // The next batch, when it is ready; requires pending() > 0. Fails when a sample cannot be
  // decoded.
  base::Result<Batch> Next();

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace motley::data

#endif  // MOTLEY_DATA_LOADER_H_
