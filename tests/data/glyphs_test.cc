#include "motley/data/glyphs.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

#include "motley/data/ledger.h"
#include "motley/data/open.h"
#include "tests/data/test_files.h"

namespace motley::data {
namespace {

constexpr std::size_t kPixels = 28 * 28;
constexpr std::size_t kClasses = 10;

// Softmax regression, the linear model: ten rows of weights and a bias.
class LinearModel {
 public:
  std::array<float, kClasses> Probabilities(const std::vector<float>& x) const {
    std::array<float, kClasses> p{};
    for (std::size_t k = 0; k < kClasses; ++k) {
      p[k] = weights_[k][kPixels];
      for (std::size_t i = 0; i < kPixels; ++i) p[k] += weights_[k][i] * x[i];
    }
    const float largest = *std::max_element(p.begin(), p.end());
    float sum = 0.0F;
    for (float& value : p) sum += value = std::exp(value - largest);
    for (float& value : p) value /= sum;
    return p;
  }

  void Learn(const std::vector<float>& x, std::int32_t label, float rate) {
    auto p = Probabilities(x);
    p[static_cast<std::size_t>(label)] -= 1.0F;
    for (std::size_t k = 0; k < kClasses; ++k) {
      for (std::size_t i = 0; i < kPixels; ++i) weights_[k][i] -= rate * p[k] * x[i];
      weights_[k][kPixels] -= rate * p[k];
    }
  }

 private:
  std::array<std::array<float, kPixels + 1>, kClasses> weights_{};
};

std::vector<float> Centred(const Dataset& dataset, SampleId id) {
  std::vector<float> x;
  for (const auto pixel : DecodeOrDie(dataset, id)) {
    x.push_back(static_cast<float>(pixel) / 255.0F - 0.5F);
  }
  return x;
}

double Accuracy(const LinearModel& model, const Dataset& dataset) {
  int correct = 0;
  for (SampleId id = 0; id < static_cast<SampleId>(dataset.size()); ++id) {
    const auto p = model.Probabilities(Centred(dataset, id));
    correct += std::max_element(p.begin(), p.end()) - p.begin() == dataset.label(id) ? 1 : 0;
  }
  return static_cast<double>(correct) / static_cast<double>(dataset.size());
}

TEST(GlyphsTest, NeedsNoFileAndFitsLenet) {
  const auto pair = Open("glyphs", "", {});
  ASSERT_TRUE(pair.ok());
  EXPECT_EQ(pair->train->size(), 8000);
  EXPECT_EQ(pair->test->size(), 2000);
  EXPECT_EQ(pair->train->channels(), 1);
  EXPECT_EQ(pair->train->height(), 28);
  EXPECT_EQ(pair->train->width(), 28);
  EXPECT_EQ(pair->train->classes().size(), kClasses);
}

TEST(GlyphsTest, ShowsEveryClassEquallyOften) {
  const auto pair = Open("glyphs", "glyphs", {});
  std::array<int, kClasses> seen{};
  for (SampleId id = 0; id < 2000; ++id) ++seen[static_cast<std::size_t>(pair->test->label(id))];
  for (const int count : seen) EXPECT_EQ(count, 200);
}

// Whoever changes the drawing changes a dataset that results are quoted for.
TEST(GlyphsTest, IsTheSameOnEveryMachine) {
  const auto pair = Open("glyphs", "", {});
  EXPECT_EQ(pair->train->ContentHash(),
            "e761e4a3a6f349fa912e54bd8609d520f0379bcdde4a83ab16b41d50c9eb9be3");
  EXPECT_EQ(pair->test->ContentHash(),
            "d4c88db25e5e31fb8555783c364297a0a45158d138e80b9df4a35eb4959bdb60");
}

TEST(GlyphsTest, CannotBeSolvedByALinearModel) {
  const auto pair = Open("glyphs", "", {});
  LinearModel model;
  for (std::uint64_t epoch = 0; epoch < 4; ++epoch) {
    const Permutation order(8000, 1, epoch);
    for (const SampleId id : order.Ids({epoch, 0, 8000})) {
      model.Learn(Centred(*pair->train, id), pair->train->label(id), 0.01F);
    }
  }
  const double accuracy = Accuracy(model, *pair->test);
  RecordProperty("percent", static_cast<int>(100 * accuracy));
  EXPECT_LT(accuracy, 0.4);
}

}  // namespace
}  // namespace motley::data
