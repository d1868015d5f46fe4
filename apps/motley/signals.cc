#include "apps/motley/signals.h"

#include <unistd.h>

#include <cerrno>
#include <csignal>

namespace motley::app {
namespace {

static_assert(std::atomic<bool>::is_always_lock_free, "signal handlers may not take locks");

SignalFlags flags;
std::string_view stop_words;

void OnStop(int) {
  if (flags.interrupt.exchange(true)) ::_exit(kExitInterrupted);
  const int error = errno;  // of whatever was interrupted
  [[maybe_unused]] const ssize_t written =
      ::write(STDERR_FILENO, stop_words.data(), stop_words.size());
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

SignalFlags& HandleSignals(std::string_view words) {
  stop_words = words;
  Handle(SIGINT, OnStop);
  Handle(SIGTERM, OnStop);
  NoteCheckpointRequests();
  Handle(SIGPIPE, SIG_IGN);
  return flags;
}

}  // namespace motley::app
