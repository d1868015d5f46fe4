// One training step of a network of the zoo, through the installed headers and libraries.

#include <cstdio>
#include <memory>
#include <vector>

#include "motley/engine/native/native_device.h"
#include "motley/graph/zoo.h"
#include "motley/optim/sgd.h"

int main() {
  using namespace motley;
  auto graph = graph::BuildZoo("lenet", {1, 28, 28}, 10);
  if (!graph.ok()) return 1;
  graph::Model model = graph::InitialModel(std::move(graph).value(), 1);
  auto device = engine::native::MakeNativeDevice(
      std::make_shared<const graph::Graph>(model.graph), {.threads = 1});
  if (!device.ok()) return 1;
  data::Batch batch;
  batch.images.assign(4 * 28 * 28, 0.5F);
  batch.labels = {1, 2, 3, 4};
  batch.ids = {0, 1, 2, 3};
  std::vector<float> gradient(model.weights.size()), velocity(model.weights.size());
  engine::StepRequest request;
  request.weights = model.weights;
  request.batch = &batch;
  request.gradient = gradient;
  const auto result = (*device)->Step(request);
  if (!result.ok() || result->samples_done != 4) return 1;
  optim::SgdUpdate({}, gradient, result->samples_done, model.weights, velocity);
  std::printf("loss %.4f\n", result->loss_sum / 4);
  return 0;
}
