#ifndef MOTLEY_ENGINE_REFERENCE_KERNELS_H_
#define MOTLEY_ENGINE_REFERENCE_KERNELS_H_

#include <cstdint>
#include <span>
#include <vector>

#include "motley/data/batch.h"
#include "motley/graph/graph.h"

// Every operator of a graph as two pure functions on plain arrays: the output from the inputs, and
// the gradients of the inputs from the gradient of the output. Nothing is kept between the two:
// a backward function works out again what it needs, so each can be read alone.
namespace motley::engine::reference {

// The values of one node for a whole batch, [n][channels][height][width], row-major.
using Values = std::vector<double>;
using View = std::span<const double>;

// The shape that goes with Values; a vector of f features is f channels of 1x1.
struct Dims {
  std::int64_t n = 0, c = 0, h = 1, w = 1;

  std::int64_t image() const { return h * w; }
  std::int64_t sample() const { return c * h * w; }
  std::int64_t count() const { return n * sample(); }
  std::size_t at(std::int64_t in, std::int64_t ic, std::int64_t iy, std::int64_t ix) const {
    return static_cast<std::size_t>(((in * c + ic) * h + iy) * w + ix);
  }
  Values Zeros() const { return Values(static_cast<std::size_t>(count())); }
};

Dims DimsOf(std::int64_t n, const graph::Shape& shape);

// Gradients of a layer with weights. `bias` is empty for a layer without.
struct LayerGradients {
  Values input, weight, bias;
};

// conv.cc
Values Conv(const graph::ConvAttrs& attrs, Dims in, Dims out, View x, View weight, View bias);
LayerGradients ConvBackward(const graph::ConvAttrs& attrs, Dims in, Dims out, View x, View weight,
                            View dy);

// fully_connected.cc
Values FullyConnected(Dims in, Dims out, View x, View weight, View bias);
LayerGradients FullyConnectedBackward(Dims in, Dims out, View x, View weight, View dy);

// pool.cc
Values MaxPool(const graph::PoolAttrs& attrs, Dims in, Dims out, View x);
// The first of several equal maxima, in scan order, gets the whole gradient.
Values MaxPoolBackward(const graph::PoolAttrs& attrs, Dims in, Dims out, View x, View dy);
Values AvgPool(const graph::PoolAttrs& attrs, Dims in, Dims out, View x);
Values AvgPoolBackward(const graph::PoolAttrs& attrs, Dims in, Dims out, View dy);
Values GlobalAvgPool(Dims in, View x);
Values GlobalAvgPoolBackward(Dims in, View dy);

// norm.cc
//
// Mean and biased variance of each channel over the samples [begin, end).
struct Moments {
  std::int64_t begin = 0, end = 0;
  Values mean, variance;
};
// One entry for each group of `group` consecutive samples, the last perhaps smaller; group = 0
// takes all samples together.
std::vector<Moments> MomentsOfGroups(Dims in, View x, std::int64_t group);
Values BatchNorm(float epsilon, Dims in, View x, View gamma, View beta,
                 const std::vector<Moments>& moments);
LayerGradients BatchNormBackward(float epsilon, Dims in, View x, View gamma,
                                 const std::vector<Moments>& moments, View dy);
Values Lrn(const graph::LrnAttrs& attrs, Dims in, View x);
Values LrnBackward(const graph::LrnAttrs& attrs, Dims in, View x, View dy);

// elementwise.cc
Values Relu(View x);
Values ReluBackward(View x, View dy);
Values Relu6(View x);
Values Relu6Backward(View x, View dy);
Values Sum(View a, View b);
// The factor of every element: 0 or 1 / (1 - p). Forward and backward both multiply by it.
Values DropoutFactors(float probability, Dims in, const data::Batch& batch, std::uint64_t seed,
                      graph::NodeId node);
Values Product(View a, View b);

// layout.cc: operators that only move values; the backward one moves them back.
//
// Copies the channels [begin, begin + part.c) of `whole` out, or into it.
Values TakeChannels(Dims whole, Dims part, std::int64_t begin, View x);
void PutChannels(Dims whole, Dims part, std::int64_t begin, View x, Values& into);
// [groups, c / groups] channels transposed; its inverse is the shuffle by c / groups.
Values ShuffleChannels(Dims in, std::int64_t groups, View x);
// Zeros around the image; negative values crop. Its inverse is the negated padding.
Values Pad(const graph::Padding& pad, Dims in, Dims out, View x);
graph::Padding Negated(const graph::Padding& pad);

// loss.cc
struct Loss {
  double sum = 0.0;
  std::int64_t correct = 0;  // the first of several equal logits counts as the largest
  Values dlogits;            // of the sum
};
Loss SoftmaxCrossEntropy(Dims logits, View x, std::span<const std::int32_t> labels);

}  // namespace motley::engine::reference

#endif  // MOTLEY_ENGINE_REFERENCE_KERNELS_H_
