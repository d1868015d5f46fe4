#include "motley/data/glyphs.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "motley/base/rng.h"
#include "motley/data/memory_dataset.h"

namespace motley::data {
namespace {

constexpr int kSide = 28;
constexpr std::size_t kTrainSamples = 8000;
constexpr std::size_t kTestSamples = 2000;
constexpr std::uint64_t kKey = 0x676c79706873;  // "glyphs"

struct Point {
  double x, y;
};
using Stroke = std::vector<Point>;  // a line through the points

struct Figure {
  const char* name;
  std::vector<Stroke> strokes;  // in [-1, 1] x [-1, 1], y down
};

// An arc from `begin` to `end` of 16 parts of a circle. A table and not sin(): the last digit of
// that differs between C libraries.
Stroke Arc(int begin, int end) {
  constexpr std::array<double, 5> kQuarter = {1.0, 0.9238795325, 0.7071067812, 0.3826834324, 0.0};
  const auto cosine = [&](int part) {
    const int p = ((part % 16) + 16) % 16;
    const int folded = p <= 8 ? p : 16 - p;
    return folded <= 4 ? kQuarter[static_cast<std::size_t>(folded)]
                       : -kQuarter[static_cast<std::size_t>(8 - folded)];
  };
  Stroke stroke;
  for (int part = begin; part <= end; ++part) stroke.push_back({cosine(part), cosine(part - 4)});
  return stroke;
}

std::vector<Figure> Figures() {
  return {
      {"arc", {Arc(4, 12)}},
      {"arrow", {{{0, 1}, {0, -1}}, {{-0.7, -0.3}, {0, -1}, {0.7, -0.3}}}},
      {"corner", {{{-0.7, -1}, {-0.7, 1}, {0.8, 1}}}},
      {"cross", {{{0, -1}, {0, 1}}, {{-1, 0}, {1, 0}}}},
      {"fork", {{{0, 1}, {0, 0}, {-0.8, -1}}, {{0, 0}, {0.8, -1}}}},
      {"ring", {Arc(0, 16)}},
      {"square", {{{-0.9, -0.9}, {0.9, -0.9}, {0.9, 0.9}, {-0.9, 0.9}, {-0.9, -0.9}}}},
      {"tee", {{{-0.9, -0.9}, {0.9, -0.9}}, {{0, -0.9}, {0, 1}}}},
      {"triangle", {{{0, -1}, {0.95, 0.8}, {-0.95, 0.8}, {0, -1}}}},
      {"zigzag", {{{-0.8, -0.9}, {0.8, -0.9}, {-0.8, 0.9}, {0.8, 0.9}}}},
  };
}

// How one sample is drawn. Only operations that IEEE 754 defines to the last bit.
struct Pose {
  explicit Pose(base::Rng& rng) {
    const auto within = [&rng](double low, double high) {
      return low + (high - low) * rng.Uniform();
    };
    const double t = within(-0.22, 0.22);  // tangent of half the angle: up to 25 degrees
    const double scale = within(6.0, 10.0);
    cosine = scale * (1 - t * t) / (1 + t * t);
    sine = scale * 2 * t / (1 + t * t);
    const double room = kSide / 2.0 - scale - 1.0;
    x = kSide / 2.0 + within(-room, room);
    y = kSide / 2.0 + within(-room, room);
    half_width = within(0.8, 1.6);
    ink = within(0.45, 0.9);
    inverted = rng.Below(2) == 1;
    noise = within(0.02, 0.12);
  }
  Point Place(Point p) const {
    return {x + cosine * p.x - sine * p.y, y + sine * p.x + cosine * p.y};
  }

  double cosine, sine, x, y, half_width, ink, noise;
  bool inverted;
};

double Distance(Point p, Point a, Point b) {
  const double dx = b.x - a.x;
  const double dy = b.y - a.y;
  const double along = ((p.x - a.x) * dx + (p.y - a.y) * dy) / (dx * dx + dy * dy);
  const double t = std::clamp(along, 0.0, 1.0);
  const double ex = p.x - a.x - t * dx;
  const double ey = p.y - a.y - t * dy;
  return std::sqrt(ex * ex + ey * ey);
}

// Adds a segment to `cover`, the share of each pixel that is under ink.
void Draw(Point a, Point b, double half_width, std::array<double, kSide * kSide>& cover) {
  const double reach = half_width + 1.0;
  const auto low = [&](double v) { return std::max(0, static_cast<int>(v - reach)); };
  const auto high = [&](double v) { return std::min(kSide - 1, static_cast<int>(v + reach)); };
  for (int y = low(std::min(a.y, b.y)); y <= high(std::max(a.y, b.y)); ++y) {
    for (int x = low(std::min(a.x, b.x)); x <= high(std::max(a.x, b.x)); ++x) {
      const double distance = Distance({x + 0.5, y + 0.5}, a, b);
      double& pixel = cover[static_cast<std::size_t>(y * kSide + x)];
      pixel = std::max(pixel, std::clamp(half_width + 0.5 - distance, 0.0, 1.0));
    }
  }
}

void AppendGlyph(const Figure& figure, base::Rng rng, std::string& bytes) {
  const Pose pose(rng);
  std::array<double, kSide * kSide> cover{};
  for (const Stroke& stroke : figure.strokes) {
    for (std::size_t i = 1; i < stroke.size(); ++i) {
      Draw(pose.Place(stroke[i - 1]), pose.Place(stroke[i]), pose.half_width, cover);
    }
  }
  for (const double share : cover) {
    const double light = 0.5 + pose.ink * (share - 0.5);
    // The sum of two uniform numbers, near enough to a bell.
    const double noise = pose.noise * (rng.Uniform() + rng.Uniform() - 1.0) * 2.0;
    const double value = (pose.inverted ? 1.0 - light : light) + noise;
    bytes += static_cast<char>(static_cast<int>(std::clamp(value, 0.0, 1.0) * 255.0 + 0.5));
  }
}

class GlyphSource final : public Source {
 public:
  base::Result<std::shared_ptr<const Dataset>> Open(Part part, const Dataset*) const override {
    const auto figures = Figures();
    const bool train = part == Part::kTrain;
    const std::size_t count = train ? kTrainSamples : kTestSamples;
    MemoryDataset::Parts parts{.shape = {1, kSide, kSide}};
    for (const auto& figure : figures) parts.classes.emplace_back(figure.name);
    parts.bytes.reserve(count * parts.shape.size());
    for (std::size_t id = 0; id < count; ++id) {
      const std::size_t label = id % figures.size();
      parts.labels.push_back(static_cast<std::int32_t>(label));
      AppendGlyph(figures[label], base::Rng(base::Key({kKey, train ? 0U : 1U, id})), parts.bytes);
    }
    return std::shared_ptr<const Dataset>(std::make_shared<MemoryDataset>(std::move(parts)));
  }
};

}  // namespace

std::unique_ptr<Source> Glyphs() { return std::make_unique<GlyphSource>(); }

}  // namespace motley::data
