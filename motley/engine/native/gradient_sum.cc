#include "motley/engine/native/gradient_sum.h"

#include <algorithm>

#include "motley/engine/native/kernel.h"

namespace motley::engine::native {

GradientSum::GradientSum(const graph::Graph& graph, Parameters& parameters, const Gemm& gemm,
                         int lanes)
    : graph_(graph),
      parameters_(parameters),
      gemm_(gemm),
      state_(static_cast<std::size_t>(lanes)),
      targets_(static_cast<std::size_t>(lanes)),
      inputs_(graph.parameters().size()),
      gradients_(graph.parameters().size()),
      factors_(graph.parameters().size()),
      arrived_(graph.nodes().size()),
      summed_(graph.nodes().size()) {}

void GradientSum::Begin(int lanes, std::int64_t samples, float* canonical,
                        const OnBucket* on_bucket) {
  lanes_ = lanes;
  samples_ = samples;
  canonical_ = canonical;
  on_bucket_ = on_bucket;
  for (auto& count : arrived_) count.store(0, std::memory_order_relaxed);
  for (auto& count : summed_) count.store(0, std::memory_order_relaxed);
  const std::size_t parameters = graph_.parameters().size();
  for (std::size_t p = 0; p < parameters; ++p) {
    factors_[p] = {};
    if (!parameters_.LeftAsFactors(static_cast<int>(p))) continue;
    const graph::Shape& shape = graph_.parameters()[p].shape;
    inputs_[p].Grow(samples * shape[1]);
    gradients_[p].Grow(samples * shape[0]);
    factors_[p] = {inputs_[p].data(), gradients_[p].data()};
  }
  for (std::size_t lane = 0; lane < static_cast<std::size_t>(lanes); ++lane) {
    Lane& own = state_[lane];
    own.left.clear();
    own.summed = 0;
    own.memory.resize(parameters);
    targets_[lane].assign(parameters, nullptr);
    for (std::size_t p = 0; p < parameters; ++p) {
      const int index = static_cast<int>(p);
      if (parameters_.LeftAsFactors(index)) continue;
      if (lane == 0 && parameters_.GradientIsPlain(index)) {
        targets_[lane][p] = canonical + graph_.parameters()[p].offset;
        continue;
      }
      own.memory[p].Grow(parameters_.GradientSize(index));
      targets_[lane][p] = own.memory[p].data();
    }
  }
}

void GradientSum::SkipSamples(std::int64_t begin, std::int64_t end) {
  for (std::size_t p = 0; p < factors_.size(); ++p) {
    if (factors_[p].input == nullptr) continue;
    const graph::Shape& shape = graph_.parameters()[p].shape;
    std::fill(factors_[p].input + begin * shape[1], factors_[p].input + end * shape[1], 0.0F);
    std::fill(factors_[p].gradient + begin * shape[0], factors_[p].gradient + end * shape[0], 0.0F);
  }
}

bool GradientSum::Complete(graph::NodeId node) const {
  return arrived_[static_cast<std::size_t>(node)].load(std::memory_order_acquire) == lanes_;
}

void GradientSum::Leave(int lane, graph::NodeId node, bool contributes) {
  Lane& own = state_[static_cast<std::size_t>(lane)];
  own.contributes.store(contributes, std::memory_order_relaxed);
  own.left.push_back(node);
  arrived_[static_cast<std::size_t>(node)].fetch_add(1, std::memory_order_acq_rel);
  while (own.summed < own.left.size() && Complete(own.left[own.summed])) {
    SumPart(lane, own.left[own.summed++]);
  }
}

void GradientSum::Finish(int lane) {
  Lane& own = state_[static_cast<std::size_t>(lane)];
  while (own.summed < own.left.size()) SumPart(lane, own.left[own.summed++]);
}

void GradientSum::SumPart(int lane, graph::NodeId node) {
  for (const int index : graph_.parameters_of(node)) {
    if (parameters_.LeftAsFactors(index)) {
      Multiply(index, lane);
    } else {
      SumParameter(index, lane);
    }
  }
  auto& summed = summed_[static_cast<std::size_t>(node)];
  if (summed.fetch_add(1, std::memory_order_acq_rel) + 1 == lanes_) Announce(node);
}

void GradientSum::Announce(graph::NodeId node) {
  if (on_bucket_ == nullptr || !*on_bucket_) return;
  const std::vector<int> indices = graph_.parameters_of(node);
  const graph::Tensor& first = graph_.parameters()[static_cast<std::size_t>(indices.front())];
  const graph::Tensor& last = graph_.parameters()[static_cast<std::size_t>(indices.back())];
  const std::lock_guard lock(bucket_mutex_);
  (*on_bucket_)(first.offset, last.offset + last.size - first.offset);
}

// Rows of the gradient: its output neurons.
void GradientSum::Multiply(int index, int part) const {
  const graph::Tensor& tensor = graph_.parameters()[static_cast<std::size_t>(index)];
  const std::int64_t out = tensor.shape[0], in = tensor.shape[1];
  const std::int64_t begin = out * part / lanes_, end = out * (part + 1) / lanes_;
  if (begin == end) return;
  const GradientFactors& factors = factors_[static_cast<std::size_t>(index)];
  gemm_(Use::kTransposed, Use::kPlain, end - begin, in, samples_, factors.gradient + begin, out,
        factors.input, in, 0.0F, canonical_ + tensor.offset + begin * in, in);
}

// Canonical gradients in ranges; others, which must be converted as a whole, by turns.
void GradientSum::SumParameter(int index, int part) {
  if (!parameters_.GradientIsPlain(index)) {
    if (index % lanes_ == part) SumRange(index, 0, parameters_.GradientSize(index));
    return;
  }
  const std::int64_t size = graph_.parameters()[static_cast<std::size_t>(index)].size;
  SumRange(index, size * part / lanes_, size * (part + 1) / lanes_);
}

void GradientSum::SumRange(int index, std::int64_t begin, std::int64_t end) {
  const graph::Tensor& tensor = graph_.parameters()[static_cast<std::size_t>(index)];
  float* const canonical = canonical_ + tensor.offset;
  float* sum = nullptr;
  for (std::size_t lane = 0; lane < static_cast<std::size_t>(lanes_); ++lane) {
    if (!state_[lane].contributes.load(std::memory_order_relaxed)) continue;
    float* const part = targets_[lane][static_cast<std::size_t>(index)];
    if (sum == nullptr) {
      sum = part;
    } else {
      AddTo(sum + begin, part + begin, end - begin);
    }
  }
  const bool plain = parameters_.GradientIsPlain(index);
  if (sum == nullptr) {
    std::fill(canonical + (plain ? begin : 0), canonical + (plain ? end : tensor.size), 0.0F);
  } else if (!plain) {
    parameters_.ExportGradient(index, sum, canonical);
  } else if (sum != canonical) {
    std::copy(sum + begin, sum + end, canonical + begin);
  }
}

}  // namespace motley::engine::native
