#include <cstddef>
#include <cstdint>
#include <string_view>

#include "apps/motley/job.h"

// A job that is accepted must survive being written and read again: run directories rely on it.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const auto first = motley::app::ParseJob(text, "job.toml");
  if (!first.ok()) return 0;
  const auto second = motley::app::ParseJob(motley::app::ToToml(first->job), "again.toml");
  if (!second.ok() || !(second->job == first->job)) __builtin_trap();
  return 0;
}
