#include "apps/motley/coordinator_access.h"

#include <cstdio>
#include <utility>

#include "motley/base/file.h"

namespace motley::app {
namespace {

using base::InvalidInput;
using base::Result;

constexpr std::uint64_t kLargestTokenFile = 4096;

}  // namespace

Result<cluster::JoinToken> TokenOf(const CoordinatorArgs& args, const Environment& environment) {
  const auto variable = environment.find("MOTLEY_TOKEN");
  std::string text = args.token;
  std::string place = "--token";
  if (!args.token_file.empty()) {
    place = "--token-file";
    auto read = base::ReadFile(args.token_file, kLargestTokenFile);
    if (!read.ok()) {
      return std::move(read).status().In(place).WithFix(
          "give the file that `motley serve --token-file FILE` has written");
    }
    text = std::move(read).value();
  } else if (text.empty() && variable != environment.end()) {
    place = "environment MOTLEY_TOKEN";
    text = variable->second;
  }
  if (text.empty()) {
    return InvalidInput("no join token is given")
        .WithFix(
            "add --token T or --token-file FILE, or set MOTLEY_TOKEN; `motley serve` prints "
            "the token, and `motley token new RUNDIR` makes another");
  }
  auto token = cluster::JoinToken::Parse(text);
  if (!token.ok()) return std::move(token).status().In(place);
  return token;
}

Result<int> OrLostCoordinator(const base::Status& failure) {
  if (failure.code() != base::Code::kUnavailable) return failure;
  fmt::print(stderr, "motley: {}\n", failure.ToString());
  return kExitLostCoordinator;
}

}  // namespace motley::app
