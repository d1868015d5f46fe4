#include "motley/telemetry/events.h"

#include <fcntl.h>
#include <fmt/chrono.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <ctime>
#include <mutex>
#include <string_view>
#include <utility>

#include "motley/base/file.h"

namespace motley::telemetry {
namespace {

using nlohmann::json;

base::Status SystemError(const std::filesystem::path& file, std::string_view what) {
  return base::Internal("{}: cannot {}: {}", file.string(), what, std::strerror(errno));
}

// The end of the file, as far back as needed to hold at least one whole line or everything.
base::Result<std::string> ReadTail(int fd, std::int64_t size, const std::filesystem::path& file) {
  for (std::int64_t want = 1 << 16;; want *= 2) {
    std::string tail(static_cast<std::size_t>(std::min(want, size)), '\0');
    std::size_t have = 0;
    while (have < tail.size()) {
      const auto offset = size - static_cast<std::int64_t>(tail.size() - have);
      const ssize_t count = ::pread(fd, tail.data() + have, tail.size() - have, offset);
      if (count < 0 && errno == EINTR) continue;
      if (count <= 0) return SystemError(file, "read");
      have += static_cast<std::size_t>(count);
    }
    const bool whole_line = std::count(tail.begin(), tail.end(), '\n') >= 2;
    if (whole_line || want >= size) return tail;
  }
}

// The "step" of the last line of `lines` that has one; lines that are no events are passed over.
std::optional<std::int64_t> LastStep(std::string_view lines) {
  while (!lines.empty()) {
    lines.remove_suffix(1);  // the newline
    const std::size_t before = lines.rfind('\n');
    const std::size_t begin = before == std::string_view::npos ? 0 : before + 1;
    const json event = json::parse(lines.substr(begin), nullptr, /*allow_exceptions=*/false);
    if (event.is_object()) {
      const auto step = event.find("step");
      if (step != event.end() && step->is_number_integer()) return step->get<std::int64_t>();
    }
    lines = lines.substr(0, begin);
  }
  return std::nullopt;
}

std::string WallClock() {
  return fmt::format("{:%Y-%m-%dT%H:%M:%SZ}", fmt::gmtime(std::time(nullptr)));
}

}  // namespace

class EventWriter::Impl {
 public:
  Impl(int fd, std::filesystem::path file, std::string run)
      : fd_(fd), file_(std::move(file)), run_(std::move(run)) {}
  ~Impl() { ::close(fd_); }
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  // Cuts a torn last line off and finds out how far an earlier process got.
  base::Status Recover() {
    struct stat info {};
    if (::fstat(fd_, &info) != 0) return SystemError(file_, "read");
    if (!S_ISREG(info.st_mode)) return base::InvalidInput("{}: is no regular file", file_.string());
    MOTLEY_ASSIGN_OR_RETURN(const std::string tail, ReadTail(fd_, info.st_size, file_));
    const std::size_t newline = tail.rfind('\n');
    const std::size_t whole = newline == std::string::npos ? 0 : newline + 1;
    const auto torn = static_cast<std::int64_t>(tail.size() - whole);
    if (torn > 0 && ::ftruncate(fd_, info.st_size - torn) != 0) {
      return SystemError(file_, "cut off its torn last line");
    }
    last_step_ = LastStep(std::string_view(tail).substr(0, whole));
    return {};
  }

  void Write(double time, const std::string& event, const json& fields) {
    MOTLEY_CHECK(fields.is_object() || fields.is_null(), "the fields of '{}' are no object", event);
    nlohmann::ordered_json line;
    line["v"] = kFormatVersion;
    line["time"] = time;
    line["run"] = run_;
    line["event"] = event;
    const std::lock_guard lock(mutex_);
    if (std::exchange(first_, false)) line["wall_clock"] = WallClock();
    for (const auto& [key, value] : fields.items()) line[key] = value;
    // A name with broken UTF-8 must not end a training run with an exception.
    Append(line.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n");
  }

  base::Status status() const {
    const std::lock_guard lock(mutex_);
    return status_;
  }
  std::optional<std::int64_t> last_step() const { return last_step_; }

 private:
  void Append(const std::string& line) {
    ssize_t written = 0;
    do {
      written = ::write(fd_, line.data(), line.size());
    } while (written < 0 && errno == EINTR);
    if (written == static_cast<ssize_t>(line.size())) return;
    if (status_.ok()) {
      if (written >= 0) errno = ENOSPC;  // the only way a regular file takes a part
      status_ = SystemError(file_, "write an event").WithFix("free space on its disk");
    }
    if (written <= 0) return;
    // Take the part back, so that the next event begins on a line of its own.
    struct stat info {};
    if (::fstat(fd_, &info) != 0 || ::ftruncate(fd_, info.st_size - written) != 0) return;
  }

  const int fd_;
  const std::filesystem::path file_;
  const std::string run_;
  std::optional<std::int64_t> last_step_;
  mutable std::mutex mutex_;
  bool first_ = true;
  base::Status status_;
};

EventWriter::EventWriter(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
EventWriter::~EventWriter() = default;

base::Result<std::unique_ptr<EventWriter>> EventWriter::Open(const std::filesystem::path& file,
                                                             std::string run) {
  const int fd = ::open(file.c_str(), O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  if (fd < 0) return SystemError(file, "open");
  auto impl = std::make_unique<Impl>(fd, file, std::move(run));
  MOTLEY_RETURN_IF_ERROR(impl->Recover());
  return std::unique_ptr<EventWriter>(new EventWriter(std::move(impl)));
}

void EventWriter::Write(double time, const std::string& event, const json& fields) {
  impl_->Write(time, event, fields);
}

base::Status EventWriter::status() const { return impl_->status(); }
std::optional<std::int64_t> EventWriter::last_step() const { return impl_->last_step(); }

base::Result<std::vector<json>> ReadEvents(const std::filesystem::path& file) {
  MOTLEY_ASSIGN_OR_RETURN(const std::string content, base::ReadFile(file));
  std::vector<json> events;
  std::string_view rest = content;
  for (std::size_t end = rest.find('\n'); end != std::string_view::npos; end = rest.find('\n')) {
    json event = json::parse(rest.substr(0, end), nullptr, /*allow_exceptions=*/false);
    if (!event.is_object()) {
      return base::InvalidInput("{}: line {} is no JSON object", file.string(), events.size() + 1);
    }
    events.push_back(std::move(event));
    rest.remove_prefix(end + 1);
  }
  return events;
}

}  // namespace motley::telemetry
