#ifndef MOTLEY_TESTS_ENGINE_SMALL_GRAPHS_H_
#define MOTLEY_TESTS_ENGINE_SMALL_GRAPHS_H_

#include <functional>
#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include "motley/data/batch.h"
#include "motley/graph/graph.h"

namespace motley::engine::testing {

// Adds the operators under test after `x` and returns the last one.
using Body = std::function<graph::NodeId(graph::GraphBuilder&, graph::NodeId x)>;

// What stands around the body. A layer with weights before it makes every error of the body's data
// gradient show up as an error of that layer's weight gradient.
enum class Frame {
  kInside,  // a 1x1 convolution (or a fully connected layer) before, a fully connected layer after
  kFirst,   // the body reads the input: engines need no data gradient there, and often skip it
  kWhole,   // before as in kInside; the body ends with the logits itself
};

// One little network, named after what it tests.
struct SmallGraph {
  std::string name;
  graph::Shape shape;  // of what the body reads
  Body body;
  Frame frame = Frame::kInside;
};

// For GoogleTest, which would print the bytes.
inline void PrintTo(const SmallGraph& small, std::ostream* out) { *out << small.name; }

// Every operator, over odd shapes, and the ways in which real networks put operators together. To
// add an operator to all tests of this folder, add a line to this table.
const std::vector<SmallGraph>& SmallGraphs();

std::shared_ptr<const graph::Graph> Build(const SmallGraph& small);

// Random weights and buffers with nothing at a special value: biases are not 0, gammas not 1.
graph::Model RandomModel(const graph::Graph& graph, std::uint64_t seed);
// Normally distributed images with random labels and ids that do not start at 0.
data::Batch RandomBatch(const graph::Graph& graph, std::int64_t samples, std::uint64_t seed);

}  // namespace motley::engine::testing

#endif  // MOTLEY_TESTS_ENGINE_SMALL_GRAPHS_H_
