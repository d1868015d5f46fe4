#include "motley/data/subprocess.h"

#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstring>
#include <optional>

namespace motley::data {
namespace {

using Deadline = std::chrono::steady_clock::time_point;

// Both ends of a pipe, closed on destruction.
struct Pipe {
  // Only our end does not block: the other one belongs to a program that may not expect it.
  Pipe() {
    ok = ::pipe2(ends.data(), O_CLOEXEC) == 0 && ::fcntl(ends[0], F_SETFL, O_NONBLOCK) == 0;
  }
  ~Pipe() {
    CloseWriter();
    if (ends[0] >= 0) ::close(ends[0]);
  }
  Pipe(const Pipe&) = delete;
  Pipe& operator=(const Pipe&) = delete;
  void CloseWriter() {
    if (ends[1] >= 0) ::close(ends[1]);
    ends[1] = -1;
  }

  std::array<int, 2> ends{-1, -1};
  bool ok = false;
};

// Starts the program in its own process group, so that its children can be killed with it. The
// child inherits the environment: that is where a user tells a package manager about proxies.
base::Result<pid_t> Spawn(const Command& command, int error_fd) {
  posix_spawn_file_actions_t actions;
  posix_spawnattr_t attributes;
  posix_spawn_file_actions_init(&actions);
  posix_spawnattr_init(&attributes);
  posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, "/dev/null", O_WRONLY, 0);
  posix_spawn_file_actions_adddup2(&actions, error_fd, STDERR_FILENO);
  posix_spawn_file_actions_addchdir_np(&actions, command.folder.c_str());
  sigset_t none;
  sigemptyset(&none);
  posix_spawnattr_setsigmask(&attributes, &none);
  posix_spawnattr_setpgroup(&attributes, 0);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_SETSIGMASK);
  std::vector<std::string> words = command.arguments;
  std::vector<char*> argv;
  for (auto& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  pid_t pid = -1;
  const int error = posix_spawnp(&pid, argv[0], &actions, &attributes, argv.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  posix_spawnattr_destroy(&attributes);
  if (error == ENOENT) return base::NotFound("{}: no such program in PATH", words[0]);
  if (error != 0) return base::Internal("{}: cannot start: {}", words[0], std::strerror(error));
  return pid;
}

// Appends what is there now; keeps the end, where programs say what went wrong.
void Drain(int fd, std::string& text) {
  constexpr std::size_t kKeep = 2000;
  std::array<char, 4096> buffer{};
  for (ssize_t count = 0; (count = ::read(fd, buffer.data(), buffer.size())) > 0;) {
    text.append(buffer.data(), static_cast<std::size_t>(count));
    if (text.size() > 2 * kKeep) text.erase(0, text.size() - kKeep);
  }
}

// The wait status, or nothing when the deadline passed and the program was killed. Does not wait
// for the end of standard error: a grandchild may keep that open.
std::optional<int> WaitUntil(pid_t pid, int error_fd, Deadline deadline, std::string& text) {
  constexpr int kPollMilliseconds = 20;
  int status = 0;
  for (;;) {
    pollfd poll_fd{.fd = error_fd, .events = POLLIN, .revents = 0};
    ::poll(&poll_fd, 1, kPollMilliseconds);
    Drain(error_fd, text);
    if (::waitpid(pid, &status, WNOHANG) == pid) break;
    if (std::chrono::steady_clock::now() >= deadline) {
      ::kill(-pid, SIGKILL);
      while (::waitpid(pid, &status, 0) < 0 && errno == EINTR) {
      }
      return std::nullopt;
    }
    // A closed pipe is always ready: do not spin on it.
    if ((poll_fd.revents & POLLHUP) != 0) ::poll(nullptr, 0, kPollMilliseconds);
  }
  Drain(error_fd, text);
  return status;
}

}  // namespace

base::Status RunCommand(const Command& command) {
  MOTLEY_CHECK(!command.arguments.empty(), "a command without a program");
  const std::string& name = command.arguments[0];
  const auto deadline = std::chrono::steady_clock::now() +
                        std::chrono::duration_cast<std::chrono::steady_clock::duration>(
                            std::chrono::duration<double>(command.deadline_seconds));
  Pipe pipe;
  if (!pipe.ok) return base::Internal("{}: no pipe: {}", name, std::strerror(errno));
  MOTLEY_ASSIGN_OR_RETURN(const pid_t pid, Spawn(command, pipe.ends[1]));
  pipe.CloseWriter();
  std::string text;
  const auto status = WaitUntil(pid, pipe.ends[0], deadline, text);
  while (!text.empty() && (text.back() == '\n' || text.back() == ' ')) text.pop_back();
  if (!status) {
    return base::Cancelled("{}: killed after {} s without an end; it said: {}", name,
                           command.deadline_seconds, text.empty() ? "nothing" : text);
  }
  if (WIFEXITED(*status) && WEXITSTATUS(*status) == 0) return {};
  const std::string how = WIFEXITED(*status) ? fmt::format("exit code {}", WEXITSTATUS(*status))
                                             : fmt::format("signal {}", WTERMSIG(*status));
  return base::Unavailable("{}: {}; it said: {}", name, how, text.empty() ? "nothing" : text);
}

}  // namespace motley::data
