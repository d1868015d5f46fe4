#ifndef MOTLEY_DATA_SOURCE_H_
#define MOTLEY_DATA_SOURCE_H_

#include <memory>

#include "motley/base/status.h"
#include "motley/data/dataset.h"

namespace motley::data {

enum class Part {
  kTrain,
  kTest,      // what belongs to the training part of the same source
  kTestOnly,  // of a source named for testing alone: one that is not divided is all test
};

// One place that samples come from: a folder, an archive, a named or generated set. What both
// parts share (the bytes of an archive) is read once.
class Source {
 public:
  virtual ~Source() = default;

  // `train` is the training set that a test part will be used with, null when there is none yet.
  // Formats without class names number their classes by it, because a small test part need not
  // show every class.
  virtual base::Result<std::shared_ptr<const Dataset>> Open(Part part,
                                                            const Dataset* train) const = 0;
};

}  // namespace motley::data

#endif  // MOTLEY_DATA_SOURCE_H_
