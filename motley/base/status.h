#ifndef MOTLEY_BASE_STATUS_H_
#define MOTLEY_BASE_STATUS_H_

#include <fmt/format.h>

#include <optional>
#include <string>
#include <utility>

#include "motley/base/check.h"

namespace motley::base {

// Why something that may fail in normal use failed. Few codes, because callers decide on the code
// and people read the message.
enum class Code {
  kOk,
  kInvalidInput,  // what the user gave is wrong: a file, a key, a shape
  kNotFound,      // a file, a name or an entry does not exist
  kUnavailable,   // may work later or elsewhere: network, a busy resource
  kCancelled,     // the user or a deadline stopped it
  kInternal,      // everything else: the operating system or a library refused
};

// The outcome of an operation that returns nothing. Expected failures travel in it; programmer
// errors hit MOTLEY_CHECK instead. A message names the file and the place; `fix` names the next
// action of the user.
class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(Code code, std::string message) : code_(code), message_(std::move(message)) {}

  bool ok() const { return code_ == Code::kOk; }
  Code code() const { return code_; }
  const std::string& message() const { return message_; }
  const std::string& fix() const { return fix_; }

  // The same failure with what the user can do about it.
  Status WithFix(std::string fix) && {
    fix_ = std::move(fix);
    return std::move(*this);
  }

  // The same failure as seen one level up: "context: message". No effect on success.
  Status In(const std::string& context) && {
    if (!ok()) message_ = context + ": " + message_;
    return std::move(*this);
  }

  // "message" or "message\n  fix: …".
  std::string ToString() const {
    if (ok()) return "ok";
    return fix_.empty() ? message_ : message_ + "\n  fix: " + fix_;
  }

 private:
  Code code_ = Code::kOk;
  std::string message_;
  std::string fix_;
};

template <typename... Args>
Status InvalidInput(fmt::format_string<Args...> format, Args&&... args) {
  return Status(Code::kInvalidInput, fmt::format(format, std::forward<Args>(args)...));
}
template <typename... Args>
Status NotFound(fmt::format_string<Args...> format, Args&&... args) {
  return Status(Code::kNotFound, fmt::format(format, std::forward<Args>(args)...));
}
template <typename... Args>
Status Unavailable(fmt::format_string<Args...> format, Args&&... args) {
  return Status(Code::kUnavailable, fmt::format(format, std::forward<Args>(args)...));
}
template <typename... Args>
Status Cancelled(fmt::format_string<Args...> format, Args&&... args) {
  return Status(Code::kCancelled, fmt::format(format, std::forward<Args>(args)...));
}
template <typename... Args>
Status Internal(fmt::format_string<Args...> format, Args&&... args) {
  return Status(Code::kInternal, fmt::format(format, std::forward<Args>(args)...));
}

// A value, or the Status that says why there is none. Reading the value of a failure is a
// programmer error.
template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value) : value_(std::move(value)) {}  // NOLINT(google-explicit-constructor)
  Result(Status status) : status_(std::move(status)) {  // NOLINT(google-explicit-constructor)
    MOTLEY_CHECK(!status_.ok(), "a Result without a value needs a failure");
  }

  bool ok() const { return value_.has_value(); }
  const Status& status() const& { return status_; }
  Status status() && { return std::move(status_); }

  T& value() & {
    MOTLEY_CHECK(ok(), "{}", status_.message());
    return *value_;
  }
  const T& value() const& {
    MOTLEY_CHECK(ok(), "{}", status_.message());
    return *value_;
  }
  T value() && {
    MOTLEY_CHECK(ok(), "{}", status_.message());
    return std::move(*value_);
  }
  T* operator->() { return &value(); }
  const T* operator->() const { return &value(); }
  T& operator*() & { return value(); }
  const T& operator*() const& { return value(); }

 private:
  std::optional<T> value_;
  Status status_;
};

}  // namespace motley::base

#define MOTLEY_CONCAT_INNER(a, b) a##b
#define MOTLEY_CONCAT(a, b) MOTLEY_CONCAT_INNER(a, b)

// Leaves the function with the failure, if `expression` (a Status) is one.
#define MOTLEY_RETURN_IF_ERROR(expression)                              \
  do {                                                                  \
    if (auto motley_status = (expression); !motley_status.ok()) {       \
      return motley_status;                                             \
    }                                                                   \
  } while (false)

// MOTLEY_ASSIGN_OR_RETURN(auto x, MakeX()): x is the value, or the function ends with the failure.
#define MOTLEY_ASSIGN_OR_RETURN(declaration, expression) \
  MOTLEY_ASSIGN_OR_RETURN_INNER(MOTLEY_CONCAT(motley_result_, __LINE__), declaration, expression)
#define MOTLEY_ASSIGN_OR_RETURN_INNER(result, declaration, expression) \
  auto result = (expression);                                          \
  if (!result.ok()) return std::move(result).status();                 \
  declaration = std::move(result).value()

#endif  // MOTLEY_BASE_STATUS_H_
