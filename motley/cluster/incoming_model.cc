#include "motley/cluster/incoming_model.h"

#include <algorithm>

namespace motley::cluster {

IncomingModel::IncomingModel(const Parts& parts, bool with_velocity, proto::Array array)
    : parts_(parts), with_velocity_(with_velocity), array_(array) {}

bool IncomingModel::HasRange(const StepKey& key, int range) const {
  if (key_ != key) return false;
  for (int i = 0; i < parts_.count(); ++i) {
    if (parts_.RangeOf(i) == range && !seen_[static_cast<std::size_t>(i)]) return false;
  }
  return true;
}

base::Status IncomingModel::Take(const proto::Part& part) {
  const bool is_model = part.array() == array_;
  if (!is_model && !(with_velocity_ && part.array() == proto::ARRAY_VELOCITY)) {
    return base::InvalidInput("an array that is not of the model");
  }
  const std::string& bytes = part.floats();
  if (bytes.size() % sizeof(float) != 0) {
    return base::InvalidInput("{} bytes are no floats", bytes.size());
  }
  const auto count = static_cast<std::int64_t>(bytes.size() / sizeof(float));
  MOTLEY_ASSIGN_OR_RETURN(const int index, parts_.Find(part.offset(), count));
  if (!is_model && index >= parts_.parameter_parts()) {
    return base::InvalidInput("a velocity at {}", part.offset());
  }
  const StepKey key{part.generation(), part.step()};
  if (key_ && key < *key_) return {};
  if (key_ != key) {
    key_ = key;
    const int wanted = parts_.count() + (with_velocity_ ? parts_.parameter_parts() : 0);
    seen_.assign(static_cast<std::size_t>(wanted), false);
    missing_ = wanted;
    model_.resize(static_cast<std::size_t>(parts_.floats()));
    if (with_velocity_) {
      const Parts::Part& last = parts_[parts_.parameter_parts() - 1];
      velocity_.resize(static_cast<std::size_t>(last.offset + last.size));
    }
  }
  const auto place = static_cast<std::size_t>(is_model ? index : parts_.count() + index);
  if (seen_[place]) return base::InvalidInput("the part at {} twice", part.offset());
  seen_[place] = true;
  const std::span<const float> values = FloatsOf(bytes);
  std::copy(values.begin(), values.end(), (is_model ? model_ : velocity_).begin() + part.offset());
  --missing_;
  return {};
}

}  // namespace motley::cluster
