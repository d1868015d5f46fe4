#ifndef MOTLEY_APPS_MOTLEY_ADDRESS_H_
#define MOTLEY_APPS_MOTLEY_ADDRESS_H_

#include <string>
#include <string_view>

#include "motley/base/status.h"

namespace motley::app {

// Where a coordinator listens unless told otherwise.
inline constexpr int kDefaultPort = 7600;

// A host, by name or number, and a port.
struct Address {
  std::string host;  // IPv6 without its brackets
  int port = kDefaultPort;

  // "10.0.0.7:7600", "[fe80::7]:7600".
  std::string ToText() const;
  bool operator==(const Address&) const = default;
};

// HOST or HOST:PORT; an IPv6 number with a port stands in brackets. Refuses all else with the fix.
base::Result<Address> ParseAddress(std::string_view text);

// Whether nobody but this machine can reach it: 127.0.0.0/8, ::1, localhost.
bool IsLoopback(const std::string& host);
// Whether it means every address of this machine: 0.0.0.0, ::.
bool IsEveryAddress(const std::string& host);

// The address under which others most likely reach this machine: the source address of its default
// route; 127.0.0.1 without one. Sends nothing.
std::string ReachableHost();

// Fails when nobody could listen there now: the port is taken, the address is not of this machine.
// Port 0 asks whether there is any free one.
base::Status CheckCanListen(const Address& address);

// The name of this machine up to its first dot; empty when it has none.
std::string HostName();

}  // namespace motley::app

#endif  // MOTLEY_APPS_MOTLEY_ADDRESS_H_
