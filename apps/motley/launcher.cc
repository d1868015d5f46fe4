#include "apps/motley/launcher.h"

#include <charconv>

namespace motley::app {
namespace {

using base::Result;

struct Variables {
  const char *launcher, *rank, *size;
};

constexpr Variables kLaunchers[] = {
    {"torchrun", "RANK", "WORLD_SIZE"},
    {"Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"},
    {"PMI", "PMI_RANK", "PMI_SIZE"},
    {"Slurm", "SLURM_PROCID", "SLURM_NTASKS"},
};

// -1 for what is no whole number from 0 on.
int Number(const std::string& text) {
  int number = -1;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  return error == std::errc() && end == text.data() + text.size() ? number : -1;
}

}  // namespace

Result<std::optional<Launch>> LaunchOf(const Environment& environment) {
  for (const Variables& variables : kLaunchers) {
    const auto rank = environment.find(variables.rank), size = environment.find(variables.size);
    // One alone is somebody's own variable.
    if (rank == environment.end() || size == environment.end()) continue;
    const Launch launch{variables.launcher, Number(rank->second), Number(size->second)};
    if (launch.rank >= 0 && launch.rank < launch.size) return std::optional(launch);
    return base::InvalidInput("environment {}={} and {}={}: no rank of {}", variables.rank,
                              rank->second, variables.size, size->second, variables.launcher)
        .WithFix(fmt::format("unset both, or let {} set them", variables.launcher));
  }
  return std::optional<Launch>();
}

}  // namespace motley::app
