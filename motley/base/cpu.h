#ifndef MOTLEY_BASE_CPU_H_
#define MOTLEY_BASE_CPU_H_

#include <string>
#include <string_view>

namespace motley::base {

// What tells one kind of CPU from another, in one line, from the text of /proc/cpuinfo: its name
// with family, model and stepping, because virtual machines often hide the name; implementer and
// part on ARM. "unknown" when the text says nothing.
std::string CpuModelFrom(std::string_view cpuinfo);

// Of this machine's first core.
std::string CpuModel();

// Seconds of a processor that this thread has used.
double ThreadSeconds();

}  // namespace motley::base

#endif  // MOTLEY_BASE_CPU_H_
