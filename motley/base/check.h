#ifndef MOTLEY_BASE_CHECK_H_
#define MOTLEY_BASE_CHECK_H_

#include <fmt/format.h>

#include <string>

namespace motley::base {

// Prints "file:line: check failed: condition: message" to standard error and aborts.
[[noreturn]] void CheckFailed(const char* file, int line, const char* condition,
                              const std::string& message);

}  // namespace motley::base

// For programmer errors: stays on in release builds.
#define MOTLEY_CHECK(condition, ...)                                                      \
  do {                                                                                    \
    if (!(condition)) [[unlikely]] {                                                      \
      ::motley::base::CheckFailed(__FILE__, __LINE__, #condition, fmt::format(__VA_ARGS__)); \
    }                                                                                     \
  } while (false)

#endif  // MOTLEY_BASE_CHECK_H_
