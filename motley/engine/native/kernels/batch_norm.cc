// Batch norm over the samples of all lanes, with the addition and the ReLU that may follow it. Each
// lane reduces its own samples; lanes exchange their partial results at a barrier and each combines
// all of them, in lane order, so that every lane gets the same numbers.

#include <algorithm>
#include <cmath>
#include <limits>

#include "motley/engine/native/kernels/kernels.h"
#include "motley/engine/native/kernels/simd/loops.h"

namespace motley::engine::native {
namespace {

using simd::kWidth;
using simd::Strip;

// Calls visit(offset, first channel, strip) for strips that cover all elements. Where channels lie
// closer than kWidth, place i of a group holds channel first + i % inner.
template <typename Visit>
void ForEachStrip(const Layout& l, const Visit& visit) {
  const std::int64_t pixels = l.pixels();
  for (std::int64_t n = 0; n < l.n; ++n) {
    for (std::int64_t o = 0; o < l.outer(); ++o) {
      const std::int64_t base = (n * l.outer() + o) * pixels * l.inner;
      const std::int64_t channel = o * l.inner;
      if (kWidth % l.inner == 0) {
        const std::int64_t floats = pixels * l.inner, whole = floats / kWidth;
        const auto rest = static_cast<int>(floats % kWidth);
        if (whole > 0) visit(base, channel, Strip{.steps = whole});
        if (rest > 0) visit(base + whole * kWidth, channel, Strip{.steps = 1, .width = rest});
        continue;
      }
      for (std::int64_t i = 0; i < l.inner; i += kWidth) {
        const auto width = static_cast<int>(std::min<std::int64_t>(kWidth, l.inner - i));
        visit(base + i, channel + i, Strip{.steps = pixels, .stride = l.inner, .width = width});
      }
    }
  }
}

// One number per channel, as the strips want it: one for each place in a group.
class PerPlace {
 public:
  PerPlace(const Layout& layout, const float* by_channel, std::int64_t first)
      : at_(by_channel + first) {
    if (layout.inner >= kWidth) return;
    for (int i = 0; i < kWidth; ++i) spread_[i] = at_[i % layout.inner];
    at_ = spread_;
  }
  PerPlace(const PerPlace&) = delete;
  PerPlace& operator=(const PerPlace&) = delete;
  operator const float*() const { return at_; }  // NOLINT(google-explicit-constructor)

 private:
  const float* at_;
  float spread_[kWidth];
};

// Sums per place, added to the sums per channel at the end.
class PlaceSums {
 public:
  PlaceSums(const Layout& layout, double* by_channel, std::int64_t first, int width)
      : layout_(layout), target_(by_channel + first), width_(width) {}
  PlaceSums(const PlaceSums&) = delete;
  PlaceSums& operator=(const PlaceSums&) = delete;
  ~PlaceSums() {
    for (int i = 0; i < width_; ++i)
      target_[i % std::min<std::int64_t>(layout_.inner, kWidth)] += sums_[i];
  }
  operator double*() { return sums_; }  // NOLINT(google-explicit-constructor)

 private:
  const Layout& layout_;
  double* target_;
  int width_;
  double sums_[kWidth] = {};
};

class BatchNorm final : public Kernel {
 public:
  BatchNorm(const KernelContext& context, int ordinal)
      : loops_(simd::BestLoops()),
        layout_(context.in[0]),
        padded_((layout_.outer() * layout_.inner + kWidth - 1) / kWidth * kWidth),
        training_(context.training),
        residual_(context.in.size() == 2),
        ceiling_(context.relu_ceiling),
        epsilon_(context.node().batch_norm().epsilon),
        ordinal_(ordinal),
        weight_index_(context.graph.parameters_of(context.id).front()),
        weight_offset_(context.graph.parameters()[static_cast<std::size_t>(weight_index_)].offset) {
    const int buffer = context.graph.buffers_of(context.id).front();
    buffer_offset_ = context.graph.buffers()[static_cast<std::size_t>(buffer)].offset;
  }

  // Workspace: mean, then 1 / deviation. Scratch: coefficients of one pass.
  KernelNeeds needs() const override {
    return {.input_in_backward = true,
            .output_in_backward = ceiling_.has_value(),
            .in_place_gradient = true,
            .workspace_floats = 2 * padded_,
            .scratch_floats = 3 * padded_};
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
  // The output tells where the ReLU was open; null where there is none.
  const float* Mask(std::int64_t at) const { return ceiling_.has_value() ? b_.out + at : nullptr; }
  float floor() const {
    return ceiling_.has_value() ? 0.0F : -std::numeric_limits<float>::infinity();
  }
  float ceiling() const { return ceiling_.value_or(std::numeric_limits<float>::infinity()); }

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

  void BatchStatistics(LaneRun& run);
  void Normalise(const LaneRun& run) const;
  void GuessMeans(float* guess) const;
  // This lane's [mean, squared deviations] per channel.
  void LaneMoments(std::vector<double>& moments) const;
  // This lane's sums over the gradient g after the ReLU: [g, g * (x - mean)] per channel.
  void LaneSums(std::vector<double>& sums) const;

  const simd::Loops& loops_;
  Layout layout_;
  std::int64_t padded_;
  bool training_, residual_;
  std::optional<float> ceiling_;  // of the ReLU that follows
  float epsilon_;
  int ordinal_;
  int weight_index_;
  std::int64_t weight_offset_, buffer_offset_ = 0;
  std::vector<double> own_;  // where lanes do not meet
};

// From a few values of each channel. Deviations from something near the mean need only one pass to
// give the variance with all its digits.
void BatchNorm::GuessMeans(float* guess) const {
  constexpr std::int64_t kValues = 16;
  const std::int64_t count = layout_.n * layout_.pixels();
  const std::int64_t values = std::min(count, kValues);
  std::fill_n(guess, padded_, 0.0F);
  for (std::int64_t v = 0; v < values; ++v) {
    // Spread over all samples, and over rows and columns.
    const std::int64_t pixel = count * v / values;
    const float* const x = b_.in[0] + pixel / layout_.pixels() * layout_.sample_size() +
                           pixel % layout_.pixels() * layout_.inner;
    for (std::int64_t c = 0; c < layout_.c; ++c) guess[c] += x[layout_.ChannelOffset(c)];
  }
  for (std::int64_t c = 0; c < layout_.c; ++c) guess[c] /= static_cast<float>(values);
}

void BatchNorm::LaneMoments(std::vector<double>& moments) const {
  moments.assign(static_cast<std::size_t>(2 * padded_), 0.0);
  float* const guess = b_.scratch;
  GuessMeans(guess);
  double* const sums = moments.data();
  double* const squares = sums + padded_;
  ForEachStrip(layout_, [&](std::int64_t at, std::int64_t c, const Strip& strip) {
    PlaceSums sum(layout_, sums, c, strip.width), square(layout_, squares, c, strip.width);
    loops_.moments(b_.in[0] + at, strip, PerPlace(layout_, guess, c), sum, square);
  });
  const auto count = static_cast<double>(layout_.n * layout_.pixels());
  for (std::int64_t c = 0; c < padded_; ++c) {
    squares[c] = std::max(0.0, squares[c] - sums[c] * sums[c] / count);
    sums[c] = static_cast<double>(guess[c]) + sums[c] / count;
  }
}

void BatchNorm::BatchStatistics(LaneRun& run) {
  std::span<const std::vector<double>> moments(&own_, 1);
  const std::int64_t mine = layout_.n * layout_.pixels();
  std::span<const std::int64_t> counts(&mine, 1);
  if (run.barrier == nullptr) {
    LaneMoments(own_);
  } else {
    BatchNormMeeting& meeting = run.meetings[static_cast<std::size_t>(ordinal_)];
    LaneMoments(meeting.forward[static_cast<std::size_t>(run.lane)]);
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
  float* const scale = b_.scratch;
  float* const shift = b_.scratch + padded_;
  for (std::int64_t c = layout_.c; c < padded_; ++c) mean()[c] = inverse()[c] = 0.0F;
  std::fill_n(scale, 2 * padded_, 0.0F);
  for (std::int64_t c = 0; c < layout_.c; ++c) {
    scale[c] = gamma(run)[c] * inverse()[c];
    shift[c] = gamma(run)[layout_.c + c];
  }
  ForEachStrip(layout_, [&](std::int64_t at, std::int64_t c, const Strip& strip) {
    const PerPlace centres(layout_, mean(), c), scales(layout_, scale, c),
        shifts(layout_, shift, c);
    loops_.normalise(b_.in[0] + at, residual_ ? b_.in[1] + at : nullptr, b_.out + at, strip,
                     {.centre = centres,
                      .scale = scales,
                      .shift = shifts,
                      .floor = floor(),
                      .ceiling = ceiling()});
  });
}

void BatchNorm::LaneSums(std::vector<double>& sums) const {
  sums.assign(static_cast<std::size_t>(2 * padded_), 0.0);
  ForEachStrip(layout_, [&](std::int64_t at, std::int64_t c, const Strip& strip) {
    PlaceSums sum(layout_, sums.data(), c, strip.width);
    PlaceSums product(layout_, sums.data() + padded_, c, strip.width);
    const PerPlace centres(layout_, mean(), c);
    const simd::NormaliseBackward n{.centre = centres, .floor = floor(), .ceiling = ceiling()};
    loops_.reduce_gradient(b_.in[0] + at, Mask(at), b_.out_grad + at, strip, n, sum, product);
  });
}

void BatchNorm::Backward(LaneRun& run) {
  BatchNormMeeting* const meeting =
      run.barrier == nullptr ? nullptr : &run.meetings[static_cast<std::size_t>(ordinal_)];
  std::vector<double>& sums =
      meeting == nullptr ? own_ : meeting->backward[static_cast<std::size_t>(run.lane)];
  LaneSums(sums);

  float* const d_gamma = run.gradients[static_cast<std::size_t>(weight_index_)];
  float* const d_beta = run.gradients[static_cast<std::size_t>(weight_index_) + 1];
  for (std::int64_t c = 0; c < layout_.c; ++c) {
    const auto g = static_cast<float>(sums[static_cast<std::size_t>(padded_ + c)] *
                                      static_cast<double>(inverse()[c]));
    const auto b = static_cast<float>(sums[static_cast<std::size_t>(c)]);
    d_gamma[c] = run.accumulate ? d_gamma[c] + g : g;
    d_beta[c] = run.accumulate ? d_beta[c] + b : b;
  }
  if (meeting != nullptr) run.barrier->Wait();
  float* const d_other = residual_ ? b_.in_grad[1] : nullptr;
  if (b_.in_grad[0] == nullptr && d_other == nullptr) return;

  std::int64_t count = layout_.n * layout_.pixels();
  std::span<const std::vector<double>> parts(&sums, 1);
  if (meeting != nullptr) {
    parts = std::span(meeting->backward).first(static_cast<std::size_t>(run.lanes));
    count = 0;
    for (int lane = 0; lane < run.lanes; ++lane) {
      count += meeting->counts[static_cast<std::size_t>(lane)];
    }
  }
  float* const scale = b_.scratch;
  float* const slope = b_.scratch + padded_;
  float* const shift = b_.scratch + 2 * padded_;
  std::fill_n(scale, 3 * padded_, 0.0F);
  for (std::int64_t c = 0; c < layout_.c; ++c) {
    double sum = 0.0, product = 0.0;
    for (const std::vector<double>& part : parts) {
      sum += part[static_cast<std::size_t>(c)];
      product += part[static_cast<std::size_t>(padded_ + c)];
    }
    const auto inv = static_cast<double>(inverse()[c]);
    const double factor = static_cast<double>(gamma(run)[c]) * inv;
    scale[c] = static_cast<float>(factor);
    shift[c] = static_cast<float>(-factor * sum / static_cast<double>(count));
    slope[c] = static_cast<float>(-factor * inv * inv * product / static_cast<double>(count));
  }
  float* const dx = b_.in_grad[0];
  ForEachStrip(layout_, [&](std::int64_t at, std::int64_t c, const Strip& strip) {
    const PerPlace centres(layout_, mean(), c), scales(layout_, scale, c);
    const PerPlace slopes(layout_, slope, c), shifts(layout_, shift, c);
    loops_.normalise_backward(b_.in[0] + at, Mask(at), b_.out_grad + at,
                              dx == nullptr ? nullptr : dx + at,
                              d_other == nullptr ? nullptr : d_other + at, strip,
                              {.centre = centres,
                               .scale = scales,
                               .slope = slopes,
                               .shift = shifts,
                               .floor = floor(),
                               .ceiling = ceiling(),
                               .add_to_dx = b_.accumulate[0],
                               .add_to_other = residual_ && b_.accumulate[1]});
  });
}

}  // namespace

std::unique_ptr<Kernel> MakeBatchNorm(const KernelContext& context, int ordinal) {
  return std::make_unique<BatchNorm>(context, ordinal);
}

}  // namespace motley::engine::native
