#include <algorithm>
#include <cctype>
#include <charconv>

#include "apps/motley/job_keys.h"

namespace motley::app {
namespace {

using base::InvalidInput;
using base::Result;
using base::Status;

template <typename... Ts>
struct Overloaded : Ts... {
  using Ts::operator()...;
};
template <typename... Ts>
Overloaded(Ts...) -> Overloaded<Ts...>;

std::string RangeText(const Range& range) {
  return range.open ? fmt::format("above {} and below {}", range.min, range.max)
                    : fmt::format("from {} to {}", range.min, range.max);
}

bool Inside(const Range& range, double value) {
  return range.open ? value > range.min && value < range.max
                    : value >= range.min && value <= range.max;
}

std::string Describe(const Value& value) {
  return std::visit(
      Overloaded{[](bool v) { return std::string(v ? "true" : "false"); },
                 [](std::int64_t v) { return fmt::format("{}", v); },
                 [](double v) { return fmt::format("{}", v); },
                 [](const std::string& v) { return fmt::format("'{}'", v.substr(0, 60)); },
                 [](const std::vector<double>& v) {
                   return fmt::format("a list of {} numbers", v.size());
                 },
                 [](const OtherValue& v) { return v.kind; }},
      value);
}

Status Unfit(const Key& key, const Value& value) {
  return InvalidInput("{} is {}, but it must be {}", key.full(), Describe(value), key.TypeText());
}

std::optional<double> AsNumber(const Value& value) {
  if (const auto* whole = std::get_if<std::int64_t>(&value)) return static_cast<double>(*whole);
  if (const auto* number = std::get_if<double>(&value)) return *number;
  return std::nullopt;
}

template <typename T>
std::optional<T> ParseNumber(std::string_view text) {
  T value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

std::optional<ImageSize> ParseSize(std::string_view text) {
  const std::size_t x = text.find('x');
  if (x == std::string_view::npos) return std::nullopt;
  const auto height = ParseNumber<int>(text.substr(0, x));
  const auto width = ParseNumber<int>(text.substr(x + 1));
  if (!height || !width) return std::nullopt;
  return ImageSize{*height, *width};
}

std::string_view Trim(std::string_view text) {
  while (!text.empty() && std::isspace(static_cast<unsigned char>(text.front()))) {
    text.remove_prefix(1);
  }
  while (!text.empty() && std::isspace(static_cast<unsigned char>(text.back()))) {
    text.remove_suffix(1);
  }
  return text;
}

// "0.1,0.2" or "[0.1, 0.2]".
std::optional<std::vector<double>> ParseNumbers(std::string_view text) {
  if (text.size() >= 2 && text.front() == '[' && text.back() == ']') {
    text = text.substr(1, text.size() - 2);
  }
  std::vector<double> numbers;
  while (!text.empty()) {
    const std::size_t comma = std::min(text.find(','), text.size());
    const auto number = ParseNumber<double>(Trim(text.substr(0, comma)));
    if (!number) return std::nullopt;
    numbers.push_back(*number);
    text.remove_prefix(std::min(comma + 1, text.size()));
  }
  return numbers;
}

Status Set(const Key& key, const Value& value, bool* field) {
  if (!std::holds_alternative<bool>(value)) return Unfit(key, value);
  *field = std::get<bool>(value);
  return {};
}

Status Set(const Key& key, const Value& value, std::int64_t* field) {
  const auto* whole = std::get_if<std::int64_t>(&value);
  if (whole == nullptr || !Inside(key.range, static_cast<double>(*whole))) return Unfit(key, value);
  *field = *whole;
  return {};
}

Status Set(const Key& key, const Value& value, double* field) {
  const auto number = AsNumber(value);
  if (!number || !Inside(key.range, *number)) return Unfit(key, value);
  *field = *number;
  return {};
}

Status Set(const Key& key, const Value& value, std::string* field) {
  const auto* text = std::get_if<std::string>(&value);
  if (text == nullptr) return Unfit(key, value);
  if (key.check != nullptr) MOTLEY_RETURN_IF_ERROR(key.check(*text).In(key.full()));
  *field = *text;
  return {};
}

Status Set(const Key& key, const Value& value, ImageSize* field) {
  const auto* text = std::get_if<std::string>(&value);
  const auto size = text == nullptr ? std::nullopt : ParseSize(*text);
  if (!size || !Inside(key.range, size->height) || !Inside(key.range, size->width)) {
    return Unfit(key, value);
  }
  *field = *size;
  return {};
}

Status Set(const Key& key, const Value& value, std::vector<double>* field) {
  const auto* numbers = std::get_if<std::vector<double>>(&value);
  if (numbers == nullptr) return Unfit(key, value);
  for (const double number : *numbers) {
    if (!Inside(key.range, number)) {
      return InvalidInput("{} holds {}, but it must be {}", key.full(), number, key.TypeText());
    }
  }
  *field = *numbers;
  return {};
}

template <typename T>
Status Set(const Key& key, const Value& value, std::optional<T>* field) {
  T set{};
  MOTLEY_RETURN_IF_ERROR(Set(key, value, &set));
  *field = set;
  return {};
}

std::string Quote(const std::string& text) {
  std::string quoted = "\"";
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      quoted += '\\';
      quoted += c;
    } else if (byte < 0x20 || byte == 0x7f) {
      quoted += fmt::format("\\u{:04x}", byte);
    } else {
      quoted += c;
    }
  }
  return quoted + "\"";
}

}  // namespace

std::string Key::TypeText() const {
  Job job;
  AddRows(job, section, 1);
  const std::string words = RangeText(range);
  return std::visit(Overloaded{
                        [](bool*) { return std::string("true or false"); },
                        [&](std::int64_t*) { return "a whole number " + words; },
                        [&](std::optional<std::int64_t>*) { return "a whole number " + words; },
                        [&](double*) { return "a number " + words; },
                        [&](std::optional<double>*) { return "a number " + words; },
                        [](std::string*) { return std::string("a text in quotes"); },
                        [&](ImageSize*) { return "\"HEIGHTxWIDTH\" in pixels, each " + words; },
                        [&](std::vector<double>*) { return "a list of numbers, each " + words; },
                    },
                    field(job, 0));
}

Result<Value> ParseValue(const Key& key, std::string_view text) {
  Job job;
  AddRows(job, key.section, 1);
  const Value unparsed = std::string(text);
  const auto or_unfit = [&](auto parsed) -> Result<Value> {
    if (!parsed) return Unfit(key, unparsed);
    return Value(*parsed);
  };
  const auto whole = [&] { return or_unfit(ParseNumber<std::int64_t>(text)); };
  const auto number = [&] { return or_unfit(ParseNumber<double>(text)); };
  return std::visit(Overloaded{
                        [&](bool*) -> Result<Value> {
                          if (text == "true" || text == "yes" || text == "on" || text == "1")
                            return Value(true);
                          if (text == "false" || text == "no" || text == "off" || text == "0") {
                            return Value(false);
                          }
                          return Unfit(key, unparsed);
                        },
                        [&](std::int64_t*) { return whole(); },
                        [&](std::optional<std::int64_t>*) { return whole(); },
                        [&](double*) { return number(); },
                        [&](std::optional<double>*) { return number(); },
                        [&](std::string*) -> Result<Value> { return unparsed; },
                        [&](ImageSize*) -> Result<Value> { return unparsed; },
                        [&](std::vector<double>*) { return or_unfit(ParseNumbers(text)); },
                    },
                    key.field(job, 0));
}

Status Assign(const Key& key, const Value& value, Job& job, std::size_t row) {
  AddRows(job, key.section, row + 1);
  return std::visit([&](auto* field) { return Set(key, value, field); }, key.field(job, row));
}

std::string FormatValue(const Key& key, const Job& job, std::size_t row) {
  Job copy = job;
  AddRows(copy, key.section, row + 1);
  return std::visit(
      Overloaded{
          [](bool* v) { return std::string(*v ? "true" : "false"); },
          [](std::int64_t* v) { return fmt::format("{}", *v); },
          [](double* v) { return fmt::format("{}", *v); },
          [](std::optional<std::int64_t>* v) { return *v ? fmt::format("{}", **v) : ""; },
          [](std::optional<double>* v) { return *v ? fmt::format("{}", **v) : ""; },
          [](std::string* v) { return v->empty() ? "" : Quote(*v); },
          [](ImageSize* v) {
            return v->given() ? fmt::format("\"{}x{}\"", v->height, v->width) : "";
          },
          [](std::vector<double>* v) {
            return v->empty() ? "" : fmt::format("[{}]", fmt::join(*v, ", "));
          },
      },
      key.field(copy, row));
}

}  // namespace motley::app
