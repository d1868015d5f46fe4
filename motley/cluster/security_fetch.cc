#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cstring>
#include <memory>

#include "motley/base/clock.h"
#include "motley/cluster/resolve.h"
#include "motley/cluster/security.h"

namespace motley::cluster {
namespace {

constexpr std::string_view kCheckServer =
    "check the address and the port, that `motley serve` runs there, and that no firewall is "
    "between";
constexpr std::string_view kCheckTls =
    "check the port; a server that runs without TLS has printed a token without a fingerprint: use "
    "that";
constexpr double kLongestWaitSeconds = 3600.0;  // of one system call, against overflow

struct HostPort {
  std::string host, port;
};

base::Result<HostPort> Split(const std::string& address) {
  const std::size_t colon = address.rfind(':');
  std::string host = address.substr(0, colon);
  const std::string port = colon == std::string::npos ? "" : address.substr(colon + 1);
  const bool bracketed = host.size() > 2 && host.front() == '[' && host.back() == ']';
  if (bracketed) host = host.substr(1, host.size() - 2);
  std::uint16_t number = 0;
  const auto [end, error] = std::from_chars(port.data(), port.data() + port.size(), number);
  const bool good_port = error == std::errc() && end == port.data() + port.size() && number != 0;
  const bool good_host =
      !host.empty() && host.size() < 256 && (bracketed || host.find(':') == std::string::npos) &&
      std::all_of(host.begin(), host.end(),
                  [](unsigned char c) { return c > ' ' && c != 127 && c != '[' && c != ']'; });
  if (good_host && good_port) return HostPort{std::move(host), port};
  return base::InvalidInput("'{}' is no address of a server", address)
      .WithFix("give HOST:PORT, for example node7:7400, 10.0.0.7:7400 or [fe80::7]:7400");
}

// A TCP connection whose every wait ends at one deadline.
class Connection {
 public:
  Connection(const std::string& address, double deadline_seconds)
      : address_(address), seconds_(deadline_seconds), end_(clock_.Now() + deadline_seconds) {}
  ~Connection() { Close(); }
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  base::Status Open();
  base::Status Send(std::string_view bytes);
  // At least one byte. Fails when the peer has closed.
  base::Result<std::string> Receive();

 private:
  double Remaining() const {
    const double left = end_ - clock_.Now();
    return left > 0 ? std::min(left, kLongestWaitSeconds) : 0.0;
  }
  base::Status Connect(const Endpoint& endpoint, double seconds);
  base::Status Wait(short events, double seconds) const;
  base::Status NoAnswer() const {
    return base::Unavailable("{}: no answer within {:g} s", address_, seconds_)
        .WithFix(std::string(kCheckServer));
  }
  base::Status Error(std::string_view what, int error) const {
    return base::Unavailable("{}: {}: {}", address_, what, std::strerror(error))
        .WithFix(std::string(kCheckServer));
  }
  void Close() {
    if (fd_ >= 0) ::close(fd_);
    fd_ = -1;
  }

  const base::RealClock clock_;
  const std::string address_;
  const double seconds_, end_;
  int fd_ = -1;
};

base::Status Connection::Wait(short events, double seconds) const {
  const double end = clock_.Now() + seconds;
  while (true) {
    const double left = end - clock_.Now();
    if (!(left > 0)) return NoAnswer();
    pollfd poll{.fd = fd_, .events = events, .revents = 0};
    const int ready = ::poll(&poll, 1, static_cast<int>(left * 1000) + 1);
    if (ready > 0) return {};
    if (ready < 0 && errno != EINTR) return Error("cannot wait", errno);
  }
}

base::Status Connection::Connect(const Endpoint& endpoint, double seconds) {
  Close();
  fd_ = ::socket(endpoint.address.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (fd_ < 0) return Error("cannot open a socket", errno);
  if (::connect(fd_, endpoint.get(), endpoint.size) == 0) return {};
  if (errno != EINPROGRESS && errno != EINTR) return Error("cannot connect", errno);
  MOTLEY_RETURN_IF_ERROR(Wait(POLLOUT, seconds));
  int error = 0;
  socklen_t size = sizeof(error);
  if (::getsockopt(fd_, SOL_SOCKET, SO_ERROR, &error, &size) != 0) error = errno;
  return error == 0 ? base::Status() : Error("cannot connect", error);
}

base::Status Connection::Open() {
  MOTLEY_ASSIGN_OR_RETURN(const HostPort peer, Split(address_));
  const auto found = Resolve(peer.host, peer.port, Remaining());
  if (!found.ok()) return base::Status(found.status()).WithFix(std::string(kCheckServer));
  const std::vector<Endpoint>& endpoints = *found;
  base::Status status = NoAnswer();
  for (std::size_t i = 0; i < endpoints.size(); ++i) {
    // One address that swallows everything leaves time for the others.
    status = Connect(endpoints[i], Remaining() / static_cast<double>(endpoints.size() - i));
    if (status.ok()) return status;
  }
  return status;
}

base::Status Connection::Send(std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t count = ::send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (count >= 0) {
      bytes.remove_prefix(static_cast<std::size_t>(count));
    } else if (errno == EAGAIN) {
      MOTLEY_RETURN_IF_ERROR(Wait(POLLOUT, Remaining()));
    } else if (errno != EINTR) {
      return Error("cannot send", errno);
    }
  }
  return {};
}

base::Result<std::string> Connection::Receive() {
  std::array<char, 1 << 14> buffer;
  while (Remaining() > 0) {  // also for a peer that never lets us wait
    const ssize_t count = ::recv(fd_, buffer.data(), buffer.size(), 0);
    if (count > 0) return std::string(buffer.data(), static_cast<std::size_t>(count));
    if (count == 0) {
      return base::Unavailable("{}: closed the connection during the TLS handshake", address_)
          .WithFix(std::string(kCheckTls));
    }
    if (errno == EAGAIN) {
      MOTLEY_RETURN_IF_ERROR(Wait(POLLIN, Remaining()));
    } else if (errno != EINTR) {
      return Error("cannot receive", errno);
    }
  }
  return NoAnswer();
}

using Context = std::unique_ptr<SSL_CTX, void (*)(SSL_CTX*)>;
using Tls = std::unique_ptr<SSL, void (*)(SSL*)>;

// With buffers in memory instead of the socket, to which OpenSSL would write without MSG_NOSIGNAL:
// a peer that hangs up would kill the process.
Tls MakeTls(SSL_CTX* context) {
  Tls tls(SSL_new(context), SSL_free);
  if (tls == nullptr) return tls;
  SSL_set_bio(tls.get(), BIO_new(BIO_s_mem()), BIO_new(BIO_s_mem()));
  // The fingerprint decides, not an authority. That the peer has the key of what it shows is
  // checked in every handshake.
  SSL_set_verify(tls.get(), SSL_VERIFY_NONE, nullptr);
  constexpr std::array<unsigned char, 3> kHttp2 = {2, 'h', '2'};  // gRPC refuses who does not offer
  std::string name(kCertificateName);
  const bool ok = SSL_set_min_proto_version(tls.get(), TLS1_2_VERSION) == 1 &&
                  SSL_set_alpn_protos(tls.get(), kHttp2.data(), kHttp2.size()) == 0 &&
                  SSL_ctrl(tls.get(), SSL_CTRL_SET_TLSEXT_HOSTNAME, TLSEXT_NAMETYPE_host_name,
                           name.data()) == 1;
  return ok ? std::move(tls) : Tls(nullptr, SSL_free);
}

base::Status SendWhatTlsWrote(SSL* tls, Connection& peer) {
  char* data = nullptr;
  const long size = BIO_get_mem_data(SSL_get_wbio(tls), &data);
  if (size <= 0) return {};
  const std::string bytes(data, static_cast<std::size_t>(size));
  BIO_reset(SSL_get_wbio(tls));
  return peer.Send(bytes);
}

base::Status Handshake(SSL* tls, Connection& peer, const std::string& address) {
  while (true) {
    ERR_clear_error();
    const int done = SSL_connect(tls);
    const int error = SSL_get_error(tls, done);
    if (done != 1 && error != SSL_ERROR_WANT_READ) {
      const char* reason = ERR_reason_error_string(ERR_peek_error());
      // The alert is for the log of the peer: that it may be lost changes nothing here.
      static_cast<void>(SendWhatTlsWrote(tls, peer));
      return base::InvalidInput("{}: no TLS handshake: {}", address,
                                reason != nullptr ? reason : "the answer is not TLS")
          .WithFix(std::string(kCheckTls));
    }
    MOTLEY_RETURN_IF_ERROR(SendWhatTlsWrote(tls, peer));
    if (done == 1) return {};
    MOTLEY_ASSIGN_OR_RETURN(const std::string bytes, peer.Receive());
    BIO_write(SSL_get_rbio(tls), bytes.data(), static_cast<int>(bytes.size()));
  }
}

std::string PeerCertificate(SSL* tls) {
  const std::unique_ptr<X509, void (*)(X509*)> certificate(SSL_get1_peer_certificate(tls),
                                                           X509_free);
  const std::unique_ptr<BIO, int (*)(BIO*)> bio(BIO_new(BIO_s_mem()), BIO_free);
  if (certificate == nullptr || PEM_write_bio_X509(bio.get(), certificate.get()) != 1) return "";
  char* data = nullptr;
  const long size = BIO_get_mem_data(bio.get(), &data);
  return std::string(data, static_cast<std::size_t>(std::max(size, 0L)));
}

base::Result<std::string> Fetch(const std::string& address, double deadline_seconds) {
  const Context context(SSL_CTX_new(TLS_client_method()), SSL_CTX_free);
  const Tls tls = context != nullptr ? MakeTls(context.get()) : Tls(nullptr, SSL_free);
  if (tls == nullptr) return base::Internal("{}: OpenSSL cannot prepare a handshake", address);
  Connection peer(address, deadline_seconds);
  MOTLEY_RETURN_IF_ERROR(peer.Open());
  MOTLEY_RETURN_IF_ERROR(Handshake(tls.get(), peer, address));
  std::string pem = PeerCertificate(tls.get());
  SSL_shutdown(tls.get());
  static_cast<void>(SendWhatTlsWrote(tls.get(), peer));  // a farewell, which may be lost
  return pem;
}

}  // namespace

base::Result<std::string> FetchCertificate(const std::string& address,
                                           const std::string& fingerprint,
                                           double deadline_seconds) {
  auto pem = Fetch(address, deadline_seconds);
  ERR_clear_error();  // the next user of TLS in this thread would take them for its own
  if (!pem.ok()) return pem;
  const auto shown = Fingerprint(*pem);
  if (!shown.ok()) return base::Status(shown.status()).In(address);
  if (*shown != fingerprint) {
    return base::InvalidInput(
               "{}: shows a certificate with the SHA-256 {}, but the token names '{}'", address,
               *shown, fingerprint)
        .WithFix(
            "use the token that this very server has printed; if you did, somebody else answers "
            "at this address");
  }
  base::Status usable = CheckUsable(*pem);
  if (!usable.ok()) return std::move(usable).In(address);
  return pem;
}

}  // namespace motley::cluster
