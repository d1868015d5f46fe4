#include "motley/run/evaluate.h"

#include <algorithm>
#include <numeric>
#include <utility>
#include <vector>

#include "motley/data/loader.h"

namespace motley::run {

base::Result<Evaluation> Evaluate(engine::Device& device, std::span<const float> weights,
                                  std::span<const float> buffers,
                                  std::shared_ptr<const data::Dataset> dataset,
                                  const data::Transform& transform, std::int64_t batch,
                                  int loader_threads, const std::atomic<bool>* cancel) {
  MOTLEY_CHECK(batch > 0, "a batch of {}", batch);
  if (dataset->size() <= 0) return base::InvalidInput("the test set is empty");
  MOTLEY_RETURN_IF_ERROR(transform.Check(*dataset).In("test data"));
  constexpr std::int64_t kAhead = 4;
  const std::int64_t size = dataset->size();
  data::Loader loader(std::move(dataset), transform, {.threads = loader_threads, .seed = 0});
  std::int64_t submitted = 0, correct = 0;
  double loss_sum = 0.0;
  for (std::int64_t done = 0; done < size;) {
    if (cancel != nullptr && cancel->load()) return base::Cancelled("evaluation interrupted");
    while (submitted < size && loader.pending() < kAhead) {
      std::vector<data::SampleId> ids(static_cast<std::size_t>(std::min(batch, size - submitted)));
      std::iota(ids.begin(), ids.end(), static_cast<data::SampleId>(submitted));
      submitted += static_cast<std::int64_t>(ids.size());
      loader.Submit(std::move(ids), /*epoch=*/0);
    }
    MOTLEY_ASSIGN_OR_RETURN(const data::Batch samples, loader.Next());
    MOTLEY_ASSIGN_OR_RETURN(
        const engine::StepResult result,
        device.Forward({.weights = weights, .buffers = buffers, .batch = &samples, .logits = {}}));
    if (result.samples_done != samples.size()) {
      return base::Internal("device '{}' evaluated {} of {} samples", device.kind(),
                            result.samples_done, samples.size());
    }
    loss_sum += result.loss_sum;
    correct += result.correct;
    done += samples.size();
  }
  const auto count = static_cast<double>(size);
  return Evaluation{loss_sum / count, static_cast<double>(correct) / count, size};
}

}  // namespace motley::run
