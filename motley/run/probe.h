#ifndef MOTLEY_RUN_PROBE_H_
#define MOTLEY_RUN_PROBE_H_

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "motley/base/clock.h"
#include "motley/base/status.h"
#include "motley/engine/device.h"
#include "motley/plan/speed_curve.h"

namespace motley::run {

struct ProbeOptions {
  std::int64_t batch = 0;     // no device gets more samples at once
  std::int64_t multiple = 1;  // of shares
  double seconds = 2.0;       // about so long; a slow device takes longer for its first steps
  // Curves of earlier probes, by what they depend on (`key`). A curve that is found there is
  // verified with a few steps, and measured anew when these do not fit it; how many samples fit
  // into memory is always told for the memory that there is now. Empty: no cache.
  std::filesystem::path cache;
  std::string key;       // machine, net, version, threads
  int devices_here = 1;  // that share the memory of this process, this one included
  const std::atomic<bool>* cancel = nullptr;
  std::function<void(const std::string& message)> on_progress;  // may be empty
  std::filesystem::path root = "/";                             // of /proc and /sys, but in tests
};

struct Probed {
  std::vector<plan::Timing> timings;
  std::int64_t cap = plan::kNoCap;        // samples that fit into memory, as far as could be told:
  std::int64_t tried_cap = plan::kNoCap;  // more were refused by the device,
  double bytes_per_sample = 0.0;          // and each takes so much of it; 0: not known
  bool cached = false;
};

// What a curve depends on: another processor, device, net or batch has another one.
std::string ProbeKey(const engine::Device& device, std::int64_t batch, std::int64_t multiple,
                     int threads);

// Times steps of several sizes on made-up samples, smallest first, each size at least twice: what a
// device's speed curve is fitted to. The first step of a size does not count, because it compiles.
// Several devices of a process may be probed at once: each is charged for the memory that it takes.
base::Result<Probed> Probe(engine::Device& device, const ProbeOptions& options,
                           const base::Clock& clock);

}  // namespace motley::run

#endif  // MOTLEY_RUN_PROBE_H_
