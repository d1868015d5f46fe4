#ifndef MOTLEY_CLUSTER_SECURITY_H_
#define MOTLEY_CLUSTER_SECURITY_H_

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "motley/base/status.h"

namespace motley::cluster {

// A coordinator's key and self-signed certificate. Workers do not trust an authority: the join
// token names the certificate by its SHA-256.
struct Identity {
  std::string key_pem, certificate_pem;
  std::string fingerprint;  // lower-case hexadecimal SHA-256 of the certificate (DER)
};

// A new one, which is nowhere but here.
base::Result<Identity> MakeIdentity();

// Reads key.pem and certificate.pem of `folder`, or makes them (P-256, ten years) when neither is
// there. A folder that it makes and both files are for their owner only; files that others may read
// and folders that others may write to are refused, as is a pair that gRPC could not use.
base::Result<Identity> LoadOrCreateIdentity(const std::filesystem::path& folder);

// Fetches the certificate of the server at HOST:PORT within `deadline_seconds` and returns it (PEM)
// if its SHA-256 is `fingerprint`: what gRPC then needs to trust it. Refuses any other.
base::Result<std::string> FetchCertificate(const std::string& address,
                                           const std::string& fingerprint, double deadline_seconds);

// The name in every certificate of ours, which gRPC is told to expect.
inline constexpr std::string_view kCertificateName = "motley";

// Lower-case hexadecimal SHA-256 of the DER form of the first certificate in `pem`.
base::Result<std::string> Fingerprint(const std::string& pem);

// Refuses the certificate if gRPC would not accept it now: another name, or not valid by the clock
// of this machine.
base::Status CheckUsable(const std::string& pem);

// What a person pastes: lets a worker in, and tells it whom to trust. "motley1-" and 82 characters
// of base64url; 39 for a server without TLS.
struct JoinToken {
  std::string id;           // hexadecimal; not secret: names the token in lists and logs
  std::string secret;       // hexadecimal
  std::string fingerprint;  // of the server's certificate; empty for a server without TLS
  std::string ToText() const;
  // Refuses what is damaged (a checksum tells), with what to do.
  static base::Result<JoinToken> Parse(std::string_view text);
};

// The tokens that a coordinator accepts: tokens.json in its folder, for its owner only, with the
// SHA-256 of each secret, never the secret. Read again by every call, so that another process may
// issue and revoke while the coordinator runs; written by rename under a lock. A file that is not
// there holds no tokens.
//
// Thread safety: all calls from any thread.
class TokenStore {
 public:
  struct Entry {
    std::string id;
    std::int64_t issued = 0, expires = 0;  // seconds since 1970
    bool revoked = false;
  };

  // `now` gives seconds since 1970.
  TokenStore(std::filesystem::path file, std::function<std::int64_t()> now);

  // A new token, valid for `seconds` (at most ten years).
  base::Result<JoinToken> Issue(std::int64_t seconds, const std::string& fingerprint);
  // Fails with the reason (unknown, wrong secret, expired, revoked) for the log; what the peer is
  // told must not tell them apart. Compares in constant time, and repeats nothing that the peer
  // sent but a well-formed id.
  base::Status Check(const std::string& id, const std::string& secret);
  base::Status Revoke(const std::string& id);
  base::Result<std::vector<Entry>> List();

 private:
  const std::filesystem::path file_;
  const std::function<std::int64_t()> now_;
};

// `bytes` random bytes of the operating system, hexadecimal.
std::string RandomHex(int bytes);

// Whether two secrets are the same, in a time that does not tell where they differ.
bool SameSecret(std::string_view a, std::string_view b);

// Files for their owner only. Reading refuses a file that anybody else may read or write, and a
// folder that anybody else may write to, with the chmod that helps; both refuse more than 16 MB.
base::Result<std::string> ReadPrivateFile(const std::filesystem::path& path);
// By rename, so that a kill leaves the old file or the new. One writer at a time: call it within
// WithFolderLocked.
base::Status WritePrivateFile(const std::filesystem::path& path, std::string_view content);

// Makes `folder` (mode 0700) if it is not there, and runs `work` while no other thread or process
// does so for the same folder. Gives up when they have not let go within `wait_seconds`.
base::Status WithFolderLocked(const std::filesystem::path& folder,
                              const std::function<base::Status()>& work, double wait_seconds = 5.0);

}  // namespace motley::cluster

#endif  // MOTLEY_CLUSTER_SECURITY_H_
