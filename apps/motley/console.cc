#include "apps/motley/console.h"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <cmath>

namespace motley::app {
namespace {

std::string Lookup(const Environment& environment, const std::string& name) {
  const auto found = environment.find(name);
  return found == environment.end() ? "" : found->second;
}

std::string Styled(bool color, const char* code, const std::string& text) {
  return color ? fmt::format("\x1b[{}m{}\x1b[0m", code, text) : text;
}

}  // namespace

Console Console::Of(std::FILE* out, const Environment& environment) {
  Console console;
  console.out = out;
  console.terminal = ::isatty(::fileno(out)) == 1 && Lookup(environment, "TERM") != "dumb" &&
                     Lookup(environment, "CI").empty();
  console.color = console.terminal && Lookup(environment, "NO_COLOR").empty();
  return console;
}

int Console::width() const {
  winsize size{};
  if (::ioctl(::fileno(out), TIOCGWINSZ, &size) != 0 || size.ws_col == 0) return 80;
  return size.ws_col;
}

std::string Console::Bold(const std::string& text) const { return Styled(color, "1", text); }
std::string Console::Green(const std::string& text) const { return Styled(color, "32", text); }
std::string Console::Yellow(const std::string& text) const { return Styled(color, "33", text); }

std::string FormatSeconds(double seconds) {
  // Beyond 99 hours the exact number tells nobody anything.
  const auto whole = static_cast<std::int64_t>(std::llround(std::min(seconds, 99 * 3600.0)));
  if (whole < 60) return fmt::format("{}s", whole);
  if (whole < 3600) return fmt::format("{}m{:02}s", whole / 60, whole % 60);
  return fmt::format("{}h{:02}m", whole / 3600, whole / 60 % 60);
}

std::string Thousands(std::int64_t number) {
  std::string digits = std::to_string(number);
  const std::size_t sign = number < 0 ? 1 : 0;
  for (std::size_t i = digits.size(); i > sign + 3;) {
    i -= 3;
    digits.insert(i, 1, ',');
  }
  return digits;
}

std::string Scaled(double number) {
  if (number >= 1e9) return fmt::format("{:.2f} G", number / 1e9);
  if (number >= 1e6) return fmt::format("{:.2f} M", number / 1e6);
  return fmt::format("{:.2f} k", number / 1e3);
}

std::string Dump(const nlohmann::ordered_json& json) {
  return json.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

}  // namespace motley::app
