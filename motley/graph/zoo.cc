#include "motley/graph/zoo.h"

#include <algorithm>
#include <numeric>

#include "motley/graph/zoo_nets.h"

namespace motley::graph {
namespace {

using base::InvalidInput;
using base::NotFound;
using base::Result;

using Build = Result<Graph> (*)(const zoo::NetSpec&);

struct Net {
  ZooEntry entry;
  Build build;
};

const std::vector<Net>& Nets() {
  static const std::vector<Net> nets = {
      {{"lenet", "LeNet as Caffe has it (20/50/500), for digits", {1, 28, 28}, 10}, zoo::Lenet},
      {{"cifar_quick", "Caffe's quick net for CIFAR-10", {3, 32, 32}, 10}, zoo::CifarQuick},
      {{"caffenet", "AlexNet as Caffe trains it: groups and LRN", {3, 227, 227}, 1000},
       zoo::Caffenet},
      {{"alexnet", "AlexNet in one tower, as torchvision has it", {3, 224, 224}, 1000},
       zoo::Alexnet},
      {{"resnet18", "residual net of 18 layers, torchvision's", {3, 224, 224}, 1000},
       zoo::Resnet18},
      {{"resnet18_cifar", "resnet18 with a 3x3 stem and no max pool", {3, 32, 32}, 10},
       zoo::Resnet18Cifar},
      {{"resnet50", "residual net of 50 layers, torchvision's", {3, 224, 224}, 1000},
       zoo::Resnet50},
      {{"mobilenet_v2", "inverted residuals, torchvision's", {3, 224, 224}, 1000},
       zoo::MobilenetV2},
      {{"squeezenet",
        "SqueezeNet 1.1, torchvision's; no fully connected layer",
        {3, 224, 224},
        1000},
       zoo::Squeezenet},
      {{"inception_v3",
        "Inception v3 without its auxiliary head, torchvision's",
        {3, 299, 299},
        1000},
       zoo::InceptionV3},
      {{"shufflenet_v2", "ShuffleNet v2 x1.0, torchvision's", {3, 224, 224}, 1000},
       zoo::ShufflenetV2},
      {{"nasnet_mobile", "NASNet-A (4 @ 1056), as Keras has it", {3, 224, 224}, 1000},
       zoo::NasnetMobile},
  };
  return nets;
}

// Levenshtein's distance: insertions, deletions and replacements between two words.
std::size_t EditDistance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), std::size_t{0});
  for (std::size_t i = 1; i <= a.size(); ++i) {
    std::size_t diagonal = row[0];
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t replace = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, replace});
    }
  }
  return row[b.size()];
}

std::string_view NearestName(std::string_view name) {
  // A long wrong name is no typing mistake; its head is enough to choose by.
  name = name.substr(0, 64);
  const auto& nets = Nets();
  return std::min_element(nets.begin(), nets.end(),
                          [&](const Net& a, const Net& b) {
                            return EditDistance(name, a.entry.name) <
                                   EditDistance(name, b.entry.name);
                          })
      ->entry.name;
}

base::Status CheckFits(std::string_view name, const Shape& input, std::int64_t classes) {
  constexpr std::int64_t kMaxExtent = 1 << 16;
  constexpr std::int64_t kMaxClasses = 1 << 24;
  if (input.size() != 3 || std::any_of(input.begin(), input.end(), [](std::int64_t extent) {
        return extent < 1 || extent > kMaxExtent;
      })) {
    return InvalidInput("{}: an input of {} is no image", name, ToString(input))
        .WithFix("give channels x height x width, for example 3x224x224");
  }
  if (classes < 2 || classes > kMaxClasses) {
    return InvalidInput("{}: {} classes are not between 2 and {}", name, classes, kMaxClasses);
  }
  return {};
}

}  // namespace

const std::vector<ZooEntry>& Zoo() {
  static const std::vector<ZooEntry> entries = [] {
    std::vector<ZooEntry> list;
    for (const Net& net : Nets()) list.push_back(net.entry);
    return list;
  }();
  return entries;
}

Result<Graph> BuildZoo(std::string_view name, const Shape& input, std::int64_t classes) {
  const auto& nets = Nets();
  const auto net = std::find_if(nets.begin(), nets.end(),
                                [&](const Net& known) { return known.entry.name == name; });
  if (net == nets.end()) {
    return NotFound("the zoo has no network '{}'", name)
        .WithFix(fmt::format("did you mean '{}'?", NearestName(name)));
  }
  MOTLEY_RETURN_IF_ERROR(CheckFits(name, input, classes));
  return net->build({std::string(name), input, static_cast<int>(classes)});
}

}  // namespace motley::graph
