#include "motley/engine/native/reorder.h"

namespace motley::engine::native {

Reorder::Reorder(const dnnl::memory::desc& from, const dnnl::memory::desc& to,
                 const dnnl::engine& engine)
    : engine_(engine), stream_(engine), from_(from), to_(to) {
  const dnnl::reorder::primitive_desc desc(engine, from, engine, to, OwnScratchpad());
  scratch_desc_ = desc.scratchpad_desc();
  scratch_.Reset(static_cast<std::int64_t>(scratch_desc_.get_size() / sizeof(float)) + 1);
  primitive_ = dnnl::reorder(desc);
}

void Reorder::Execute(const float* from, float* to) {
  // oneDNN's memory objects take mutable pointers, also for what they only read.
  const dnnl::memory source(from_, engine_, const_cast<float*>(from));  // NOLINT
  const dnnl::memory target(to_, engine_, to);
  const dnnl::memory scratch(scratch_desc_, engine_, scratch_.data());
  primitive_.execute(
      stream_, {{DNNL_ARG_FROM, source}, {DNNL_ARG_TO, target}, {DNNL_ARG_SCRATCHPAD, scratch}});
  stream_.wait();
}

}  // namespace motley::engine::native
