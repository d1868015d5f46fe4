#ifndef MOTLEY_GRAPH_ZOO_H_
#define MOTLEY_GRAPH_ZOO_H_

#include <string>
#include <string_view>
#include <vector>

#include "motley/base/status.h"
#include "motley/graph/graph.h"

namespace motley::graph {

struct ZooEntry {
  std::string_view name;
  std::string_view about;    // one line: what it is and whose definition it follows
  Shape input;               // the shape the authors used
  std::int64_t classes = 0;  // the class count the authors used
};

// Every network that can be named, in a fixed order.
const std::vector<ZooEntry>& Zoo();

// Builds a network of the zoo for any input shape and class count that fits. Fails with the nearest
// name for an unknown one, and with the layer's name when the input is too small.
base::Result<Graph> BuildZoo(std::string_view name, const Shape& input, std::int64_t classes);

}  // namespace motley::graph

#endif  // MOTLEY_GRAPH_ZOO_H_
