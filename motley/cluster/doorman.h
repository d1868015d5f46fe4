#ifndef MOTLEY_CLUSTER_DOORMAN_H_
#define MOTLEY_CLUSTER_DOORMAN_H_

#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "motley/base/descriptor.h"
#include "motley/base/status.h"

namespace motley::cluster {

// Listens in place of gRPC, which tells nobody of a connection that ends in its handshake. Looks at
// the first bytes of each one: what begins like the protocol goes on to gRPC, all else is closed
// and told with its address, and so is who says nothing for ten seconds, and whoever comes when
// connections have taken almost all descriptors that the process may have.
//
// Thread safety: none; the functions that it was given are called from a thread of its own.
class Doorman {
 public:
  using Admit = std::function<void(base::Descriptor connection)>;
  using Refuse = std::function<void(const std::string& peer, const std::string& what)>;

  // At HOST:PORT, on every address that the host has; port 0: any. `tls`: what to expect.
  static base::Result<std::unique_ptr<Doorman>> Listen(const std::string& address, bool tls);
  // Nobody comes in any more when it has returned.
  ~Doorman();
  Doorman(const Doorman&) = delete;
  Doorman& operator=(const Doorman&) = delete;

  int port() const { return port_; }
  // Begins to let them in. At most once.
  void Open(Admit admit, Refuse refuse);

 private:
  struct Waiting {
    base::Descriptor connection;
    std::string peer;
    double deadline = 0.0;
  };

  Doorman(bool tls, base::Descriptor wake) : tls_(tls), wake_(std::move(wake)) {}
  void Work(const std::stop_token& stop);
  void Accept(int listener);
  // Whether it is decided what becomes of this one.
  bool Judge(Waiting& waiting, bool readable, double now);

  const bool tls_;
  const base::Descriptor wake_;
  int port_ = 0;
  std::vector<base::Descriptor> listeners_;
  std::vector<Waiting> waiting_;
  Admit admit_;
  Refuse refuse_;
  std::jthread thread_;
};

}  // namespace motley::cluster

#endif  // MOTLEY_CLUSTER_DOORMAN_H_
