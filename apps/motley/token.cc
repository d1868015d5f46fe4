#include <fmt/chrono.h>

#include <ctime>
#include <filesystem>
#include <optional>
#include <utility>

#include "apps/motley/cluster_folder.h"
#include "apps/motley/commands.h"
#include "apps/motley/run_dir.h"

namespace motley::app {
namespace {

using base::InvalidInput;
using base::Result;
using Json = nlohmann::ordered_json;

// The folder of a run that is served, and where it is found.
struct Served {
  ClusterFolder folder;
  Place place;
};

Result<Served> Find(const std::string& run) {
  ClusterFolder folder(RunFiles{run}.cluster());
  MOTLEY_ASSIGN_OR_RETURN(const std::optional<Place> place, folder.LoadPlace());
  if (place) return Served{std::move(folder), *place};
  return InvalidInput("{}: no coordinator has worked in this folder", run)
      .WithFix("give the run directory of `motley serve`; its lines name it");
}

std::string Date(std::int64_t seconds) {
  return fmt::format("{:%Y-%m-%d %H:%M}", fmt::localtime(static_cast<std::time_t>(seconds)));
}

std::string StateOf(const cluster::TokenStore::Entry& token) {
  if (token.revoked) return "revoked";
  return token.expires <= std::time(nullptr) ? "expired" : "valid";
}

}  // namespace

Result<int> NewToken(const TokenArgs& args) {
  MOTLEY_ASSIGN_OR_RETURN(Served served, Find(args.run));
  MOTLEY_ASSIGN_OR_RETURN(const cluster::JoinToken token,
                          IssueToken(served.folder, served.place.tls, args.hours));
  const std::string line = JoinLine(served.place.join, token);
  if (args.json) {
    fmt::print("{}\n", Dump({{"id", token.id},
                             {"token", token.ToText()},
                             {"address", served.place.join.ToText()},
                             {"join", line}}));
  } else {
    fmt::print("{}\n", line);
  }
  return kExitDone;
}

Result<int> ListTokens(const TokenArgs& args) {
  MOTLEY_ASSIGN_OR_RETURN(Served served, Find(args.run));
  MOTLEY_ASSIGN_OR_RETURN(const auto tokens, served.folder.tokens().List());
  if (args.json) {
    Json json = Json::array();
    for (const auto& token : tokens) {
      json.push_back({{"id", token.id},
                      {"issued", token.issued},
                      {"expires", token.expires},
                      {"state", StateOf(token)}});
    }
    fmt::print("{}\n", Dump(json));
    return kExitDone;
  }
  fmt::print("{:<16}  {:<16}  {:<16}  {}\n", "id", "issued", "expires", "state");
  for (const auto& token : tokens) {
    fmt::print("{:<16}  {:<16}  {:<16}  {}\n", token.id, Date(token.issued), Date(token.expires),
               StateOf(token));
  }
  return kExitDone;
}

Result<int> RevokeToken(const TokenArgs& args) {
  MOTLEY_ASSIGN_OR_RETURN(Served served, Find(args.run));
  MOTLEY_RETURN_IF_ERROR(served.folder.tokens().Revoke(args.id));
  if (args.json) {
    fmt::print("{}\n", Dump({{"id", args.id}, {"state", "revoked"}}));
  } else {
    fmt::print("{} is revoked: nobody joins with it any more; who is in stays\n", args.id);
  }
  return kExitDone;
}

}  // namespace motley::app
