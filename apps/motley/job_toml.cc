#include "apps/motley/job_toml.h"

#include <algorithm>

#include "apps/motley/suggest.h"

// Only this file sees toml++; it reports errors by value here.
#define TOML_EXCEPTIONS 0
#include <toml++/toml.h>

namespace motley::app {
namespace {

using base::InvalidInput;
using base::Result;
using base::Status;

std::string PlaceOf(const std::string& origin, const toml::source_region& region) {
  return fmt::format("{}:{}:{}", origin, region.begin.line, region.begin.column);
}

Value ToValue(const toml::node& node) {
  if (const auto* v = node.as_boolean()) return v->get();
  if (const auto* v = node.as_integer()) return std::int64_t{v->get()};
  if (const auto* v = node.as_floating_point()) return v->get();
  if (const auto* v = node.as_string()) return v->get();
  if (const auto* list = node.as_array()) {
    std::vector<double> numbers;
    for (const toml::node& element : *list) {
      if (!element.is_number()) return OtherValue{"a list of something else than numbers"};
      numbers.push_back(element.value<double>().value_or(0.0));
    }
    return numbers;
  }
  return OtherValue{node.is_table() ? "a table" : "a date or time"};
}

Status UnknownSection(const std::string& name) {
  std::vector<std::string> names;
  for (const std::string_view section : Sections()) names.emplace_back(section);
  const auto near = Nearest(name, names);
  return InvalidInput("unknown section [{}]", name.substr(0, 200))
      .WithFix(near ? fmt::format("did you mean [{}]?", *near)
                    : fmt::format("the sections are {}", fmt::join(names, ", ")));
}

// The table behind a section. `device` is written [[device]], because later versions take several.
Result<const toml::table*> SectionTable(const std::string& name, const toml::node& node,
                                        const std::string& origin) {
  const std::string place = PlaceOf(origin, node.source());
  if (name != "device") {
    if (const toml::table* table = node.as_table()) return table;
    return InvalidInput("{}: [{}] must be a section of its own", place, name)
        .WithFix(fmt::format("write it once, as [{}], with its keys below", name));
  }
  const toml::array* devices = node.as_array();
  if (devices == nullptr || devices->empty() || !devices->front().is_table()) {
    return InvalidInput("{}: a device is written [[device]], with two brackets", place);
  }
  if (devices->size() > 1) {
    return InvalidInput("{}: a job on this machine has one device, but this file lists {}",
                        PlaceOf(origin, (*devices)[1].source()), devices->size())
        .WithFix("keep one [[device]]; its `threads` says how many cores it uses");
  }
  return devices->front().as_table();
}

// toml++ orders keys by name; messages should come in the order of the file.
void SortByPlace(std::vector<std::pair<toml::source_position, TomlEntry>>& entries) {
  std::stable_sort(entries.begin(), entries.end(),
                   [](const auto& a, const auto& b) { return a.first < b.first; });
}

}  // namespace

Result<std::vector<TomlEntry>> ParseToml(std::string_view text, const std::string& origin) {
  const toml::parse_result parsed = toml::parse(text, origin);
  if (!parsed) {
    return InvalidInput("{}: {}", PlaceOf(origin, parsed.error().source()),
                        parsed.error().description())
        .WithFix("a line is `key = value`; texts stand in \"quotes\"");
  }
  std::vector<std::pair<toml::source_position, TomlEntry>> found;
  const auto add = [&](const std::string& section, const toml::key& key, const toml::node& node) {
    found.emplace_back(key.source().begin, TomlEntry{section, std::string(key.str()), ToValue(node),
                                                     PlaceOf(origin, key.source())});
  };
  for (const auto& [key, node] : parsed.table()) {
    const std::string section(key.str());
    if (!node.is_table() && !node.is_array_of_tables() &&
        std::find(Sections().begin(), Sections().end(), section) == Sections().end()) {
      add("", key, node);
      continue;
    }
    if (std::find(Sections().begin(), Sections().end(), section) == Sections().end()) {
      return UnknownSection(section).In(PlaceOf(origin, key.source()));
    }
    MOTLEY_ASSIGN_OR_RETURN(const toml::table* table, SectionTable(section, node, origin));
    for (const auto& [name, value] : *table) add(section, name, value);
  }
  SortByPlace(found);
  std::vector<TomlEntry> entries;
  for (auto& [position, entry] : found) entries.push_back(std::move(entry));
  return entries;
}

}  // namespace motley::app
