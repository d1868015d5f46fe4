#ifndef MOTLEY_APPS_MOTLEY_LAUNCHER_H_
#define MOTLEY_APPS_MOTLEY_LAUNCHER_H_

#include <optional>
#include <string>

#include "apps/motley/console.h"
#include "motley/base/status.h"

namespace motley::app {

// What started this process among others, and which of them it is.
struct Launch {
  std::string launcher;  // "torchrun", "Open MPI", "PMI", "Slurm"
  int rank = 0, size = 1;
};

// From the launcher's variables; of several launchers the innermost: a program that Open MPI starts
// inside a Slurm job is the rank that Open MPI says. None when there are no such variables. Refuses
// ranks that cannot be.
base::Result<std::optional<Launch>> LaunchOf(const Environment& environment);

}  // namespace motley::app

#endif  // MOTLEY_APPS_MOTLEY_LAUNCHER_H_
