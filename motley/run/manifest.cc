#include "motley/run/manifest.h"

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <utility>

namespace motley::run {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;

constexpr std::int64_t kMax = std::numeric_limits<std::int64_t>::max();
// Of steps, samples and epochs: exact in a double, and counting on from it cannot overflow.
constexpr std::int64_t kMaxCount = std::int64_t{1} << 53;
constexpr std::string_view kFormat = "motley-checkpoint";

// Reads the keys of one JSON object. The first mistake is kept, so that the list of keys below
// reads without error handling; values read after it are worthless.
class Fields {
 public:
  Fields(const json& object, std::string place) : object_(object), place_(std::move(place)) {
    if (!object_.is_object()) Refuse("is no JSON object");
  }

  std::int64_t Integer(const char* key, std::int64_t min, std::int64_t max) {
    const json& value = Get(key);
    const bool fits = value.is_number_integer() &&
                      !(value.is_number_unsigned() &&
                        value.get<std::uint64_t>() > static_cast<std::uint64_t>(kMax)) &&
                      value.get<std::int64_t>() >= min && value.get<std::int64_t>() <= max;
    if (fits) return value.get<std::int64_t>();
    Refuse(fmt::format("'{}' is no integer from {} to {}", key, min, max));
    return min;
  }

  double Number(const char* key) {
    const json& value = Get(key);
    const double number = value.is_number() ? value.get<double>() : std::nan("");
    if (!std::isfinite(number)) Refuse(fmt::format("'{}' is no finite number", key));
    return number;
  }

  double Duration(const char* key) {
    const double seconds = Number(key);
    if (seconds < 0.0) Refuse(fmt::format("'{}' is negative", key));
    return seconds;
  }

  std::string Text(const char* key) {
    const json& value = Get(key);
    if (value.is_string()) return value.get<std::string>();
    Refuse(fmt::format("'{}' is no text", key));
    return {};
  }

  std::map<std::string, std::string> Texts(const char* key) {
    std::map<std::string, std::string> texts;
    const json& value = Get(key);
    if (!value.is_object()) Refuse(fmt::format("'{}' is no JSON object", key));
    for (const auto& [name, text] : value.items()) {
      if (!text.is_string()) {
        Refuse(fmt::format("'{}.{}' is no text", key, name));
        break;
      }
      texts[name] = text.get<std::string>();
    }
    return texts;
  }

  std::vector<data::Ledger::Range> Ranges(const char* key) {
    std::vector<data::Ledger::Range> ranges;
    const json& value = Get(key);
    if (!value.is_array()) Refuse(fmt::format("'{}' is no list", key));
    for (const json& pair : value) {
      if (!pair.is_array() || pair.size() != 2 || !pair[0].is_number_integer() ||
          !pair[1].is_number_integer()) {
        Refuse(fmt::format("'{}' has an entry that is no pair of integers", key));
        break;
      }
      ranges.emplace_back(pair[0].get<std::int64_t>(), pair[1].get<std::int64_t>());
    }
    return ranges;
  }

  // None when the key is missing: only jobs with private samples have it.
  std::vector<PrivatePool> Pools(const char* key) {
    std::vector<PrivatePool> pools;
    if (!object_.is_object() || !object_.contains(key)) return pools;
    const json& value = Get(key);
    if (!value.is_array()) Refuse(fmt::format("'{}' is no list", key));
    for (const json& one : value) {
      Fields fields(one, fmt::format("{}: '{}'", place_, key));
      pools.push_back(
          {fields.Text("device"), fields.Integer("samples", 1, kMaxCount), fields.Text("sha256")});
      if (!fields.status().ok()) {
        if (status_.ok()) status_ = fields.status();
        break;
      }
    }
    return pools;
  }

  Fields Object(const char* key) { return Fields(Get(key), fmt::format("{}: '{}'", place_, key)); }

  void Refuse(const std::string& reason) {
    if (status_.ok()) status_ = base::InvalidInput("{}: {}", place_, reason);
  }
  const base::Status& status() const { return status_; }

 private:
  const json& Get(const char* key) {
    static const json kNothing;
    if (!object_.is_object()) return kNothing;
    const auto found = object_.find(key);
    if (found != object_.end()) return *found;
    Refuse(fmt::format("'{}' is missing", key));
    return kNothing;
  }

  const json& object_;
  std::string place_;
  base::Status status_;
};

base::Result<json> ParseJson(std::string_view text, const std::string& origin) {
  try {
    return json::parse(text);
  } catch (const json::exception& error) {
    return base::InvalidInput("{}: no JSON: {}", origin, error.what());
  }
}

base::Result<Evaluation> ParseEvaluation(Fields fields) {
  Evaluation evaluation;
  evaluation.loss = fields.Number("loss");
  evaluation.accuracy = fields.Number("accuracy");
  evaluation.samples = fields.Integer("samples", 0, kMax);
  if (!(evaluation.accuracy >= 0.0 && evaluation.accuracy <= 1.0)) {
    fields.Refuse("'accuracy' is not from 0 to 1");
  }
  if (!fields.status().ok()) return fields.status();
  return evaluation;
}

// What the keys must satisfy together.
base::Status CheckLedger(const TrainState& state, const std::string& origin) {
  std::int64_t others = state.epoch_size;
  for (const PrivatePool& pool : state.private_pools) others -= std::min(pool.size, others);
  if (others <= 0) {
    return base::InvalidInput("{}: an epoch of {} samples has no public ones", origin,
                              state.epoch_size);
  }
  auto ledger = data::Ledger::Restore(state.epoch, state.epoch_size, state.committed);
  if (!ledger.ok()) return std::move(ledger).status().In(origin + ": 'committed'");
  if (state.samples < ledger->committed()) {
    return base::InvalidInput("{}: 'samples' is {}, but this epoch alone has {}", origin,
                              state.samples, ledger->committed());
  }
  if (state.epoch_correct > ledger->committed()) {
    return base::InvalidInput("{}: 'epoch_correct' is {} of {} samples", origin,
                              state.epoch_correct, ledger->committed());
  }
  return {};
}

}  // namespace

std::string ManifestText(const TrainState& state, const StateFile& file) {
  ordered_json text = {{"format", kFormat},
                       {"version", kManifestVersion},
                       {"step", state.step},
                       {"samples", state.samples},
                       {"seconds", state.seconds},
                       {"compute_seconds", state.compute_seconds},
                       {"wait_seconds", state.wait_seconds},
                       {"epoch", state.epoch},
                       {"epoch_size", state.epoch_size},
                       {"committed", state.committed},
                       {"epoch_loss_sum", state.epoch_loss_sum},
                       {"epoch_correct", state.epoch_correct},
                       {"test",
                        {{"loss", state.test.loss},
                         {"accuracy", state.test.accuracy},
                         {"samples", state.test.samples}}},
                       {"state_bytes", file.bytes},
                       {"state_sha256", file.sha256},
                       {"kernel_choices", state.kernel_choices},
                       {"job", state.job}};
  for (const PrivatePool& pool : state.private_pools) {
    text["private_pools"].push_back(
        {{"device", pool.device}, {"samples", pool.size}, {"sha256", pool.sha256}});
  }
  return text.dump(2, ' ', false, ordered_json::error_handler_t::replace) + "\n";
}

base::Result<Manifest> ParseManifest(std::string_view text, const std::string& origin) {
  MOTLEY_ASSIGN_OR_RETURN(const json document, ParseJson(text, origin));
  Fields fields(document, origin);
  if (fields.Text("format") != kFormat) fields.Refuse("is no checkpoint of Motley");
  const std::int64_t version = fields.Integer("version", 1, kMax);
  if (!fields.status().ok()) return fields.status();
  if (version != kManifestVersion) {
    return base::InvalidInput("{}: has version {}, this program reads version {}", origin, version,
                              kManifestVersion)
        .WithFix("use the version of motley that wrote it, or a newer one");
  }
  Manifest manifest;
  TrainState& state = manifest.state;
  state.step = fields.Integer("step", 0, kMaxCount);
  state.samples = fields.Integer("samples", 0, kMaxCount);
  state.seconds = fields.Duration("seconds");
  state.compute_seconds = fields.Duration("compute_seconds");
  state.wait_seconds = fields.Duration("wait_seconds");
  state.epoch = static_cast<std::uint64_t>(fields.Integer("epoch", 0, kMaxCount));
  state.epoch_size = fields.Integer("epoch_size", 1, kMaxCount);
  state.committed = fields.Ranges("committed");
  state.private_pools = fields.Pools("private_pools");
  state.epoch_loss_sum = fields.Number("epoch_loss_sum");
  state.epoch_correct = fields.Integer("epoch_correct", 0, kMax);
  manifest.file.bytes = fields.Integer("state_bytes", 0, kMax);
  manifest.file.sha256 = fields.Text("state_sha256");
  state.kernel_choices = fields.Texts("kernel_choices");
  state.job = fields.Texts("job");
  Fields test = fields.Object("test");
  if (!fields.status().ok()) return fields.status();
  MOTLEY_ASSIGN_OR_RETURN(state.test, ParseEvaluation(std::move(test)));
  MOTLEY_RETURN_IF_ERROR(CheckLedger(state, origin));
  return manifest;
}

}  // namespace motley::run
