#include "motley/engine/native/parameters.h"

#include <algorithm>

namespace motley::engine::native {
namespace {

std::int64_t Floats(const dnnl::memory::desc& desc) {
  return static_cast<std::int64_t>(desc.get_size() / sizeof(float));
}

}  // namespace

Parameters::Parameters(const graph::Graph& graph, dnnl::engine engine)
    : graph_(graph),
      engine_(std::move(engine)),
      gradients_(graph.parameters().size()),
      as_factors_(graph.parameters().size()) {}

float* Parameters::Copy(int index, const dnnl::memory::desc& plain,
                        const dnnl::memory::desc& layout, bool backward_only) {
  for (const auto& entry : copies_) {
    if (entry->index == index && entry->layout == layout) {
      entry->backward_only = entry->backward_only && backward_only;
      return entry->values.data();
    }
  }
  auto entry = std::make_unique<CopyEntry>();
  entry->index = index;
  entry->layout = layout;
  entry->backward_only = backward_only;
  entry->values.Reset(Floats(layout));
  entry->reorder = Reorder(plain, layout, engine_);
  copies_.push_back(std::move(entry));
  return copies_.back()->values.data();
}

void Parameters::Refresh(int i, const float* weights, bool training) {
  CopyEntry& entry = *copies_[static_cast<std::size_t>(i)];
  if (entry.backward_only && !training) return;
  const auto offset = graph_.parameters()[static_cast<std::size_t>(entry.index)].offset;
  entry.reorder.Execute(weights + offset, entry.values.data());
}

void Parameters::SetGradientLayout(int index, const dnnl::memory::desc& plain,
                                   const dnnl::memory::desc& layout) {
  auto& entry = gradients_[static_cast<std::size_t>(index)];
  if (entry.has_value() || plain == layout) return;
  std::int64_t size = 1;
  for (const std::int64_t dim : plain.dims()) size *= dim;
  const bool is_part = size < graph_.parameters()[static_cast<std::size_t>(index)].size;
  entry = GradientEntry{layout, Reorder(layout, plain, engine_), is_part};
}

std::int64_t Parameters::GradientSize(int index) const {
  const auto& entry = gradients_[static_cast<std::size_t>(index)];
  return entry.has_value() ? Floats(entry->layout)
                           : graph_.parameters()[static_cast<std::size_t>(index)].size;
}

bool Parameters::GradientIsPlain(int index) const {
  return !gradients_[static_cast<std::size_t>(index)].has_value();
}

void Parameters::ExportGradient(int index, const float* gradient, float* canonical) {
  auto& entry = gradients_[static_cast<std::size_t>(index)];
  MOTLEY_CHECK(entry.has_value(), "gradient {} is canonical already", index);
  if (entry->is_part) {
    std::fill_n(canonical, graph_.parameters()[static_cast<std::size_t>(index)].size, 0.0F);
  }
  entry->reorder.Execute(gradient, canonical);
}

}  // namespace motley::engine::native
