#ifndef MOTLEY_CLUSTER_PART_TO_SEND_H_
#define MOTLEY_CLUSTER_PART_TO_SEND_H_

#include <cstdint>
#include <span>
#include <vector>

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
  std::int64_t samples = 0;                    // of an update
  std::int64_t base = 0;                       // where the array begins in the model
  std::vector<plan::GradientNorm> norms = {};  // of a sum
};

// As it travels. Keeps the memory of `part`, which was sent before.
inline void Fill(const PartToSend& item, proto::Part& part) {
  part.set_generation(item.key.generation);
  part.set_step(item.key.step);
  part.set_array(item.array);
  part.set_offset(item.base + item.offset);
  part.set_samples(item.samples);
  part.clear_norms();
  for (const plan::GradientNorm& norm : item.norms) {
    proto::Part::Norm& one = *part.add_norms();
    one.set_samples(norm.samples);
    one.set_squared(norm.squared);
  }
  const std::string_view bytes = BytesOf(
      std::span(*item.floats)
          .subspan(static_cast<std::size_t>(item.offset), static_cast<std::size_t>(item.size)));
  part.mutable_floats()->assign(bytes.data(), bytes.size());
}

}  // namespace motley::cluster

#endif  // MOTLEY_CLUSTER_PART_TO_SEND_H_
