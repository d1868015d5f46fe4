#ifndef MOTLEY_GRAPH_ONNX_H_
#define MOTLEY_GRAPH_ONNX_H_

#include <filesystem>
#include <string>
#include <string_view>

#include "motley/base/status.h"
#include "motley/graph/graph.h"

namespace motley::graph {

// Reads an ONNX network for training: the loss is added after its only output, and a final Softmax
// or LogSoftmax is dropped, because the loss contains it. Shape arithmetic that exporters leave
// behind is folded. Parameters keep the names of their initializers where these end in ".weight"
// or ".bias". Files may be inference or training form.
//
// Refuses an unsupported operator with its name, its node and the list of what is supported; and
// anything that the file's bytes do not back. `origin` names the file in messages.
base::Result<Model> ParseOnnx(std::string_view bytes, const std::string& origin);
base::Result<Model> ReadOnnx(const std::filesystem::path& file);

// Writes the net for inference: batch norm with running statistics, no dropout, output `logits`,
// free batch size, opset 13. Reading it back gives the same parameters under the same names.
base::Status WriteOnnx(const std::filesystem::path& file, const Model& model);

}  // namespace motley::graph

#endif  // MOTLEY_GRAPH_ONNX_H_
