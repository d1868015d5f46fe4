#ifndef MOTLEY_APPS_MOTLEY_CONSOLE_H_
#define MOTLEY_APPS_MOTLEY_CONSOLE_H_

#include <cstdint>
#include <cstdio>
#include <map>
#include <nlohmann/json.hpp>
#include <string>

namespace motley::app {

using Environment = std::map<std::string, std::string>;

// Where people read. `terminal` is false for a file or a pipe, for TERM=dumb and in CI; `color`
// also when NO_COLOR is set.
struct Console {
  std::FILE* out = stdout;
  bool terminal = false;
  bool color = false;

  static Console Of(std::FILE* out, const Environment& environment);
  // Columns, as they are now; 80 when unknown.
  int width() const;
  std::string Bold(const std::string& text) const;
  std::string Green(const std::string& text) const;
  std::string Yellow(const std::string& text) const;
};

// "42s", "14m02s", "3h05m".
std::string FormatSeconds(double seconds);
// "60,000".
std::string Thousands(std::int64_t number);
// "4.63 M", "1.82 G".
std::string Scaled(double number);

// Indented; never throws, whatever bytes the texts hold.
std::string Dump(const nlohmann::ordered_json& json);

}  // namespace motley::app

#endif  // MOTLEY_APPS_MOTLEY_CONSOLE_H_
