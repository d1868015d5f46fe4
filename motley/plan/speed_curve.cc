#include "motley/plan/speed_curve.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <vector>

namespace motley::plan {
namespace {

struct Point {
  double samples, seconds;
};

struct Weighted {
  double value, weight;
};

// The smallest value that has half of the weight at or below it.
double Median(std::vector<Weighted> values) {
  std::sort(values.begin(), values.end(),
            [](const Weighted& a, const Weighted& b) { return a.value < b.value; });
  double half = 0.0;
  for (const Weighted& each : values) half += each.weight / 2;
  double below = 0.0;
  for (const Weighted& each : values) {
    below += each.weight;
    if (below >= half) return each.value;
  }
  return values.back().value;
}

template <typename Value>
double MedianOver(const std::vector<Point>& points, const Value& value) {
  std::vector<Weighted> values;
  for (const Point& point : points) values.push_back({value(point), 1.0});
  return Median(std::move(values));
}

// One point per size, in the order of the sizes.
std::vector<Point> Reduce(std::span<const Timing> timings) {
  std::map<std::int64_t, std::vector<double>> by_size;
  for (const Timing& timing : timings) by_size[timing.samples].push_back(timing.seconds);
  std::vector<Point> points;
  for (auto& [samples, seconds] : by_size) {
    const auto quartile = seconds.begin() + static_cast<std::ptrdiff_t>((seconds.size() - 1) / 4);
    std::nth_element(seconds.begin(), quartile, seconds.end());
    points.push_back({static_cast<double>(samples), *quartile});
  }
  return points;
}

// Distant sizes tell more about the slope than close ones, where noise is divided by little.
double RepeatedMedianSlope(const std::vector<Point>& points) {
  return MedianOver(points, [&](const Point& from) {
    std::vector<Weighted> slopes;
    for (const Point& to : points) {
      const double distance = to.samples - from.samples;
      if (distance == 0.0) continue;
      slopes.push_back({(to.seconds - from.seconds) / distance, std::abs(distance)});
    }
    return Median(std::move(slopes));
  });
}

}  // namespace

double SpeedCurve::At(std::int64_t samples) const {
  if (samples <= 0) return 0.0;
  return fixed_seconds + seconds_per_sample * static_cast<double>(samples);
}

base::Result<SpeedCurve> FitCurve(std::span<const Timing> timings) {
  for (const Timing& timing : timings) {
    if (timing.samples > 0 && timing.seconds > 0 && std::isfinite(timing.seconds)) continue;
    return base::InvalidInput("{} samples in {} s: not a timing of a step", timing.samples,
                              timing.seconds);
  }
  const std::vector<Point> points = Reduce(timings);
  if (points.size() < 2) {
    return base::Unavailable(
               "a speed curve needs timings of two different numbers of samples; there {}",
               points.empty() ? "are none" : "is one")
        .WithFix("measure the device with another share");
  }

  double c = RepeatedMedianSlope(points);
  const auto line_start = [&](const Point& at) { return at.seconds - c * at.samples; };
  if (c <= 0) {
    // Noise may tilt a flat line; ten percent over all sizes is more than noise.
    constexpr double kFlat = 0.1, kVisible = 0.01;
    const double level = MedianOver(points, [](const Point& at) { return at.seconds; });
    const double range = points.back().samples - points.front().samples;
    if (-c * range > kFlat * level) {
      return base::InvalidInput(
                 "{} samples take less time than {}: these timings are not of one device at one "
                 "speed",
                 points.back().samples, points.front().samples)
          .WithFix("measure the device again while nothing else runs on it");
    }
    c = kVisible * level / points.back().samples;
  }
  double a = MedianOver(points, line_start);
  if (a < 0) {
    a = 0.0;
    c = MedianOver(points, [](const Point& at) { return at.seconds / at.samples; });
  }

  SpeedCurve curve{.fixed_seconds = a, .seconds_per_sample = c};
  for (const Point& at : points) {
    curve.residual =
        std::max(curve.residual, std::abs(a + c * at.samples - at.seconds) / at.seconds);
  }
  return curve;
}

}  // namespace motley::plan
