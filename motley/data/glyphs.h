#ifndef MOTLEY_DATA_GLYPHS_H_
#define MOTLEY_DATA_GLYPHS_H_

#include <memory>

#include "motley/data/source.h"

namespace motley::data {

// A generated set that needs no file: ten figures drawn with strokes, 28x28 grey, 8,000 for
// training and 2,000 for testing, each moved, turned, scaled, blurred by noise, and light on dark
// or dark on light. Because of the last, the mean picture of every class is the same flat grey: a
// linear model learns almost nothing, a small convolutional net nearly everything.
//
// Always the same pixels, on every machine.
std::unique_ptr<Source> Glyphs();

}  // namespace motley::data

#endif  // MOTLEY_DATA_GLYPHS_H_
