#ifndef MOTLEY_APPS_MOTLEY_CLUSTER_FOLDER_H_
#define MOTLEY_APPS_MOTLEY_CLUSTER_FOLDER_H_

#include <filesystem>
#include <optional>
#include <string>

#include "apps/motley/address.h"
#include "motley/base/status.h"
#include "motley/cluster/security.h"

namespace motley::app {

// Where a coordinator listens, and where its workers find it.
struct Place {
  Address listen;
  Address join;
  bool tls = true;
};

// RUNDIR/cluster, for its owner only: what a coordinator that is started again must have as before,
// so that its workers come back. key.pem, certificate.pem, tokens.json, address.json.
class ClusterFolder {
 public:
  explicit ClusterFolder(std::filesystem::path folder);

  // Made at first use.
  base::Result<cluster::Identity> identity() const;
  cluster::TokenStore& tokens() { return tokens_; }

  // Of the process before; none if there was none.
  base::Result<std::optional<Place>> LoadPlace() const;
  base::Status SavePlace(const Place& place) const;

 private:
  std::filesystem::path AddressFile() const { return folder_ / "address.json"; }

  const std::filesystem::path folder_;
  cluster::TokenStore tokens_;
};

// A new token, valid for so many hours, for a server with or without TLS.
base::Result<cluster::JoinToken> IssueToken(ClusterFolder& folder, bool tls, double hours);

// What a person pastes on another machine: "motley join HOST:PORT --token T".
std::string JoinLine(const Address& join, const cluster::JoinToken& token);

}  // namespace motley::app

#endif  // MOTLEY_APPS_MOTLEY_CLUSTER_FOLDER_H_
