#ifndef MOTLEY_CLUSTER_PART_TO_SEND_H_
#define MOTLEY_CLUSTER_PART_TO_SEND_H_

#include <cstdint>
#include <span>

#include "motley/cluster/cluster.pb.h"
#include "motley/cluster/model_server.h"
#include "motley/cluster/parts.h"

namespace motley::cluster {

// A part of an array that is to be sent. The floats are read when it is sent: they stay as they
// are for as long as somebody holds the array.
struct PartToSend {
  StepKey key;
  proto::Array array = proto::ARRAY_UNKNOWN;
  std::int64_t offset = 0, size = 0;
  ModelArray floats;
  std::int64_t samples = 0;  // of an update
};

// As it travels. Keeps the memory of `part`, which was sent before.
inline void Fill(const PartToSend& item, proto::Part& part) {
  part.set_generation(item.key.generation);
  part.set_step(item.key.step);
  part.set_array(item.array);
  part.set_offset(item.offset);
  part.set_samples(item.samples);
  const std::string_view bytes = BytesOf(
      std::span(*item.floats)
          .subspan(static_cast<std::size_t>(item.offset), static_cast<std::size_t>(item.size)));
  part.mutable_floats()->assign(bytes.data(), bytes.size());
}

}  // namespace motley::cluster

#endif  // MOTLEY_CLUSTER_PART_TO_SEND_H_
