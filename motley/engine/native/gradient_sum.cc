#include "motley/engine/native/gradient_sum.h"

#include <algorithm>

#include "motley/engine/native/kernel.h"

namespace motley::engine::native {

GradientSum::GradientSum(const graph::Graph& graph, Parameters& parameters, const Gemm& gemm)
    : graph_(graph),
      parameters_(parameters),
      gemm_(gemm),
      inputs_(graph.parameters().size()),
      gradients_(graph.parameters().size()),
      factors_(graph.parameters().size()),
      progress_(graph.nodes().size()) {
  for (graph::NodeId node = graph_.size(); node-- > 0;) {
    if (!graph_.parameters_of(node).empty()) order_.push_back(node);
  }
}

void GradientSum::Begin(int pieces, int lanes, const StepRequest& request) {
  piece_count_ = pieces;
  parts_ = lanes;
  request_ = &request;
  unsummed_.emplace(lanes * static_cast<int>(order_.size()));
  come_by_.assign(static_cast<std::size_t>(lanes), 0);
  for (Progress& progress : progress_) {
    progress.arrived = 0;
    progress.taken = 0;
    progress.summed = 0;
  }
  const std::size_t parameters = graph_.parameters().size();
  for (std::size_t p = 0; p < parameters; ++p) {
    factors_[p] = {};
    if (!parameters_.LeftAsFactors(static_cast<int>(p))) continue;
    const graph::Shape& shape = graph_.parameters()[p].shape;
    inputs_[p].Grow(request.batch->size() * shape[1]);
    gradients_[p].Grow(request.batch->size() * shape[0]);
    factors_[p] = {inputs_[p].data(), gradients_[p].data()};
  }
  while (pieces_.size() < static_cast<std::size_t>(pieces)) pieces_.emplace_back();
  targets_.resize(pieces_.size());
  for (std::size_t piece = 0; piece < static_cast<std::size_t>(pieces); ++piece) {
    Piece& own = pieces_[piece];
    own.memory.resize(parameters);
    targets_[piece].assign(parameters, nullptr);
    for (std::size_t p = 0; p < parameters; ++p) {
      const int index = static_cast<int>(p);
      if (parameters_.LeftAsFactors(index)) continue;
      if (piece == 0 && parameters_.GradientIsPlain(index)) {
        targets_[piece][p] = request.gradient.data() + graph_.parameters()[p].offset;
        continue;
      }
      own.memory[p].Grow(parameters_.GradientSize(index));
      targets_[piece][p] = own.memory[p].data();
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
  const Progress& progress = progress_[static_cast<std::size_t>(node)];
  return progress.arrived.load(std::memory_order_acquire) == piece_count_;
}

void GradientSum::Leave(int piece, graph::NodeId node, bool contributes) {
  pieces_[static_cast<std::size_t>(piece)].contributes.store(contributes,
                                                             std::memory_order_relaxed);
  progress_[static_cast<std::size_t>(node)].arrived.fetch_add(1, std::memory_order_acq_rel);
}

void GradientSum::SumSome(int lane) {
  std::size_t& next = come_by_[static_cast<std::size_t>(lane)];
  while (next < order_.size() && Complete(order_[next])) SumPart(order_[next++]);
}

void GradientSum::Finish() {
  for (const graph::NodeId node : order_) {
    while (SumPart(node)) {
    }
  }
  unsummed_->Wait();
}

bool GradientSum::SumPart(graph::NodeId node) {
  Progress& progress = progress_[static_cast<std::size_t>(node)];
  const int part = progress.taken.fetch_add(1, std::memory_order_relaxed);
  if (part >= parts_) return false;
  for (const int index : graph_.parameters_of(node)) {
    if (parameters_.LeftAsFactors(index)) {
      Multiply(index, part);
    } else {
      SumParameter(index, part);
    }
  }
  if (progress.summed.fetch_add(1, std::memory_order_acq_rel) + 1 == parts_) Announce(node);
  unsummed_->CountDown();
  return true;
}

void GradientSum::Announce(graph::NodeId node) {
  if (!request_->on_bucket) return;
  const std::vector<int> indices = graph_.parameters_of(node);
  const graph::Tensor& first = graph_.parameters()[static_cast<std::size_t>(indices.front())];
  const graph::Tensor& last = graph_.parameters()[static_cast<std::size_t>(indices.back())];
  const std::lock_guard lock(bucket_mutex_);
  request_->on_bucket(first.offset, last.offset + last.size - first.offset);
}

void GradientSum::AnnounceFinal(std::int64_t offset, std::int64_t count) const {
  if (request_->on_final && count > 0) request_->on_final(offset, count);
}

// Rows of the gradient: its output neurons.
void GradientSum::Multiply(int index, int part) const {
  const graph::Tensor& tensor = graph_.parameters()[static_cast<std::size_t>(index)];
  const std::int64_t out = tensor.shape[0], in = tensor.shape[1];
  const std::int64_t begin = out * part / parts_, end = out * (part + 1) / parts_;
  if (begin == end) return;
  const GradientFactors& factors = factors_[static_cast<std::size_t>(index)];
  const std::int64_t offset = tensor.offset + begin * in;
  gemm_(Use::kTransposed, Use::kPlain, end - begin, in, request_->batch->size(),
        factors.gradient + begin, out, factors.input, in, 0.0F, request_->gradient.data() + offset,
        in);
  AnnounceFinal(offset, (end - begin) * in);
}

// Canonical gradients in ranges; others, which must be converted as a whole, by turns.
void GradientSum::SumParameter(int index, int part) {
  const graph::Tensor& tensor = graph_.parameters()[static_cast<std::size_t>(index)];
  if (!parameters_.GradientIsPlain(index)) {
    if (index % parts_ != part) return;
    SumRange(index, 0, parameters_.GradientSize(index));
    AnnounceFinal(tensor.offset, tensor.size);
    return;
  }
  const std::int64_t begin = tensor.size * part / parts_, end = tensor.size * (part + 1) / parts_;
  SumRange(index, begin, end);
  AnnounceFinal(tensor.offset + begin, end - begin);
}

void GradientSum::SumRange(int index, std::int64_t begin, std::int64_t end) {
  const graph::Tensor& tensor = graph_.parameters()[static_cast<std::size_t>(index)];
  float* const canonical = request_->gradient.data() + tensor.offset;
  float* sum = nullptr;
  for (std::size_t piece = 0; piece < static_cast<std::size_t>(piece_count_); ++piece) {
    if (!pieces_[piece].contributes.load(std::memory_order_relaxed)) continue;
    float* const part = targets_[piece][static_cast<std::size_t>(index)];
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
