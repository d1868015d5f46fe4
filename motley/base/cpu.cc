#include "motley/base/cpu.h"

#include <algorithm>
#include <ctime>
#include <fstream>
#include <sstream>

namespace motley::base {
namespace {

constexpr std::string_view kBlanks = " \t";

std::string_view Trim(std::string_view text) {
  const std::size_t begin = text.find_first_not_of(kBlanks);
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(kBlanks) - begin + 1);
}

}  // namespace

std::string CpuModelFrom(std::string_view cpuinfo) {
  std::string model;
  while (!cpuinfo.empty()) {
    const std::string_view line = cpuinfo.substr(0, cpuinfo.find('\n'));
    cpuinfo.remove_prefix(std::min(cpuinfo.size(), line.size() + 1));
    if (line.empty()) break;  // the end of the first core
    const std::size_t colon = line.find(':');
    if (colon == std::string_view::npos) continue;
    const std::string_view key = Trim(line.substr(0, colon));
    const std::string_view value = Trim(line.substr(colon + 1));
    if (key == "model name") {
      model.insert(0, value);
      continue;
    }
    for (const std::string_view part :
         {"cpu family", "model", "stepping", "CPU implementer", "CPU part", "CPU variant"}) {
      if (key == part) model.append(", ").append(key).append(" ").append(value);
    }
  }
  if (model.starts_with(", ")) model.erase(0, 2);
  return model.empty() ? "unknown" : model;
}

std::string CpuModel() {
  std::ostringstream text;
  text << std::ifstream("/proc/cpuinfo").rdbuf();
  return CpuModelFrom(text.str());
}

double ThreadSeconds() {
  timespec time{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

}  // namespace motley::base
