#ifndef MOTLEY_APPS_MOTLEY_SIGNALS_H_
#define MOTLEY_APPS_MOTLEY_SIGNALS_H_

#include <atomic>

namespace motley::app {

// 128 + SIGINT, as shells report a program that Ctrl-C ended.
inline constexpr int kExitInterrupted = 130;

// What signals ask a training run to do. Signal handlers can reach only globals, so there is one.
struct SignalFlags {
  std::atomic<bool> interrupt{false};       // SIGINT or SIGTERM: checkpoint and stop
  std::atomic<bool> checkpoint_now{false};  // SIGUSR1
};

// From now on SIGUSR1 sets `checkpoint_now`. For the time before training begins: the request waits
// there, where it would otherwise end the process.
void NoteCheckpointRequests();

// From now on the first SIGINT or SIGTERM sets `interrupt`, a second one ends the process at once
// with kExitInterrupted, SIGUSR1 sets `checkpoint_now`, and a reader that closed our pipe does not
// end the run.
SignalFlags& HandleSignals();

}  // namespace motley::app

#endif  // MOTLEY_APPS_MOTLEY_SIGNALS_H_
