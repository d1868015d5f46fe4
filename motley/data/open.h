#ifndef MOTLEY_DATA_OPEN_H_
#define MOTLEY_DATA_OPEN_H_

#include <filesystem>
#include <functional>
#include <string>

#include "motley/base/status.h"
#include "motley/data/dataset.h"

namespace motley::data {

struct OpenOptions {
  // Where named sets are kept: DIR/mnist holds the IDX files.
  std::filesystem::path cache;
  // Image folders and tar files: every image is resized to this; 0 takes the size of the first
  // image and refuses others.
  int resize_height = 0, resize_width = 0;
  // Whether a missing named set may be fetched.
  bool fetch = true;
  // Whether a missing named set is stood in for by black images of its shape and number: enough to
  // check a job against.
  bool stand_in = false;
  // What messages about the training and the test set begin with; empty: nothing.
  std::string train_place, test_place;
  // Told in one line what takes time ("fetching mnist …").
  std::function<void(const std::string&)> on_progress;
};

// Opens what a job file names:
//   mnist | idx:DIR | cifar:DIR | images:DIR|FILE.tar[.gz] | glyphs
// `test` left empty means the set's own test part: t10k files, test_batch.bin / test.bin, the
// folder `test` beside `train`. Train and test must agree in shape and class list.
base::Result<DataPair> Open(const std::string& train, const std::string& test,
                            const OpenOptions& options);

// The training part of `spec`, or all of it when it is not divided, to be used together with a set
// that has the shape and the classes of `like`. It need not have samples of every class; refuses
// other classes and another shape.
base::Result<std::shared_ptr<const Dataset>> OpenLike(const std::string& spec, const Dataset& like,
                                                      const OpenOptions& options);

// The same set, named so that it is found from any folder: "idx:data" -> "idx:/home/me/data".
std::string AbsoluteSpec(const std::string& spec);

// Whether Open would have to fetch a set, or to stand in for it.
bool IsMissing(const std::string& train, const std::string& test, const OpenOptions& options);

// Makes sure that the named set is in the cache, fetching it if it is not, and checks its SHA-256.
// Returns its folder. Only "mnist" can be fetched.
base::Result<std::filesystem::path> Fetch(const std::string& name, const OpenOptions& options);

}  // namespace motley::data

#endif  // MOTLEY_DATA_OPEN_H_
