#ifndef MOTLEY_DATA_IMAGE_LAYOUT_H_
#define MOTLEY_DATA_IMAGE_LAYOUT_H_

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "motley/base/status.h"

namespace motley::data {

// Whether a name ends like an image that can be decoded (.jpg, .jpeg, .png in any case) and is not
// hidden.
bool IsImageName(std::string_view name);

// What the names in a folder or archive mean. Indices point into the names.
struct ImageLayout {
  struct Entry {
    std::size_t index = 0;
    std::string label;  // the class folder
  };
  std::vector<Entry> train, test;  // in the order of the names
  // Whether the top folders are train/ and test/. If not, the class folders lie at the top and
  // everything is in `train`.
  bool split = false;
};

// Understands train/CLASS/… and test/CLASS/…, or CLASS/… alone, both also inside one enclosing
// folder. With train/ or test/ there, other top folders are left out. Requires sorted names with
// '/' between the parts. Fails with the name of an image that lies in no class folder.
base::Result<ImageLayout> UnderstandLayout(const std::vector<std::string>& names);

}  // namespace motley::data

#endif  // MOTLEY_DATA_IMAGE_LAYOUT_H_
