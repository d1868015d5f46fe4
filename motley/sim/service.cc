#include "motley/sim/service.h"

#include <charconv>
#include <cmath>
#include <string_view>
#include <utility>

#include "motley/base/file.h"
#include "motley/base/rng.h"

namespace motley::sim {
namespace {

constexpr std::string_view kLognormal = "lognormal:", kTrace = "trace:";
constexpr double kLargestSigma = 4.0;
constexpr std::size_t kLargestTrace = std::size_t{1} << 26;

// The whole of `text` as a number; NaN when it is none.
double NumberOf(std::string_view text) {
  double number = 0.0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  return error == std::errc() && end == text.data() + text.size() ? number : std::nan("");
}

base::Result<std::vector<double>> ReadTrace(const std::string& file) {
  MOTLEY_ASSIGN_OR_RETURN(const std::string text, base::ReadFile(file, kLargestTrace));
  std::vector<double> factors;
  std::int64_t line = 0;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = std::min(text.size(), text.find('\n', begin));
    std::string word = text.substr(begin, end - begin);
    begin = end + 1;
    ++line;
    if (!word.empty() && word.back() == '\r') word.pop_back();
    if (word.empty()) continue;
    const double factor = NumberOf(word);
    if (!(factor > 0.0) || !std::isfinite(factor)) {
      return base::InvalidInput("{}:{}: '{}' is no positive number", file, line, word.substr(0, 40))
          .WithFix("one factor a line: how many times what the curve says a step took");
    }
    factors.push_back(factor);
  }
  if (factors.empty()) {
    return base::InvalidInput("{}: the trace is empty", file)
        .WithFix("one factor a line: how many times what the curve says a step took");
  }
  return factors;
}

}  // namespace

base::Status Service::Check(const std::string& text) {
  if (text == "constant" || text == "exponential") return {};
  if (text.starts_with(kLognormal)) {
    const double sigma = NumberOf(text.substr(kLognormal.size()));
    if (sigma > 0.0 && sigma <= kLargestSigma) return {};
    return base::InvalidInput("'{}' has no standard deviation in (0, {}]", text.substr(0, 60),
                              kLargestSigma)
        .WithFix("lognormal:0.3, for example, varies by about 30 %");
  }
  if (text.starts_with(kTrace) && text.size() > kTrace.size()) return {};
  return base::InvalidInput("'{}' is no distribution of step times", text.substr(0, 60))
      .WithFix("use constant, exponential, lognormal:SIGMA or trace:FILE");
}

base::Result<Service> Service::Parse(const std::string& text) {
  MOTLEY_RETURN_IF_ERROR(Check(text));
  Service service;
  if (text == "exponential") {
    service.kind_ = Kind::kExponential;
  } else if (text.starts_with(kLognormal)) {
    service.kind_ = Kind::kLognormal;
    service.sigma_ = NumberOf(text.substr(kLognormal.size()));
  } else if (text.starts_with(kTrace)) {
    service.kind_ = Kind::kTrace;
    MOTLEY_ASSIGN_OR_RETURN(service.trace_, ReadTrace(text.substr(kTrace.size())));
  }
  return service;
}

double Service::Factor(std::uint64_t key, std::uint64_t draw) const {
  switch (kind_) {
    case Kind::kConstant:
      return 1.0;
    case Kind::kExponential:
      return -std::log(1.0 - base::Rng(base::Extend(key, draw)).Uniform());
    case Kind::kLognormal:
      return std::exp(sigma_ * base::Rng(base::Extend(key, draw)).Normal() - 0.5 * sigma_ * sigma_);
    case Kind::kTrace: {
      const std::uint64_t first = base::Rng(key).Below(trace_.size());
      return trace_[(first + draw) % trace_.size()];
    }
  }
  return 1.0;
}

}  // namespace motley::sim
