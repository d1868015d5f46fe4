#ifndef MOTLEY_CLUSTER_TRAFFIC_H_
#define MOTLEY_CLUSTER_TRAFFIC_H_

#include <atomic>
#include <cstdint>

#include "motley/telemetry/summary.h"

namespace motley::cluster {

// Counts the bytes of messages by what they carry, all machines of a job together, each byte once.
// Without the few per cent that TLS, HTTP/2 and TCP add.
//
// Thread safety: all calls from any thread.
class Traffic {
 public:
  void Gradient(std::int64_t bytes) { gradient_ += bytes; }
  void Weights(std::int64_t bytes) { weights_ += bytes; }
  void Activations(std::int64_t bytes) { activations_ += bytes; }
  void PublicData(std::int64_t bytes) { public_data_ += bytes; }
  void PrivateData(std::int64_t bytes) { private_data_ += bytes; }
  void Control(std::int64_t bytes) { control_ += bytes; }
  telemetry::BytesSent total() const {
    return {.gradient = gradient_,
            .weights = weights_,
            .activations = activations_,
            .public_data = public_data_,
            .private_data = private_data_,
            .control = control_};
  }

 private:
  std::atomic<std::int64_t> gradient_{0}, weights_{0}, activations_{0}, public_data_{0},
      private_data_{0}, control_{0};
};

}  // namespace motley::cluster

#endif  // MOTLEY_CLUSTER_TRAFFIC_H_
