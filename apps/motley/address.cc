#include "apps/motley/address.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <memory>
#include <optional>

#include "motley/base/descriptor.h"

namespace motley::app {
namespace {

using base::InvalidInput;
using base::Result;
using base::Status;

std::optional<int> ParsePort(std::string_view text) {
  int port = -1;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), port);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return port >= 0 && port <= 65535 ? std::optional(port) : std::nullopt;
}

bool IsHost(std::string_view host) {
  return !host.empty() && host.size() < 256 && std::all_of(host.begin(), host.end(), [](char c) {
    const auto byte = static_cast<unsigned char>(c);
    return byte > ' ' && byte < 127 && c != '[' && c != ']' && c != '/';
  });
}

struct FreeAddresses {
  void operator()(addrinfo* list) const { ::freeaddrinfo(list); }
};
using Addresses = std::unique_ptr<addrinfo, FreeAddresses>;

Result<Addresses> Resolve(const Address& address) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE | AI_NUMERICSERV;
  addrinfo* list = nullptr;
  const int error =
      ::getaddrinfo(address.host.c_str(), std::to_string(address.port).c_str(), &hints, &list);
  if (error == 0) return Addresses(list);
  return InvalidInput("{}: {}", address.host, ::gai_strerror(error))
      .WithFix("give a name or a number of this machine; 0.0.0.0 stands for all of them");
}

// Without SO_REUSEPORT, so that a port which another process would share is taken as well.
int TryListen(const addrinfo& where) {
  const base::Descriptor socket(::socket(where.ai_family, where.ai_socktype | SOCK_CLOEXEC, 0));
  const int yes = 1;
  if (socket.get() < 0) return errno;
  // The connections of a coordinator that was killed linger for a minute.
  ::setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes));
  if (::bind(socket.get(), where.ai_addr, where.ai_addrlen) != 0) return errno;
  return ::listen(socket.get(), 1) == 0 ? 0 : errno;
}

}  // namespace

std::string Address::ToText() const {
  const bool v6 = host.find(':') != std::string::npos;
  return v6 ? fmt::format("[{}]:{}", host, port) : fmt::format("{}:{}", host, port);
}

Result<Address> ParseAddress(std::string_view text) {
  const Status refusal =
      InvalidInput("'{}' is no address", text.substr(0, 200))
          .WithFix("give HOST:PORT, for example node7:7600, 10.0.0.7:7600 or [fe80::7]:7600");
  std::string_view host = text, port;
  if (text.starts_with('[')) {
    const std::size_t close = text.find(']');
    if (close == std::string_view::npos) return refusal;
    host = text.substr(1, close - 1);
    port = text.substr(close + 1);
    if (host.find(':') == std::string_view::npos) return refusal;
  } else if (std::count(text.begin(), text.end(), ':') == 1) {  // more: IPv6 without a port
    host = text.substr(0, text.find(':'));
    port = text.substr(host.size());
  }
  if (!IsHost(host)) return refusal;
  if (port.empty()) return Address{std::string(host), kDefaultPort};
  const auto number = port.front() == ':' ? ParsePort(port.substr(1)) : std::nullopt;
  if (!number) return refusal;
  return Address{std::string(host), *number};
}

bool IsLoopback(const std::string& host) {
  in_addr v4{};
  if (::inet_pton(AF_INET, host.c_str(), &v4) == 1) return ntohl(v4.s_addr) >> 24 == 127;
  in6_addr v6{};
  if (::inet_pton(AF_INET6, host.c_str(), &v6) == 1) return IN6_IS_ADDR_LOOPBACK(&v6);
  return host == "localhost";
}

bool IsEveryAddress(const std::string& host) {
  in6_addr v6{};
  return host == "0.0.0.0" ||
         (::inet_pton(AF_INET6, host.c_str(), &v6) == 1 && IN6_IS_ADDR_UNSPECIFIED(&v6));
}

std::string ReachableHost() {
  // Connecting a datagram socket asks the routes and sends nothing. The address is one for
  // documentation (RFC 5737): nobody has it, so only the default route leads there.
  const base::Descriptor socket(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  sockaddr_in there{};
  there.sin_family = AF_INET;
  there.sin_port = htons(kDefaultPort);
  ::inet_pton(AF_INET, "192.0.2.1", &there.sin_addr);
  sockaddr_in here{};
  socklen_t size = sizeof(here);
  std::array<char, INET_ADDRSTRLEN> text{};
  const bool found =
      socket.get() >= 0 &&
      ::connect(socket.get(), reinterpret_cast<const sockaddr*>(&there), sizeof(there)) == 0 &&
      ::getsockname(socket.get(), reinterpret_cast<sockaddr*>(&here), &size) == 0 &&
      ::inet_ntop(AF_INET, &here.sin_addr, text.data(), text.size()) != nullptr;
  return found ? std::string(text.data()) : "127.0.0.1";
}

Status CheckCanListen(const Address& address) {
  MOTLEY_ASSIGN_OR_RETURN(const Addresses found, Resolve(address));
  const int error = TryListen(*found);
  if (error == 0) return {};
  const bool taken = error == EADDRINUSE;
  return InvalidInput("cannot listen on {}: {}", address.ToText(), std::strerror(error))
      .WithFix(taken ? "end the program that has this port, or choose another with --listen"
                     : "give an address of this machine; 0.0.0.0 stands for all of them");
}

std::string HostName() {
  std::array<char, 256> name{};
  if (::gethostname(name.data(), name.size() - 1) != 0) return "";
  const std::string whole(name.data());
  return whole.substr(0, whole.find('.'));
}

}  // namespace motley::app
