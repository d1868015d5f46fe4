#include "motley/engine/native/gradient_sum.h"

#include <algorithm>

#include "motley/engine/native/kernel.h"

namespace motley::engine::native {

GradientSum::GradientSum(const graph::Graph& graph, Parameters& parameters, int lanes)
    : graph_(graph),
      parameters_(parameters),
      memory_(static_cast<std::size_t>(lanes)),
      targets_(static_cast<std::size_t>(lanes)),
      arrived_(graph.nodes().size()),
      contributes_(static_cast<std::size_t>(lanes)) {}

void GradientSum::Begin(int lanes, float* canonical, const OnBucket* on_bucket) {
  lanes_ = lanes;
  canonical_ = canonical;
  on_bucket_ = on_bucket;
  for (auto& count : arrived_) count.store(0, std::memory_order_relaxed);
  const std::size_t parameters = graph_.parameters().size();
  for (std::size_t lane = 0; lane < static_cast<std::size_t>(lanes); ++lane) {
    memory_[lane].resize(parameters);
    targets_[lane].resize(parameters);
    for (std::size_t p = 0; p < parameters; ++p) {
      const int index = static_cast<int>(p);
      if (lane == 0 && parameters_.GradientIsPlain(index)) {
        targets_[lane][p] = canonical + graph_.parameters()[p].offset;
        continue;
      }
      const std::int64_t size = parameters_.GradientSize(index);
      if (memory_[lane][p].size() != size) memory_[lane][p].Reset(size);
      targets_[lane][p] = memory_[lane][p].data();
    }
  }
}

void GradientSum::Leave(int lane, graph::NodeId node, bool contributes) {
  contributes_[static_cast<std::size_t>(lane)].store(contributes, std::memory_order_relaxed);
  auto& arrived = arrived_[static_cast<std::size_t>(node)];
  if (arrived.fetch_add(1, std::memory_order_acq_rel) + 1 == lanes_) Sum(node);
}

void GradientSum::Sum(graph::NodeId node) {
  const std::vector<int> indices = graph_.parameters_of(node);
  for (const int index : indices) SumParameter(index);
  if (on_bucket_ == nullptr || !*on_bucket_) return;
  const graph::Tensor& first = graph_.parameters()[static_cast<std::size_t>(indices.front())];
  const graph::Tensor& last = graph_.parameters()[static_cast<std::size_t>(indices.back())];
  const std::lock_guard lock(bucket_mutex_);
  (*on_bucket_)(first.offset, last.offset + last.size - first.offset);
}

void GradientSum::SumParameter(int index) {
  const graph::Tensor& tensor = graph_.parameters()[static_cast<std::size_t>(index)];
  const std::int64_t size = parameters_.GradientSize(index);
  float* const canonical = canonical_ + tensor.offset;
  float* sum = nullptr;
  for (std::size_t lane = 0; lane < static_cast<std::size_t>(lanes_); ++lane) {
    if (!contributes_[lane].load(std::memory_order_relaxed)) continue;
    float* const part = targets_[lane][static_cast<std::size_t>(index)];
    if (sum == nullptr) {
      sum = part;
    } else {
      AddTo(sum, part, size);
    }
  }
  if (sum == nullptr) {
    std::fill_n(canonical, tensor.size, 0.0F);
  } else if (!parameters_.GradientIsPlain(index)) {
    parameters_.ExportGradient(index, sum, canonical);
  } else if (sum != canonical) {
    std::copy_n(sum, size, canonical);
  }
}

}  // namespace motley::engine::native
