#include "apps/motley/cluster_folder.h"

#include <cmath>
#include <ctime>
#include <nlohmann/json.hpp>
#include <utility>

#include "apps/motley/console.h"

namespace motley::app {
namespace {

using base::InvalidInput;
using base::Result;
using base::Status;

std::int64_t Now() { return static_cast<std::int64_t>(std::time(nullptr)); }

Result<Place> ParsePlace(const std::string& text) {
  const auto json = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  const auto address = [&](const char* key) -> Result<Address> {
    if (!json.is_object() || !json.contains(key) || !json[key].is_string()) {
      return InvalidInput("\"{}\" is no text", key);
    }
    return ParseAddress(json[key].get_ref<const std::string&>());
  };
  MOTLEY_ASSIGN_OR_RETURN(Address listen, address("listen"));
  MOTLEY_ASSIGN_OR_RETURN(Address join, address("join"));
  if (!json.contains("tls") || !json["tls"].is_boolean()) {
    return InvalidInput("\"tls\" is not true or false");
  }
  return Place{std::move(listen), std::move(join), json["tls"].get<bool>()};
}

}  // namespace

ClusterFolder::ClusterFolder(std::filesystem::path folder)
    : folder_(std::move(folder)), tokens_(folder_ / "tokens.json", Now) {}

Result<cluster::Identity> ClusterFolder::identity() const {
  return cluster::LoadOrCreateIdentity(folder_);
}

Result<std::optional<Place>> ClusterFolder::LoadPlace() const {
  const auto text = cluster::ReadPrivateFile(AddressFile());
  if (!text.ok() && text.status().code() == base::Code::kNotFound) return std::optional<Place>();
  if (!text.ok()) return text.status();
  auto place = ParsePlace(*text);
  if (place.ok()) return std::optional(std::move(place).value());
  return std::move(place)
      .status()
      .In(AddressFile().string())
      .WithFix(
          fmt::format("remove '{}'; workers then need the new address", AddressFile().string()));
}

Status ClusterFolder::SavePlace(const Place& place) const {
  const nlohmann::ordered_json json = {
      {"listen", place.listen.ToText()}, {"join", place.join.ToText()}, {"tls", place.tls}};
  return cluster::WithFolderLocked(
      folder_, [&] { return cluster::WritePrivateFile(AddressFile(), Dump(json) + "\n"); });
}

Result<cluster::JoinToken> IssueToken(ClusterFolder& folder, bool tls, double hours) {
  std::string fingerprint;
  if (tls) {
    MOTLEY_ASSIGN_OR_RETURN(const cluster::Identity identity, folder.identity());
    fingerprint = identity.fingerprint;
  }
  return folder.tokens().Issue(std::llround(hours * 3600.0), fingerprint);
}

std::string JoinLine(const Address& join, const cluster::JoinToken& token) {
  return fmt::format("motley join {} --token {}", join.ToText(), token.ToText());
}

}  // namespace motley::app
