#ifndef MOTLEY_SIM_SERVICE_H_
#define MOTLEY_SIM_SERVICE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "motley/base/status.h"

namespace motley::sim {

// How the steps of a virtual device vary: by which factor one takes longer than its curve says.
// Except for a trace, the mean is 1.
//
// Thread safety: immutable.
class Service {
 public:
  // constant
  Service() = default;

  // "constant", "exponential", "lognormal:SIGMA" (of the logarithm) or "trace:FILE". A trace is a
  // text file with one factor a line, which are used in turn, over and over; each device begins at
  // a place of its own. Fails with kInvalidInput for other texts, a SIGMA that is not in (0, 4],
  // and a file with anything but positive numbers.
  static base::Result<Service> Parse(const std::string& text);
  // Everything that Parse refuses without looking at files.
  static base::Status Check(const std::string& text);

  // Depends on its arguments only, so that a device's luck is the same whatever the others do.
  // `key` is of the seed and the device, base::Key({seed, device}).
  double Factor(std::uint64_t key, std::uint64_t draw) const;

 private:
  enum class Kind { kConstant, kExponential, kLognormal, kTrace };
  Kind kind_ = Kind::kConstant;
  double sigma_ = 0.0;
  std::vector<double> trace_;
};

}  // namespace motley::sim

#endif  // MOTLEY_SIM_SERVICE_H_
