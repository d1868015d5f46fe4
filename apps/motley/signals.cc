#include "apps/motley/signals.h"

#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <string_view>

namespace motley::app {
namespace {

static_assert(std::atomic<bool>::is_always_lock_free, "signal handlers may not take locks");

SignalFlags flags;

void OnStop(int) {
  if (flags.interrupt.exchange(true)) ::_exit(kExitInterrupted);
  constexpr std::string_view kText =
      "\nmotley: writing a checkpoint, then stopping; once more: stop at once\n";
  const int error = errno;  // of whatever was interrupted
  [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, kText.data(), kText.size());
  errno = error;
}

void OnCheckpoint(int) { flags.checkpoint_now = true; }

void Handle(int signal, void (*handler)(int)) {
  struct sigaction action {};
  action.sa_handler = handler;
  action.sa_flags = SA_RESTART;
  ::sigemptyset(&action.sa_mask);
  ::sigaction(signal, &action, nullptr);
}

}  // namespace

void NoteCheckpointRequests() { Handle(SIGUSR1, OnCheckpoint); }

SignalFlags& HandleSignals() {
  Handle(SIGINT, OnStop);
  Handle(SIGTERM, OnStop);
  NoteCheckpointRequests();
  Handle(SIGPIPE, SIG_IGN);
  return flags;
}

}  // namespace motley::app
