#ifndef MOTLEY_CLUSTER_CONDUCT_H_
#define MOTLEY_CLUSTER_CONDUCT_H_

#include <cstddef>
#include <map>
#include <string>
#include <vector>

namespace motley::cluster {

// Who was sent away, and how often lately. Machines fail, so whoever does may come back at once,
// and once more; from the third time on it has to wait, longer each time, so that it cannot keep
// the others from their work.
//
// Remembers by name: who goes and comes back finds its record.
//
// Thread safety: none.
class Conduct {
 public:
  static constexpr double kWindowSeconds = 600.0;  // for which it is remembered
  static constexpr int kForgiven = 2;
  static constexpr double kFirstBarSeconds = 10.0;  // doubled each time, up to the window
  static constexpr std::size_t kMostStrikes = 16;   // more make no bar longer

  // For how many seconds this one must stay away now.
  double Strike(double now, const std::string& name);
  bool Barred(double now, const std::string& name) const;

 private:
  static double BarOf(const std::vector<double>& strikes);

  std::map<std::string, std::vector<double>> strikes_;  // when
};

}  // namespace motley::cluster

#endif  // MOTLEY_CLUSTER_CONDUCT_H_
