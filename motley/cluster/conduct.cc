#include "motley/cluster/conduct.h"

#include <algorithm>
#include <cmath>

namespace motley::cluster {

double Conduct::Strike(double now, const std::string& name) {
  const auto old = [now](double time) { return time < now - kWindowSeconds; };
  std::erase_if(strikes_, [&](const auto& one) { return old(one.second.back()); });
  std::vector<double>& strikes = strikes_[name];
  std::erase_if(strikes, old);
  strikes.push_back(now);
  if (strikes.size() > kMostStrikes) strikes.erase(strikes.begin());
  return BarOf(strikes);
}

bool Conduct::Barred(double now, const std::string& name) const {
  const auto found = strikes_.find(name);
  return found != strikes_.end() && now < found->second.back() + BarOf(found->second);
}

double Conduct::BarOf(const std::vector<double>& strikes) {
  const int times = static_cast<int>(strikes.size()) - kForgiven;
  if (times <= 0) return 0.0;
  return std::min(kWindowSeconds, std::ldexp(kFirstBarSeconds, times - 1));
}

}  // namespace motley::cluster
