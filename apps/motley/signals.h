#ifndef MOTLEY_APPS_MOTLEY_SIGNALS_H_
#define MOTLEY_APPS_MOTLEY_SIGNALS_H_

#include <atomic>
#include <string_view>

namespace motley::app {

// 128 + SIGINT, as shells report a program that Ctrl-C ended.
inline constexpr int kExitInterrupted = 130;

// What signals ask a run or a worker to do. Signal handlers can reach only globals, so there is
// one.
struct SignalFlags {
  std::atomic<bool> interrupt{false};       // SIGINT or SIGTERM: end in good order
  std::atomic<bool> checkpoint_now{false};  // SIGUSR1
};

// From now on SIGUSR1 sets `checkpoint_now`. For the time before training begins: the request waits
// there, where it would otherwise end the process.
void NoteCheckpointRequests();

// What a first SIGINT or SIGTERM says, on standard error.
inline constexpr std::string_view kCheckpointAndStop =
    "\nmotley: writing a checkpoint, then stopping; once more: stop at once\n";
inline constexpr std::string_view kLeave =
    "\nmotley: handing back the work, then leaving; once more: stop at once\n";

// From now on the first SIGINT or SIGTERM sets `interrupt` and says `words` (of static life), a
// second one ends the process at once with kExitInterrupted, SIGUSR1 sets `checkpoint_now`, and a
// reader that closed our pipe does not end the run.
SignalFlags& HandleSignals(std::string_view words);

}  // namespace motley::app

#endif  // MOTLEY_APPS_MOTLEY_SIGNALS_H_
