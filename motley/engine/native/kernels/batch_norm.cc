// Batch norm over the samples of all lanes. Each lane reduces its own samples; lanes exchange
// their partial results at a barrier and each combines all of them, in lane order, so that every
// lane gets the same numbers.

#include <algorithm>
#include <cmath>

#include "motley/engine/native/kernels/kernels.h"

namespace motley::engine::native {
namespace {

// Adds f(offset) over the pixels of one plane to sums[channel of the plane]. Floats are summed in
// short runs and the runs in double, so that large images lose no digits.
template <int kWidth, typename F>
void SumBlock(std::int64_t offset, std::int64_t pixels, std::int64_t stride, const F& f,
              double* sums) {
  constexpr std::int64_t kRun = 256;
  for (std::int64_t begin = 0; begin < pixels; begin += kRun) {
    const std::int64_t end = std::min(begin + kRun, pixels);
    float partial[kWidth] = {};
    for (std::int64_t s = begin; s < end; ++s) {
      for (int i = 0; i < kWidth; ++i) partial[i] += f(offset + s * stride + i, i);
    }
    for (int i = 0; i < kWidth; ++i) sums[i] += static_cast<double>(partial[i]);
  }
}

// The same for a plain plane: one channel, pixels side by side, summed 16 wide.
template <typename F>
void SumPlane(std::int64_t offset, std::int64_t pixels, const F& f, double* sum) {
  constexpr int kWidth = 16;
  const std::int64_t whole = pixels / kWidth * kWidth;
  double sums[kWidth] = {};
  SumBlock<kWidth>(
      offset, whole / kWidth, kWidth, [&](std::int64_t at, int) { return f(at, 0); }, sums);
  for (const double part : sums) *sum += part;
  for (std::int64_t s = whole; s < pixels; ++s) *sum += static_cast<double>(f(offset + s, 0));
}

// sums[c] += f(offset, c) over all samples and pixels of each channel (padding channels included).
template <typename F>
void SumChannels(const Layout& l, const F& f, double* sums) {
  const std::int64_t pixels = l.pixels();
  for (std::int64_t n = 0; n < l.n; ++n) {
    for (std::int64_t o = 0; o < l.outer(); ++o) {
      const std::int64_t base = (n * l.outer() + o) * pixels * l.inner;
      const std::int64_t c = o * l.inner;
      if (l.inner == 1) {
        SumPlane(
            base, pixels, [&](std::int64_t at, int) { return f(at, c); }, sums + c);
        continue;
      }
      std::int64_t i = 0;
      for (; i + 16 <= l.inner; i += 16) {
        SumBlock<16>(
            base + i, pixels, l.inner, [&](std::int64_t at, int k) { return f(at, c + i + k); },
            sums + c + i);
      }
      for (; i + 8 <= l.inner; i += 8) {
        SumBlock<8>(
            base + i, pixels, l.inner, [&](std::int64_t at, int k) { return f(at, c + i + k); },
            sums + c + i);
      }
      for (; i < l.inner; ++i) {
        SumBlock<1>(
            base + i, pixels, l.inner, [&](std::int64_t at, int) { return f(at, c + i); },
            sums + c + i);
      }
    }
  }
}

// Calls visit(offset, channel) for every element, padding channels included.
template <typename Visit>
void ForEachElement(const Layout& l, const Visit& visit) {
  for (std::int64_t n = 0; n < l.n; ++n) {
    for (std::int64_t o = 0; o < l.outer(); ++o) {
      const std::int64_t base = (n * l.outer() + o) * l.pixels() * l.inner;
      const std::int64_t c = o * l.inner;
      if (l.inner == 1) {
        for (std::int64_t s = 0; s < l.pixels(); ++s) visit(base + s, c);
        continue;
      }
      for (std::int64_t s = 0; s < l.pixels(); ++s) {
        const std::int64_t at = base + s * l.inner;
        for (std::int64_t i = 0; i < l.inner; ++i) visit(at + i, c + i);
      }
    }
  }
}

class BatchNorm final : public Kernel {
 public:
  BatchNorm(const KernelContext& context, int ordinal)
      : layout_(context.in[0]),
        padded_(layout_.outer() * layout_.inner),
        training_(context.training),
        epsilon_(context.node().batch_norm().epsilon),
        ordinal_(ordinal),
        weight_index_(context.graph.parameters_of(context.id).front()),
        weight_offset_(context.graph.parameters()[static_cast<std::size_t>(weight_index_)].offset) {
    const int buffer = context.graph.buffers_of(context.id).front();
    buffer_offset_ = context.graph.buffers()[static_cast<std::size_t>(buffer)].offset;
  }

  // Workspace: mean, then 1 / deviation. Scratch: coefficients of one pass.
  KernelNeeds needs() const override {
    return {
        .input_in_backward = true, .workspace_floats = 2 * padded_, .scratch_floats = 3 * padded_};
  }

  void Forward(LaneRun& run) override {
    if (training_) {
      BatchStatistics(run);
    } else {
      RunningStatistics(run);
    }
    Normalise(run);
  }

  void Backward(LaneRun& run) override;

 private:
  float* mean() const { return b_.workspace; }
  float* inverse() const { return b_.workspace + padded_; }
  const float* gamma(const LaneRun& run) const { return run.weights + weight_offset_; }

  void RunningStatistics(const LaneRun& run) const {
    const float* const running = run.buffers + buffer_offset_;
    for (std::int64_t c = 0; c < layout_.c; ++c) {
      const auto variance = static_cast<double>(running[layout_.c + c]);
      SetStatistics(c, static_cast<double>(running[c]), variance);
    }
  }

  void SetStatistics(std::int64_t c, double mean_value, double variance) const {
    mean()[c] = static_cast<float>(mean_value);
    inverse()[c] = static_cast<float>(1.0 / std::sqrt(variance + static_cast<double>(epsilon_)));
  }

  void BatchStatistics(LaneRun& run) const;
  void Normalise(const LaneRun& run) const;
  // This lane's [mean, squared deviations] per channel.
  std::vector<double> LaneMoments() const;

  Layout layout_;
  std::int64_t padded_;
  bool training_;
  float epsilon_;
  int ordinal_;
  int weight_index_;
  std::int64_t weight_offset_, buffer_offset_ = 0;
};

std::vector<double> BatchNorm::LaneMoments() const {
  const float* const x = b_.in[0];
  const auto count = static_cast<double>(layout_.n * layout_.pixels());
  std::vector<double> moments(static_cast<std::size_t>(2 * padded_), 0.0);
  SumChannels(
      layout_, [x](std::int64_t at, std::int64_t) { return x[at]; }, moments.data());
  float* const centre = b_.scratch;
  for (std::int64_t c = 0; c < padded_; ++c) {
    centre[c] = static_cast<float>(moments[static_cast<std::size_t>(c)] / count);
  }
  // Deviations from the rounded mean; the rest is corrected exactly below.
  SumChannels(
      layout_,
      [x, centre](std::int64_t at, std::int64_t c) {
        const float d = x[at] - centre[c];
        return d * d;
      },
      moments.data() + padded_);
  for (std::int64_t c = 0; c < padded_; ++c) {
    double& sum = moments[static_cast<std::size_t>(c)];
    sum /= count;
    const double shift = sum - static_cast<double>(centre[c]);
    moments[static_cast<std::size_t>(padded_ + c)] -= count * shift * shift;
  }
  return moments;
}

void BatchNorm::BatchStatistics(LaneRun& run) const {
  std::vector<std::vector<double>> single;
  std::vector<std::int64_t> single_count;
  std::span<const std::vector<double>> moments;
  std::span<const std::int64_t> counts;
  const std::int64_t mine = layout_.n * layout_.pixels();
  if (run.barrier == nullptr) {
    single.push_back(LaneMoments());
    single_count.push_back(mine);
    moments = single;
    counts = single_count;
  } else {
    BatchNormMeeting& meeting = run.meetings[static_cast<std::size_t>(ordinal_)];
    meeting.forward[static_cast<std::size_t>(run.lane)] = LaneMoments();
    meeting.counts[static_cast<std::size_t>(run.lane)] = mine;
    run.barrier->Wait();
    moments = std::span(meeting.forward).first(static_cast<std::size_t>(run.lanes));
    counts = std::span(meeting.counts).first(static_cast<std::size_t>(run.lanes));
  }
  // Running sums: once for all lanes together, or by each lane for its own batch.
  const bool reports = run.barrier == nullptr || run.lane == 0;
  std::int64_t total = 0;
  for (const std::int64_t count : counts) total += count;
  const auto samples = static_cast<double>(total / layout_.pixels());
  for (std::int64_t c = 0; c < layout_.c; ++c) {
    // Chan's combination of partial moments.
    double count = 0.0, mean_value = 0.0, squares = 0.0;
    for (std::size_t lane = 0; lane < counts.size(); ++lane) {
      const auto added = static_cast<double>(counts[lane]);
      const double delta = moments[lane][static_cast<std::size_t>(c)] - mean_value;
      squares += moments[lane][static_cast<std::size_t>(padded_ + c)] +
                 delta * delta * count * added / (count + added);
      mean_value += delta * added / (count + added);
      count += added;
    }
    SetStatistics(c, mean_value, squares / count);
    if (!reports) continue;
    const double unbiased = count > 1.0 ? squares / (count - 1.0) : squares / count;
    float* const sums = run.buffer_sums + buffer_offset_ + c;
    sums[0] += static_cast<float>(samples * mean_value);
    sums[layout_.c] += static_cast<float>(samples * unbiased);
  }
}

void BatchNorm::Normalise(const LaneRun& run) const {
  const float* const x = b_.in[0];
  float* const y = b_.out;
  float* const scale = b_.scratch;
  float* const shift = b_.scratch + padded_;
  const float* const centre = mean();
  for (std::int64_t c = layout_.c; c < padded_; ++c) mean()[c] = inverse()[c] = 0.0F;
  std::fill_n(scale, 2 * padded_, 0.0F);
  for (std::int64_t c = 0; c < layout_.c; ++c) {
    scale[c] = gamma(run)[c] * inverse()[c];
    shift[c] = gamma(run)[layout_.c + c];
  }
  ForEachElement(layout_, [=](std::int64_t at, std::int64_t c) {
    y[at] = (x[at] - centre[c]) * scale[c] + shift[c];
  });
}

void BatchNorm::Backward(LaneRun& run) {
  const float* const x = b_.in[0];
  const float* const dy = b_.out_grad;
  const float* const centre = mean();
  // Sums over this lane: dy, and dy * (x - mean).
  std::vector<double> sums(static_cast<std::size_t>(2 * padded_), 0.0);
  SumChannels(
      layout_, [=](std::int64_t at, std::int64_t) { return dy[at]; }, sums.data());
  SumChannels(
      layout_, [=](std::int64_t at, std::int64_t c) { return dy[at] * (x[at] - centre[c]); },
      sums.data() + padded_);

  float* const d_gamma = run.gradients[static_cast<std::size_t>(weight_index_)];
  float* const d_beta = run.gradients[static_cast<std::size_t>(weight_index_) + 1];
  for (std::int64_t c = 0; c < layout_.c; ++c) {
    const auto g = static_cast<float>(sums[static_cast<std::size_t>(padded_ + c)] *
                                      static_cast<double>(inverse()[c]));
    const auto b = static_cast<float>(sums[static_cast<std::size_t>(c)]);
    d_gamma[c] = run.accumulate ? d_gamma[c] + g : g;
    d_beta[c] = run.accumulate ? d_beta[c] + b : b;
  }

  auto count = static_cast<double>(layout_.n * layout_.pixels());
  if (run.barrier != nullptr) {
    BatchNormMeeting& meeting = run.meetings[static_cast<std::size_t>(ordinal_)];
    meeting.backward[static_cast<std::size_t>(run.lane)] = std::move(sums);
    run.barrier->Wait();
    sums.assign(static_cast<std::size_t>(2 * padded_), 0.0);
    count = 0.0;
    for (int lane = 0; lane < run.lanes; ++lane) {
      const auto& part = meeting.backward[static_cast<std::size_t>(lane)];
      for (std::size_t i = 0; i < sums.size(); ++i) sums[i] += part[i];
      count += static_cast<double>(meeting.counts[static_cast<std::size_t>(lane)]);
    }
  }
  float* const dx = b_.in_grad[0];
  if (dx == nullptr) return;

  // dx = scale * dy + slope * (x - mean) + shift
  float* const scale = b_.scratch;
  float* const slope = b_.scratch + padded_;
  float* const shift = b_.scratch + 2 * padded_;
  std::fill_n(scale, 3 * padded_, 0.0F);
  for (std::int64_t c = 0; c < layout_.c; ++c) {
    const auto inv = static_cast<double>(inverse()[c]);
    const double factor = static_cast<double>(gamma(run)[c]) * inv;
    scale[c] = static_cast<float>(factor);
    shift[c] = static_cast<float>(-factor * sums[static_cast<std::size_t>(c)] / count);
    slope[c] = static_cast<float>(-factor * inv * inv *
                                  sums[static_cast<std::size_t>(padded_ + c)] / count);
  }
  if (b_.accumulate[0]) {
    ForEachElement(layout_, [=](std::int64_t at, std::int64_t c) {
      dx[at] += scale[c] * dy[at] + slope[c] * (x[at] - centre[c]) + shift[c];
    });
  } else {
    ForEachElement(layout_, [=](std::int64_t at, std::int64_t c) {
      dx[at] = scale[c] * dy[at] + slope[c] * (x[at] - centre[c]) + shift[c];
    });
  }
}

}  // namespace

std::unique_ptr<Kernel> MakeBatchNorm(const KernelContext& context, int ordinal) {
  return std::make_unique<BatchNorm>(context, ordinal);
}

}  // namespace motley::engine::native
