#include "motley/cluster/resolve.h"

#include <netdb.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <future>
#include <memory>
#include <system_error>
#include <thread>
#include <utility>

namespace motley::cluster {
namespace {

using Endpoints = base::Result<std::vector<Endpoint>>;

// May wait as long as the resolver likes, unless `flags` has AI_NUMERICHOST.
Endpoints LookUp(const std::string& host, const std::string& port, int flags) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = flags | AI_NUMERICSERV;
  addrinfo* found = nullptr;
  const char* const service = port.empty() ? nullptr : port.c_str();
  if (const int error = ::getaddrinfo(host.c_str(), service, &hints, &found); error != 0) {
    return base::Unavailable("cannot find the host '{}': {}", host, ::gai_strerror(error));
  }
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> owner(found, ::freeaddrinfo);
  std::vector<Endpoint> endpoints;
  for (const addrinfo* at = found; at != nullptr; at = at->ai_next) {
    Endpoint endpoint{.size = std::min<socklen_t>(at->ai_addrlen, sizeof(sockaddr_storage))};
    std::memcpy(&endpoint.address, at->ai_addr, endpoint.size);
    endpoints.push_back(endpoint);
  }
  return endpoints;
}

}  // namespace

std::string Endpoint::Number() const {
  char text[NI_MAXHOST];
  const int error = ::getnameinfo(get(), size, text, sizeof(text), nullptr, 0, NI_NUMERICHOST);
  return error == 0 ? text : "";
}

Endpoints Resolve(const std::string& host, const std::string& port, double seconds) {
  if (auto numeric = LookUp(host, port, AI_NUMERICHOST); numeric.ok()) return numeric;
  std::packaged_task<Endpoints()> task([host, port] { return LookUp(host, port, 0); });
  std::future<Endpoints> answer = task.get_future();
  try {
    std::thread(std::move(task)).detach();
  } catch (const std::system_error& error) {
    return base::Internal("cannot start a thread: {}", error.what());
  }
  if (answer.wait_for(std::chrono::duration<double>(seconds)) != std::future_status::ready) {
    return base::Unavailable("cannot find the host '{}': no answer within {:g} s", host, seconds);
  }
  return answer.get();
}

}  // namespace motley::cluster
