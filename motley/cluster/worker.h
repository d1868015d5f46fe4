#ifndef MOTLEY_CLUSTER_WORKER_H_
#define MOTLEY_CLUSTER_WORKER_H_

#include <atomic>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "motley/base/status.h"
#include "motley/cluster/cluster.pb.h"
#include "motley/cluster/security.h"
#include "motley/engine/device.h"
#include "motley/plan/energy.h"

namespace grpc {
class Channel;
}

namespace motley::cluster {

using MakeDevice = std::function<base::Result<std::unique_ptr<engine::Device>>(
    std::shared_ptr<const graph::Graph> graph, const engine::DeviceOptions& options)>;

struct WorkerOptions {
  std::string coordinator;                 // HOST:PORT
  std::shared_ptr<grpc::Channel> channel;  // instead: of a coordinator in this process
  JoinToken token;
  std::string name;  // empty: the coordinator chooses
  std::string host;  // of this machine, for people
  int rank = -1;     // of a launcher: orders the members
  // Where other members of a Gloo group reach this worker; empty: the address that this machine has
  // towards the coordinator.
  std::string address;
  engine::DeviceOptions device;
  MakeDevice make_device;   // empty: the native CPU device
  std::string device_name;  // for people: "native, 2 threads"; empty: of the options
  // Samples that stay here: a dataset as in a job file. Only this worker trains on them.
  std::string private_data;
  std::string private_place = "private data";  // what messages about them begin with
  std::optional<plan::PowerProfile> power;  // for estimates; none: measured where there are meters
  std::filesystem::path sysfs = "/sys";     // where meters are; empty: not looked for
  std::string machine;                      // whose meters these are; empty: this one's
  // How fast the device is, measured at joining; 0: it is not, and all shares start equal.
  double probe_seconds = 2.0;
  std::filesystem::path probe_cache;
  int devices_here = 1;  // workers of this process, which share its memory
  // A copy of the job's data, if there is one: a dataset as in a job file; empty: what the job
  // itself names, if it is here. Another content, or none: samples come from the coordinator.
  std::string data;
  std::filesystem::path data_cache;
  int loader_threads = 1;
  // How long a worker goes on trying when the coordinator cannot be reached.
  double retry_seconds = 120.0;
  std::function<void(const std::string& message)> on_note;  // one line for people
  // Every message that this worker sends, as it is before encryption, from any thread. For those
  // who want to see for themselves what leaves the machine. Of what goes by Gloo, this worker's own
  // gradient as it is given to it; what it passes on are sums with those of others.
  std::function<void(std::string_view bytes)> on_sent;
};

struct WorkerReport {
  enum class End { kFinished, kLeft };
  End end = End::kFinished;
  std::string reason;        // of the coordinator
  std::int64_t samples = 0;  // computed, committed or not
};

// Joins a job, works until it ends, and comes back after a lost connection as a new member.
// `leave`: hand back what is not finished and go. Fails with kInvalidInput when it is not let in,
// with kUnavailable when the coordinator stayed away for `retry_seconds`.
base::Result<WorkerReport> RunWorker(const WorkerOptions& options, const std::atomic<bool>* leave);

// Members, shares, rates and ages of the job at `coordinator`.
base::Result<proto::StatusReply> GetStatus(const std::string& coordinator, const JoinToken& token);

}  // namespace motley::cluster

#endif  // MOTLEY_CLUSTER_WORKER_H_
