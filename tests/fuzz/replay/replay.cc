// Feeds a fuzz target without libFuzzer: replay NAME SEEDS SECONDS. Takes every file of the folder
// SEEDS, then, for so long, the same with a few bytes changed, in an order that is always the same.
#include <cstdint>
#include <filesystem>
#include <iostream>
#include <string>
#include <vector>

#include "motley/base/clock.h"
#include "motley/base/file.h"
#include "motley/base/rng.h"

extern "C" int LLVMFuzzerInitialize(int* count, char*** arguments);
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

namespace {

void Feed(const std::string& input) {
  const std::vector<std::uint8_t> bytes(input.begin(), input.end());
  (void)LLVMFuzzerTestOneInput(bytes.data(), bytes.size());
}

}  // namespace

int main(int count, char** arguments) {
  if (count != 4) {
    std::cerr << "usage: replay NAME SEEDS SECONDS\n";
    return 2;
  }
  // The target reads which kind of message is meant from what it is called.
  char** name = arguments + 1;
  (void)LLVMFuzzerInitialize(&count, &name);
  std::vector<std::string> seeds;
  for (const auto& file : std::filesystem::directory_iterator(arguments[2])) {
    seeds.push_back(motley::base::ReadFile(file.path()).value());
    Feed(seeds.back());
  }
  const motley::base::RealClock clock;
  const double end = clock.Now() + std::stod(arguments[3]);
  motley::base::Rng rng(1);
  while (clock.Now() < end) {
    std::string input = seeds.at(rng.Below(seeds.size()));
    for (std::uint64_t changes = rng.Below(4); changes > 0 && !input.empty(); --changes) {
      input[rng.Below(input.size())] = static_cast<char>(rng.Below(256));
    }
    Feed(input);
  }
  return 0;
}
