#include "motley/energy/sysfs.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>

#include "motley/base/file.h"

namespace motley::energy {
namespace {

// The kernel shows such files as large as a page, which has 64 KiB on some ARM machines.
constexpr std::uint64_t kMaxBytes = 1 << 20;

bool IsForbidden(const std::filesystem::path& file) {
  const int fd = ::open(file.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) return errno == EACCES || errno == EPERM;
  ::close(fd);
  return false;
}

template <typename Number>
bool Parse(std::string_view text, Number& number) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  return error == std::errc() && end == text.data() + text.size();
}

}  // namespace

base::Result<std::string> ReadLine(const std::filesystem::path& file) {
  auto content = base::ReadFile(file, kMaxBytes);
  if (!content.ok()) {
    if (!IsForbidden(file)) return std::move(content).status();
    // Since 2020 kernels keep energy counters from users, because they tell about the data that
    // other programs work on (CVE-2020-8694).
    return base::Unavailable("{}: this user may not read it", file.string())
        .WithFix(
            fmt::format("run as root, or allow it until the next start with: sudo chmod a+r '{}'",
                        file.string()));
  }
  constexpr std::string_view kSpace = " \t\r\n";
  const std::size_t begin = content->find_first_not_of(kSpace);
  if (begin == std::string::npos) return std::string();
  return content->substr(begin, content->find_last_not_of(kSpace) - begin + 1);
}

base::Result<std::int64_t> ReadNumber(const std::filesystem::path& file) {
  MOTLEY_ASSIGN_OR_RETURN(const std::string text, ReadLine(file));
  std::int64_t number = 0;
  if (!Parse(text, number)) {
    return base::InvalidInput("{}: '{}' is no whole number", file.string(), text.substr(0, 40));
  }
  return number;
}

std::vector<std::filesystem::path> Numbered(const std::filesystem::path& folder,
                                            std::string_view prefix, std::string_view suffix) {
  std::vector<std::pair<std::uint32_t, std::filesystem::path>> found;
  std::error_code error;
  for (std::filesystem::directory_iterator at(folder, error), end; !error && at != end;
       at.increment(error)) {
    const std::string name = at->path().filename().string();
    if (!name.starts_with(prefix) || !name.ends_with(suffix) ||
        name.size() <= prefix.size() + suffix.size()) {
      continue;
    }
    std::uint32_t number = 0;
    const auto digits =
        std::string_view(name).substr(prefix.size(), name.size() - prefix.size() - suffix.size());
    if (Parse(digits, number)) found.emplace_back(number, at->path());
  }
  std::sort(found.begin(), found.end());
  std::vector<std::filesystem::path> paths;
  for (auto& each : found) paths.push_back(std::move(each.second));
  return paths;
}

}  // namespace motley::energy
