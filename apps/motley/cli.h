#ifndef MOTLEY_APPS_MOTLEY_CLI_H_
#define MOTLEY_APPS_MOTLEY_CLI_H_

#include <string>
#include <vector>

#include "apps/motley/console.h"

namespace motley::app {

// The whole program: `arguments` without the program's name. Returns the exit code.
int RunProgram(std::vector<std::string> arguments, const Environment& environment);

}  // namespace motley::app

#endif  // MOTLEY_APPS_MOTLEY_CLI_H_
