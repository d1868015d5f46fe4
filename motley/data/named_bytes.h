#ifndef MOTLEY_DATA_NAMED_BYTES_H_
#define MOTLEY_DATA_NAMED_BYTES_H_

#include <string>

namespace motley::data {

// The bytes of a file and the name that messages call it by.
struct NamedBytes {
  std::string origin;
  std::string bytes;
};

}  // namespace motley::data

#endif  // MOTLEY_DATA_NAMED_BYTES_H_
