#ifndef MOTLEY_DATA_RESIZE_H_
#define MOTLEY_DATA_RESIZE_H_

#include "motley/data/codec.h"

namespace motley::data {

// Bilinear, with the centres of pixels as sample points; when shrinking, every source pixel
// counts (the triangle widens), so that fine patterns do not alias. Requires a valid image and
// positive sides.
Image Resize(const Image& image, int height, int width);

}  // namespace motley::data

#endif  // MOTLEY_DATA_RESIZE_H_
