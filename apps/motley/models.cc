#include "apps/motley/commands.h"
#include "motley/graph/zoo.h"

namespace motley::app {

base::Result<int> Models(const ModelsArgs& args) {
  nlohmann::ordered_json json = nlohmann::ordered_json::array();
  std::string table = fmt::format("{:<16}{:>12}{:>16}{:>16}{:>9}  {}\n", "name", "parameters",
                                  "FLOP forward", "input", "classes", "what it is");
  for (const graph::ZooEntry& entry : graph::Zoo()) {
    MOTLEY_ASSIGN_OR_RETURN(const graph::Graph graph,
                            graph::BuildZoo(entry.name, entry.input, entry.classes));
    table += fmt::format("{:<16}{:>12}{:>16}{:>16}{:>9}  {}\n", entry.name,
                         Thousands(graph.parameter_count()),
                         Scaled(static_cast<double>(graph.ForwardFlops())),
                         graph::ToString(entry.input), entry.classes, entry.about);
    json.push_back({{"name", entry.name},
                    {"about", entry.about},
                    {"parameters", graph.parameter_count()},
                    {"flops_forward", graph.ForwardFlops()},
                    {"flops_backward", graph.BackwardFlops()},
                    {"input", graph::ToString(entry.input)},
                    {"classes", entry.classes}});
  }
  table +=
      "\nFLOP: per sample; a multiply-add counts as two. Each network adapts to the input size "
      "and\n"
      "class count of the data. Choose one with --set model.zoo=NAME.\n";
  fmt::print("{}", args.json ? Dump(json) + "\n" : table);
  return kExitDone;
}

}  // namespace motley::app
