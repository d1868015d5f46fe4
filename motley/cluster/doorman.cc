#include "motley/cluster/doorman.h"

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <utility>

#include "motley/base/clock.h"

namespace motley::cluster {
namespace {

constexpr double kSilentSeconds = 10.0;
constexpr std::size_t kMostWaiting = 256;
constexpr int kBacklog = 128;
// Descriptors that strangers do not get: checkpoints, data and the coordinator's own connections
// need some. And the most that connections get however many there are: two for each of the largest
// number of workers, and as many for who comes anew.
constexpr rlim_t kReserved = 128, kMostConnections = 16384;
constexpr auto kOutOfDescriptors = std::chrono::milliseconds(50);

sockaddr* Plain(sockaddr_storage& address) {
  void* memory = &address;
  return static_cast<sockaddr*>(memory);
}

// As gRPC writes it: "ipv4:10.0.0.7:1234".
std::string PeerOf(sockaddr_storage& address, socklen_t size) {
  std::array<char, NI_MAXHOST> host{};
  std::array<char, NI_MAXSERV> port{};
  if (::getnameinfo(Plain(address), size, host.data(), host.size(), port.data(), port.size(),
                    NI_NUMERICHOST | NI_NUMERICSERV) != 0) {
    return "unknown";
  }
  std::string name = host.data();
  constexpr std::string_view kMapped = "::ffff:";
  if (name.starts_with(kMapped)) name.erase(0, kMapped.size());
  const bool v6 = name.find(':') != std::string::npos;
  return v6 ? fmt::format("ipv6:[{}]:{}", name, port.data())
            : fmt::format("ipv4:{}:{}", name, port.data());
}

base::Result<base::Descriptor> ListenAt(const addrinfo& where, int& port) {
  sockaddr_storage address{};
  std::memcpy(&address, where.ai_addr, where.ai_addrlen);
  void* memory = &address;
  if (port != 0) {
    in_port_t& field = where.ai_family == AF_INET6 ? static_cast<sockaddr_in6*>(memory)->sin6_port
                                                   : static_cast<sockaddr_in*>(memory)->sin_port;
    field = htons(static_cast<std::uint16_t>(port));
  }
  base::Descriptor listener(
      ::socket(where.ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  // The connections of a coordinator that was killed linger for a minute. No SO_REUSEPORT: a second
  // coordinator could share the port and steal every other connection.
  const int yes = 1, no = 0;
  ::setsockopt(listener.get(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes));
  if (where.ai_family == AF_INET6) {
    ::setsockopt(listener.get(), IPPROTO_IPV6, IPV6_V6ONLY, &no, sizeof(no));
  }
  socklen_t size = where.ai_addrlen;
  if (listener.get() < 0 || ::bind(listener.get(), Plain(address), size) != 0 ||
      ::listen(listener.get(), kBacklog) != 0 ||
      ::getsockname(listener.get(), Plain(address), &size) != 0) {
    return base::Unavailable("{}", std::strerror(errno));
  }
  port = ntohs(address.ss_family == AF_INET6 ? static_cast<sockaddr_in6*>(memory)->sin6_port
                                             : static_cast<sockaddr_in*>(memory)->sin_port);
  return listener;
}

// Whether a connection with this descriptor leaves enough for everything else. The kernel gives the
// lowest number that is free, so the number says how many there are.
bool LeavesEnough(int descriptor) {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return true;
  const rlim_t reserved = std::min(kReserved, limit.rlim_cur / 4);
  return static_cast<rlim_t>(descriptor) < std::min(limit.rlim_cur - reserved, kMostConnections);
}

// How many bytes tell a TLS client's first record, or HTTP/2 in plain text, from all else.
int BytesThatTell(bool tls) { return tls ? 6 : 14; }

// Whether these are the first of them.
bool BeginsWell(std::string_view bytes, bool tls) {
  if (!tls) return std::string_view("PRI * HTTP/2.0").starts_with(bytes.substr(0, 14));
  return bytes[0] == '\x16' && (bytes.size() < 2 || bytes[1] == '\x03') &&
         (bytes.size() < 6 || bytes[5] == '\x01');
}

}  // namespace

base::Result<std::unique_ptr<Doorman>> Doorman::Listen(const std::string& address, bool tls) {
  const std::size_t colon = address.rfind(':');
  std::string host = address.substr(0, colon);
  if (host.starts_with('[') && host.ends_with(']')) host = host.substr(1, host.size() - 2);
  const std::string port = colon == std::string::npos ? "0" : address.substr(colon + 1);
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE | AI_NUMERICSERV;
  addrinfo* found = nullptr;
  if (const int error = ::getaddrinfo(host.c_str(), port.c_str(), &hints, &found); error != 0) {
    return base::Unavailable("{}: {}", address, ::gai_strerror(error));
  }
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> owner(found, ::freeaddrinfo);
  std::unique_ptr<Doorman> doorman(new Doorman(tls, base::Descriptor(::eventfd(0, EFD_CLOEXEC))));
  base::Status last = base::Unavailable("{}: no address", address);
  for (const addrinfo* at = found; at != nullptr; at = at->ai_next) {
    auto listener = ListenAt(*at, doorman->port_);
    if (listener.ok()) {
      doorman->listeners_.push_back(std::move(listener).value());
    } else {
      last = listener.status();
    }
  }
  if (doorman->listeners_.empty()) return last;
  return doorman;
}

Doorman::~Doorman() {
  thread_.request_stop();
  const std::uint64_t one = 1;
  (void)!::write(wake_.get(), &one, sizeof(one));
}

void Doorman::Open(Admit admit, Refuse refuse) {
  admit_ = std::move(admit);
  refuse_ = std::move(refuse);
  thread_ = std::jthread([this](const std::stop_token& stop) { Work(stop); });
}

void Doorman::Work(const std::stop_token& stop) {
  const base::RealClock clock;
  std::vector<pollfd> polled;
  while (!stop.stop_requested()) {
    polled.assign(1, {wake_.get(), POLLIN, 0});
    for (const base::Descriptor& listener : listeners_)
      polled.push_back({listener.get(), POLLIN, 0});
    for (const Waiting& one : waiting_) polled.push_back({one.connection.get(), POLLIN, 0});
    const int patience = waiting_.empty() ? -1 : 1000;  // milliseconds
    if (::poll(polled.data(), polled.size(), patience) < 0 && errno != EINTR) return;
    // From the back, so that those who are decided about can be taken out.
    const double now = clock.Now();
    for (std::size_t i = waiting_.size(); i-- > 0;) {
      const bool readable = polled[1 + listeners_.size() + i].revents != 0;
      if (Judge(waiting_[i], readable, now)) {
        waiting_.erase(waiting_.begin() + static_cast<std::ptrdiff_t>(i));
      }
    }
    for (std::size_t i = 0; i < listeners_.size(); ++i) {
      if (polled[1 + i].revents != 0) Accept(listeners_[i].get());
    }
  }
}

void Doorman::Accept(int listener) {
  sockaddr_storage address{};
  socklen_t size = sizeof(address);
  base::Descriptor connection(
      ::accept4(listener, Plain(address), &size, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (connection.get() < 0) {
    // It stays in the queue, and would be reported again at once.
    if (errno == EMFILE || errno == ENFILE) std::this_thread::sleep_for(kOutOfDescriptors);
    return;
  }
  if (!LeavesEnough(connection.get())) {
    refuse_(PeerOf(address, size), "too many connections are open");
    return;
  }
  const int yes = 1;
  ::setsockopt(connection.get(), IPPROTO_TCP, TCP_NODELAY, &yes, sizeof(yes));
  // So that it is not readable before there is enough to judge by, or it is closed.
  const int enough = BytesThatTell(tls_);
  ::setsockopt(connection.get(), SOL_SOCKET, SO_RCVLOWAT, &enough, sizeof(enough));
  if (waiting_.size() >= kMostWaiting) {
    refuse_(waiting_.front().peer, "nothing was said, and others are waiting");
    waiting_.erase(waiting_.begin());
  }
  waiting_.push_back(
      {std::move(connection), PeerOf(address, size), base::RealClock().Now() + kSilentSeconds});
}

bool Doorman::Judge(Waiting& waiting, bool readable, double now) {
  if (!readable && now < waiting.deadline) return false;
  std::array<char, 16> bytes{};
  const int socket = waiting.connection.get();
  const ssize_t count = ::recv(socket, bytes.data(), bytes.size(), MSG_PEEK);
  if (readable && count < 0 && (errno == EAGAIN || errno == EINTR)) return false;
  if (readable && count <= 0) return true;  // gone without a word, as who only looks for a listener
  const std::string_view said(bytes.data(), static_cast<std::size_t>(std::max<ssize_t>(count, 0)));
  if (said.empty()) {
    refuse_(waiting.peer, fmt::format("nothing was said for {:.0f} s", kSilentSeconds));
  } else if (!BeginsWell(said, tls_)) {
    refuse_(waiting.peer, tls_ ? "no TLS: plain text, or something else"
                               : "neither TLS nor a call in plain text");
  } else if (std::ssize(said) < BytesThatTell(tls_)) {
    refuse_(waiting.peer, fmt::format("broke off after {} bytes", said.size()));
  } else {
    const int any = 1;
    ::setsockopt(socket, SOL_SOCKET, SO_RCVLOWAT, &any, sizeof(any));
    admit_(std::move(waiting.connection));
  }
  return true;
}

}  // namespace motley::cluster
