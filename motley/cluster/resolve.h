#ifndef MOTLEY_CLUSTER_RESOLVE_H_
#define MOTLEY_CLUSTER_RESOLVE_H_

#include <sys/socket.h>

#include <string>
#include <vector>

#include "motley/base/status.h"

namespace motley::cluster {

// Where a socket connects to, or listens.
struct Endpoint {
  sockaddr_storage address{};
  socklen_t size = 0;

  const sockaddr* get() const {
    const void* memory = &address;
    return static_cast<const sockaddr*>(memory);
  }
  // The address as a number, without the port; empty when it has none.
  std::string Number() const;
};

// The addresses of a host, by its number or its name; `port` is a number, or empty. kUnavailable
// when it is not found, or not within `seconds`: the system's resolver knows no deadline, so its
// thread is then left to end by itself.
base::Result<std::vector<Endpoint>> Resolve(const std::string& host, const std::string& port,
                                            double seconds);

}  // namespace motley::cluster

#endif  // MOTLEY_CLUSTER_RESOLVE_H_
