#include "motley/optim/sgd.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "motley/base/rng.h"

namespace motley::optim {
namespace {

std::vector<float> Random(std::size_t count, std::uint64_t key) {
  base::Rng rng(key);
  std::vector<float> values(count);
  for (float& value : values) value = static_cast<float>(rng.Normal());
  return values;
}

// The formula of torch.optim.SGD, element by element, in double precision.
struct Twin {
  std::vector<double> w, v;
  void Update(const SgdOptions& options, const std::vector<float>& sum, std::int64_t samples) {
    const double eta = options.learning_rate, mu = options.momentum, wd = options.weight_decay;
    for (std::size_t i = 0; i < w.size(); ++i) {
      double g = sum[i] / static_cast<double>(samples);
      g = g + wd * w[i];
      v[i] = mu * v[i] + g;
      w[i] = w[i] - eta * (options.nesterov ? g + mu * v[i] : v[i]);
    }
  }
};

class SgdTest : public testing::TestWithParam<SgdOptions> {};

TEST_P(SgdTest, FollowsTheFormulaOverManySteps) {
  constexpr std::size_t kCount = 1003;  // no multiple of any vector width
  std::vector<float> w = Random(kCount, 1), v(kCount, 0.0F);
  Twin twin{{w.begin(), w.end()}, std::vector<double>(kCount, 0.0)};
  for (std::uint64_t step = 0; step < 20; ++step) {
    const auto sum = Random(kCount, 100 + step);
    SgdUpdate(GetParam(), sum, 7, w, v);
    twin.Update(GetParam(), sum, 7);
  }
  for (std::size_t i = 0; i < kCount; ++i) {
    EXPECT_NEAR(w[i], twin.w[i], 2e-6 * (1.0 + std::abs(twin.w[i])));
    EXPECT_NEAR(v[i], twin.v[i], 2e-6 * (1.0 + std::abs(twin.v[i])));
  }
}

TEST_P(SgdTest, GivesTheSameBitsWhenTheArraysAreCut) {
  constexpr std::size_t kCount = 257;
  const auto sum = Random(kCount, 5);
  std::vector<float> whole_w = Random(kCount, 6), whole_v = Random(kCount, 7);
  std::vector<float> cut_w = whole_w, cut_v = whole_v;
  SgdUpdate(GetParam(), sum, 3, whole_w, whole_v);
  for (std::size_t begin = 0; begin < kCount; begin += 19) {
    const std::size_t count = std::min<std::size_t>(19, kCount - begin);
    SgdUpdate(GetParam(), std::span(sum).subspan(begin, count), 3,
              std::span(cut_w).subspan(begin, count), std::span(cut_v).subspan(begin, count));
  }
  EXPECT_EQ(cut_w, whole_w);
  EXPECT_EQ(cut_v, whole_v);
}

TEST_P(SgdTest, GivesTheSameBitsForAnyNumberOfThreads) {
  constexpr std::size_t kCount = (1 << 21) + 5;  // enough for four
  const auto sum = Random(kCount, 5);
  std::vector<float> one_w = Random(kCount, 6), one_v = Random(kCount, 7);
  const std::vector<float> w = one_w, v = one_v;
  SgdUpdate(GetParam(), sum, 3, one_w, one_v);
  for (const int threads : {2, 3, 8}) {
    std::vector<float> many_w = w, many_v = v;
    SgdUpdate(GetParam(), sum, 3, many_w, many_v, threads);
    EXPECT_EQ(many_w, one_w) << threads;
    EXPECT_EQ(many_v, one_v) << threads;
  }
}

TEST_P(SgdTest, TellsWhenAWeightIsNotFiniteAnyMore) {
  constexpr std::size_t kCount = (1 << 20) + 3;
  std::vector<float> w(kCount, 1.0F), v(kCount, 0.0F), sum(kCount, 1.0F);
  EXPECT_TRUE(SgdUpdate(GetParam(), sum, 1, w, v, 2));
  for (const std::size_t at : {std::size_t{0}, kCount - 1}) {
    for (const float bad :
         {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
      std::vector<float> bad_w = w, bad_v = v, bad_sum = sum;
      bad_sum[at] = bad;
      EXPECT_FALSE(SgdUpdate(GetParam(), bad_sum, 1, bad_w, bad_v, 2));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    AllKinds, SgdTest,
    testing::Values(SgdOptions{.learning_rate = 0.1F, .momentum = 0.0F},
                    SgdOptions{.learning_rate = 0.05F, .momentum = 0.9F},
                    SgdOptions{.learning_rate = 0.05F, .momentum = -0.4F},
                    SgdOptions{.learning_rate = 0.1F, .momentum = 0.9F, .weight_decay = 0.01F},
                    SgdOptions{.learning_rate = 0.1F, .momentum = 0.9F, .nesterov = true},
                    SgdOptions{.learning_rate = 0.1F,
                               .momentum = 0.5F,
                               .weight_decay = 0.01F,
                               .nesterov = true}));

// By hand: w = 1, g = 4/2 + 0.5 * 1 = 2.5, v = 0.5 * 2 + 2.5 = 3.5.
TEST(SgdTest, AgreesWithOneStepDoneByHand) {
  SgdOptions options{.learning_rate = 0.1F, .momentum = 0.5F, .weight_decay = 0.5F};
  const std::vector<float> sum = {4.0F};
  std::vector<float> w = {1.0F}, v = {2.0F};
  SgdUpdate(options, sum, 2, w, v);
  EXPECT_FLOAT_EQ(v[0], 3.5F);
  EXPECT_FLOAT_EQ(w[0], 1.0F - 0.1F * 3.5F);

  options.nesterov = true;
  w = {1.0F}, v = {2.0F};
  SgdUpdate(options, sum, 2, w, v);
  EXPECT_FLOAT_EQ(v[0], 3.5F);
  EXPECT_FLOAT_EQ(w[0], 1.0F - 0.1F * (2.5F + 0.5F * 3.5F));
}

TEST(SgdDeathTest, RefusesAnUpdateWithoutSamples) {
  std::vector<float> one = {1.0F}, w = one, v = one;
  EXPECT_DEATH(SgdUpdate({}, one, 0, w, v), "needs samples");
  EXPECT_DEATH(SgdUpdate({}, one, 1, w, std::span<float>()), "velocities");
}

}  // namespace
}  // namespace motley::optim
