#ifndef MOTLEY_TESTS_FUZZ_SMALL_WORLD_H_
#define MOTLEY_TESTS_FUZZ_SMALL_WORLD_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "motley/cluster/cluster.pb.h"
#include "motley/data/memory_dataset.h"
#include "motley/graph/graph.h"

// What the fuzzers of the cluster share: a job that is as small as can be, and how they cut what
// libFuzzer gives them.
namespace motley::cluster {

inline graph::Graph SmallGraph() {
  graph::GraphBuilder net("small", {1, 4, 4});
  const auto norm = net.BatchNorm("norm", net.input());
  const auto flat = net.Flatten("flat", norm);
  return std::move(net).Build(net.FullyConnected("out", flat, {.out_features = 2})).value();
}

inline std::shared_ptr<const data::Dataset> SmallSet() {
  data::MemoryDataset::Parts parts;
  parts.shape = {1, 4, 4};
  parts.classes = {"a", "b"};
  parts.labels = {0, 1, 1};
  parts.bytes.assign(3 * 16, 'x');
  return std::make_shared<data::MemoryDataset>(std::move(parts));
}

// The kind of messages that the program is for, by what it is called: PREFIX_KIND_fuzz. Empty for
// PREFIX_fuzz: all of them.
inline std::string KindOf(const std::string& program, const std::string& prefix) {
  std::string name = std::filesystem::path(program).filename();
  constexpr std::string_view kSuffix = "_fuzz";
  if (name.ends_with(kSuffix)) name.resize(name.size() - kSuffix.size());
  return name.size() > prefix.size() ? name.substr(prefix.size() + 1) : "";
}

// An input is messages one after the other: a byte for what to do with it, two for its length.
class Elements {
 public:
  struct Element {
    std::uint8_t kind = 0;
    std::string bytes;
  };
  Elements(const std::uint8_t* data, std::size_t size) : data_(data), size_(size) {}

  std::optional<Element> Next() {
    if (size_ < 3) return std::nullopt;
    const auto length = static_cast<std::size_t>(data_[1] | data_[2] << 8);
    const std::size_t taken = std::min(length, size_ - 3);
    Element element{data_[0], std::string(data_ + 3, data_ + 3 + taken)};
    data_ += 3 + taken;
    size_ -= 3 + taken;
    return element;
  }

 private:
  const std::uint8_t* data_;
  std::size_t size_;
};

// A Report or an Order of one kind, the name of its field; nothing if the bytes are none of these.
// An empty kind: the bytes are the whole message.
template <typename Message>
std::optional<Message> Parse(const std::string& kind, const std::string& bytes) {
  Message message;
  if (kind.empty()) {
    if (!message.ParseFromString(bytes)) return std::nullopt;
    return message;
  }
  const auto* field = Message::descriptor()->FindFieldByName(kind);
  auto* inner = Message::GetReflection()->MutableMessage(&message, field);
  if (!inner->ParseFromString(bytes)) return std::nullopt;
  return message;
}

// Whether messages of this type have such a kind.
template <typename Message>
bool HasKind(const std::string& kind) {
  const auto* field = Message::descriptor()->FindFieldByName(kind);
  return field != nullptr && field->containing_oneof() != nullptr;
}

// The four ways in which gradients come together.
struct JobKind {
  bool gloo = false, merged_head = false;
  int shards = 1;
  static JobKind Of(std::uint8_t byte) {
    switch (byte % 4) {
      case 0:
        return {};
      case 1:
        return {.gloo = true};
      case 2:
        return {.merged_head = true};
      default:
        return {.shards = 2};
    }
  }
};

}  // namespace motley::cluster

#endif  // MOTLEY_TESTS_FUZZ_SMALL_WORLD_H_
