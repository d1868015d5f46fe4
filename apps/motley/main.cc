#include <unistd.h>

#include <string>
#include <vector>

#include "apps/motley/cli.h"

int main(int argc, char** argv) {
  motley::app::Environment environment;
  for (char** variable = ::environ; *variable != nullptr; ++variable) {
    const std::string text(*variable);
    const std::size_t equals = text.find('=');
    if (equals != std::string::npos) {
      environment[text.substr(0, equals)] = text.substr(equals + 1);
    }
  }
  return motley::app::RunProgram(std::vector<std::string>(argv + 1, argv + argc), environment);
}
