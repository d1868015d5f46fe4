#include "motley/cluster/session.h"

#include <grpcpp/server_context.h>

namespace motley::cluster {

bool Session::Attach(bool work, grpc::ServerContext* call) {
  const std::lock_guard lock(mutex_);
  if (closed_ || calls_[work ? 1 : 0] != nullptr) return false;
  calls_[work ? 1 : 0] = call;
  return true;
}

void Session::Detach(bool work) {
  const std::lock_guard lock(mutex_);
  calls_[work ? 1 : 0] = nullptr;
}

void Session::Close(const std::string& reason) {
  const std::lock_guard lock(mutex_);
  if (!closed_) reason_ = reason;  // before anybody can see that it is closed
  closed_ = true;
  orders.Close();
  parts.Close();
  for (grpc::ServerContext* call : calls_) {
    if (call != nullptr) call->TryCancel();
  }
}

std::string Session::reason() const {
  const std::lock_guard lock(mutex_);
  return reason_;
}

}  // namespace motley::cluster
