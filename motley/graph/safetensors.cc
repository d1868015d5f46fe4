#include "motley/graph/safetensors.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <exception>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <utility>

#include "motley/base/file.h"

namespace motley::graph {
namespace {

using base::InvalidInput;
using base::Result;
using base::Status;
using nlohmann::json;

static_assert(std::endian::native == std::endian::little, "the format is little-endian");

constexpr std::uint64_t kLengthBytes = 8;
// The limit of the format's own implementation.
constexpr std::uint64_t kMaxHeaderBytes = 100'000'000;
constexpr std::string_view kMetadataKey = "__metadata__";
constexpr std::string_view kTorchCounter = "num_batches_tracked";

std::string_view BytesOf(std::span<const float> values) {
  return {reinterpret_cast<const char*>(values.data()), values.size_bytes()};
}

// The length field and the header, padded with spaces so that the data begins at a multiple of 8.
Result<std::string> MakeHeader(std::span<const NamedArray> arrays,
                               const std::map<std::string, std::string>& metadata) {
  json header = json::object();
  if (!metadata.empty()) header[std::string(kMetadataKey)] = metadata;
  std::uint64_t offset = 0;
  for (const NamedArray& array : arrays) {
    if (array.name == kMetadataKey || header.contains(array.name)) {
      return InvalidInput("safetensors: the name '{}' cannot be used twice", array.name);
    }
    MOTLEY_CHECK(Count(array.shape) == static_cast<std::int64_t>(array.values.size()),
                 "{} has {} values for shape {}", array.name, array.values.size(),
                 ToString(array.shape));
    const std::uint64_t end = offset + array.values.size_bytes();
    header[array.name] = {
        {"dtype", "F32"}, {"shape", array.shape}, {"data_offsets", {offset, end}}};
    offset = end;
  }
  std::string text;
  try {
    text = header.dump();
  } catch (const json::exception&) {
    return InvalidInput("safetensors: a name or a metadata text is not valid UTF-8");
  }
  text.resize((text.size() + 7) / 8 * 8, ' ');
  const std::uint64_t length = text.size();
  std::string prefix(kLengthBytes, '\0');
  std::memcpy(prefix.data(), &length, kLengthBytes);
  return prefix + text;
}

// The header as JSON. Refuses repeated names, which would hide an array, and nesting deeper than
// the format has, so that hostile text cannot grow a huge tree.
Result<json> ParseHeader(std::string_view text, const std::string& origin) {
  bool too_deep = false;
  std::optional<std::string> repeated;
  std::set<std::string> names;
  const auto watch = [&](int depth, json::parse_event_t event, json& value) {
    if (depth > 3) too_deep = true;
    if (event == json::parse_event_t::key && depth == 1 &&
        !names.insert(value.get<std::string>()).second) {
      repeated = value.get<std::string>();
    }
    return !too_deep;
  };
  json header;
  try {
    header = json::parse(text, watch);
  } catch (const std::exception& error) {
    return InvalidInput("{}: the header (from byte 8) is not JSON: {}", origin, error.what());
  }
  if (too_deep) return InvalidInput("{}: the header nests deeper than the format allows", origin);
  if (repeated) return InvalidInput("{}: '{}' appears twice in the header", origin, *repeated);
  if (!header.is_object()) return InvalidInput("{}: the header is not a JSON object", origin);
  return header;
}

// What the header says about one array, checked against the size of the data.
struct Entry {
  std::string name;
  std::string dtype;
  Shape shape;
  std::uint64_t begin = 0, end = 0;
};

std::optional<std::uint64_t> Unsigned(const json& value) {
  if (!value.is_number_unsigned()) return std::nullopt;
  return value.get<std::uint64_t>();
}

// The bytes of an array with this shape, or nothing on overflow.
std::optional<std::uint64_t> BytesFor(const Shape& shape, std::uint64_t element) {
  std::uint64_t bytes = element;
  for (const std::int64_t extent : shape) {
    if (__builtin_mul_overflow(bytes, static_cast<std::uint64_t>(extent), &bytes)) {
      return std::nullopt;
    }
  }
  return bytes;
}

Result<Shape> ParseShape(const json& value, const std::string& where) {
  if (!value.is_array()) return InvalidInput("{}: no 'shape' array", where);
  Shape shape;
  for (const json& extent : value) {
    const auto number = Unsigned(extent);
    if (!number || *number > std::uint64_t{INT64_MAX}) {
      return InvalidInput("{}: 'shape' holds something that is not a size", where);
    }
    shape.push_back(static_cast<std::int64_t>(*number));
  }
  return shape;
}

Result<Entry> ParseEntry(const std::string& name, const json& value, std::uint64_t data_bytes,
                         const std::string& origin) {
  const std::string where = fmt::format("{}: array '{}'", origin, name);
  if (!value.is_object() || !value.contains("dtype") || !value["dtype"].is_string() ||
      !value.contains("shape") || !value.contains("data_offsets")) {
    return InvalidInput("{}: needs 'dtype', 'shape' and 'data_offsets'", where);
  }
  Entry entry{.name = name, .dtype = value["dtype"].get<std::string>(), .shape = {}};
  const bool counter = entry.dtype == "I64" && name.ends_with(kTorchCounter);
  if (entry.dtype != "F32" && !counter) {
    return InvalidInput("{}: type {} is not supported", where, entry.dtype)
        .WithFix("convert the arrays to F32");
  }
  MOTLEY_ASSIGN_OR_RETURN(entry.shape, ParseShape(value["shape"], where));
  const json& offsets = value["data_offsets"];
  if (!offsets.is_array() || offsets.size() != 2 || !Unsigned(offsets[0]) ||
      !Unsigned(offsets[1])) {
    return InvalidInput("{}: 'data_offsets' is not a pair of offsets", where);
  }
  entry.begin = *Unsigned(offsets[0]);
  entry.end = *Unsigned(offsets[1]);
  if (entry.begin > entry.end || entry.end > data_bytes) {
    return InvalidInput("{}: data_offsets [{}, {}] lie outside the {} bytes of data", where,
                        entry.begin, entry.end, data_bytes);
  }
  const auto bytes = BytesFor(entry.shape, counter ? 8 : 4);
  if (!bytes || *bytes != entry.end - entry.begin) {
    return InvalidInput("{}: shape {} does not fit {} bytes", where, ToString(entry.shape),
                        entry.end - entry.begin);
  }
  return entry;
}

// Every byte of the data belongs to exactly one array, as the format demands.
Status CheckCoverage(std::vector<Entry>& entries, std::uint64_t data_bytes,
                     const std::string& origin) {
  std::sort(entries.begin(), entries.end(), [](const Entry& a, const Entry& b) {
    return std::pair(a.begin, a.end) < std::pair(b.begin, b.end);
  });
  std::uint64_t covered = 0;
  for (const Entry& entry : entries) {
    if (entry.begin != covered) {
      return InvalidInput("{}: array '{}' begins at data byte {}, where {} was expected", origin,
                          entry.name, entry.begin, covered);
    }
    covered = entry.end;
  }
  if (covered != data_bytes) {
    return InvalidInput("{}: the arrays end at data byte {}, but the file has {}", origin, covered,
                        data_bytes);
  }
  return {};
}

Result<std::string_view> HeaderText(std::string_view bytes, const std::string& origin) {
  if (bytes.size() < kLengthBytes) {
    return InvalidInput("{}: {} bytes are too few for a safetensors file", origin, bytes.size());
  }
  std::uint64_t length = 0;
  std::memcpy(&length, bytes.data(), kLengthBytes);
  if (length > bytes.size() - kLengthBytes || length > kMaxHeaderBytes) {
    return InvalidInput("{}: byte 0 announces a header of {} bytes, but {} follow", origin, length,
                        bytes.size() - kLengthBytes);
  }
  return bytes.substr(kLengthBytes, length);
}

// Copies one array of the file to its place in the model.
Status Fill(const Tensor& tensor, std::map<std::string, StoredArray>& arrays,
            std::vector<float>& values, const std::string& origin) {
  const auto found = arrays.find(tensor.name);
  if (found == arrays.end()) {
    return InvalidInput("{}: array '{}' of the network is missing", origin, tensor.name);
  }
  if (found->second.shape != tensor.shape) {
    return InvalidInput("{}: array '{}' has shape {}, but the network needs {}", origin,
                        tensor.name, ToString(found->second.shape), ToString(tensor.shape));
  }
  std::copy(found->second.values.begin(), found->second.values.end(),
            values.begin() + tensor.offset);
  arrays.erase(found);
  return {};
}

void AppendArrays(const std::vector<Tensor>& tensors, std::span<const float> values,
                  std::vector<NamedArray>& arrays) {
  for (const Tensor& tensor : tensors) {
    arrays.push_back({.name = tensor.name,
                      .shape = tensor.shape,
                      .values = values.subspan(static_cast<std::size_t>(tensor.offset),
                                               static_cast<std::size_t>(tensor.size))});
  }
}

}  // namespace

Status WriteSafetensors(const std::filesystem::path& file, std::span<const NamedArray> arrays,
                        const std::map<std::string, std::string>& metadata) {
  MOTLEY_ASSIGN_OR_RETURN(const std::string header, MakeHeader(arrays, metadata));
  std::vector<std::string_view> parts{header};
  for (const NamedArray& array : arrays) parts.push_back(BytesOf(array.values));
  // Beside, then renamed: an older file of this name stays whole until the new one is.
  std::filesystem::path beside = file;
  beside += ".part";
  MOTLEY_RETURN_IF_ERROR(base::WriteFileSynced(beside, parts));
  return base::RenameSynced(beside, file);
}

Result<std::map<std::string, StoredArray>> ParseSafetensors(std::string_view bytes,
                                                            const std::string& origin) {
  MOTLEY_ASSIGN_OR_RETURN(const std::string_view text, HeaderText(bytes, origin));
  MOTLEY_ASSIGN_OR_RETURN(const json header, ParseHeader(text, origin));
  const std::string_view data = bytes.substr(kLengthBytes + text.size());
  std::vector<Entry> entries;
  for (const auto& [name, value] : header.items()) {
    if (name == kMetadataKey) continue;
    MOTLEY_ASSIGN_OR_RETURN(Entry entry, ParseEntry(name, value, data.size(), origin));
    entries.push_back(std::move(entry));
  }
  MOTLEY_RETURN_IF_ERROR(CheckCoverage(entries, data.size(), origin));
  std::map<std::string, StoredArray> arrays;
  for (Entry& entry : entries) {
    if (entry.dtype != "F32") continue;  // torch's batch counter: not a number that anyone trains
    StoredArray& array = arrays[entry.name];
    array.shape = std::move(entry.shape);
    array.values.resize((entry.end - entry.begin) / sizeof(float));
    if (!array.values.empty()) {
      std::memcpy(array.values.data(), data.data() + entry.begin, entry.end - entry.begin);
    }
  }
  return arrays;
}

Status SaveWeights(const std::filesystem::path& file, const Model& model) {
  std::vector<NamedArray> arrays;
  AppendArrays(model.graph.parameters(), model.weights, arrays);
  AppendArrays(model.graph.buffers(), model.buffers, arrays);
  return WriteSafetensors(file, arrays, {{"format", "pt"}, {"network", model.graph.name()}});
}

Status LoadWeights(const std::filesystem::path& file, Model& model) {
  MOTLEY_ASSIGN_OR_RETURN(const std::string bytes, base::ReadFile(file));
  const std::string origin = file.string();
  MOTLEY_ASSIGN_OR_RETURN(auto arrays, ParseSafetensors(bytes, origin));
  // Filled apart, so that a file that does not fit leaves the model as it was.
  std::vector<float> weights(static_cast<std::size_t>(model.graph.parameter_count()));
  std::vector<float> buffers(static_cast<std::size_t>(model.graph.buffer_count()));
  for (const Tensor& tensor : model.graph.parameters()) {
    MOTLEY_RETURN_IF_ERROR(Fill(tensor, arrays, weights, origin));
  }
  for (const Tensor& tensor : model.graph.buffers()) {
    MOTLEY_RETURN_IF_ERROR(Fill(tensor, arrays, buffers, origin));
  }
  for (const auto& [name, array] : arrays) {
    if (name.ends_with(kTorchCounter)) continue;
    return InvalidInput("{}: the network has no array '{}'", origin, name);
  }
  model.weights = std::move(weights);
  model.buffers = std::move(buffers);
  return {};
}

}  // namespace motley::graph
