#ifndef MOTLEY_APPS_MOTLEY_JOB_KEYS_H_
#define MOTLEY_APPS_MOTLEY_JOB_KEYS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "apps/motley/job.h"
#include "motley/base/status.h"

namespace motley::app {

// Something that a job file can hold and no key accepts, such as a date.
struct OtherValue {
  std::string kind;
};

// A value before it is checked against its key.
using Value =
    std::variant<bool, std::int64_t, double, std::string, std::vector<double>, OtherValue>;

// The member of a Job that a key sets; its type is the key's type.
using Field =
    std::variant<bool*, std::int64_t*, double*, std::string*, ImageSize*, std::vector<double>*,
                 std::optional<std::int64_t>*, std::optional<double>*>;

// Of a number. `open`: the ends themselves are refused.
struct Range {
  double min = 0.0, max = 0.0;
  bool open = false;
};

// One key of a job file. This table is all there is to say about it: the parser, --set, the
// environment, the checks, --dry-run and --help-keys read it.
struct Key {
  std::string_view section, name;
  Field (*field)(Job& job, std::size_t row);  // row: of [[device]], [[interruption]]
  std::string_view help;
  Range range = {};                                          // numbers only
  base::Status (*check)(const std::string& text) = nullptr;  // text only

  // "train.batch"; "device.1.threads" for the second [[device]].
  std::string full(std::size_t row = 0) const;
  // MOTLEY_TRAIN_BATCH
  std::string variable() const;
  // "whole number from 1 to 1048576"
  std::string TypeText() const;
};

// In the order in which a job file is written.
const std::vector<Key>& Keys();
const std::vector<std::string_view>& Sections();

// Whether a section is written [[section]] and may stand in a file several times, how often it does
// in a job (1 for all others), and makes sure that it does so often.
bool IsList(std::string_view section);
std::size_t Rows(const Job& job, std::string_view section);
void AddRows(Job& job, std::string_view section, std::size_t rows);

// Null when there is none. A kebab-case name finds its snake_case key.
const Key* FindKey(std::string_view section, std::string_view name);

// "unknown key train.bacth" with the nearest key, or the keys of that section, as its fix.
base::Status UnknownKey(std::string_view section, std::string_view name);

// What a flag or a variable says, as the type of its key.
base::Result<Value> ParseValue(const Key& key, std::string_view text);

// Sets the member after checking type and range; messages say the key and what it accepts.
base::Status Assign(const Key& key, const Value& value, Job& job, std::size_t row = 0);

// As it would stand in a job file; empty when it is not set. A row that is not there has the
// defaults.
std::string FormatValue(const Key& key, const Job& job, std::size_t row = 0);

}  // namespace motley::app

#endif  // MOTLEY_APPS_MOTLEY_JOB_KEYS_H_
