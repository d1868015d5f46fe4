#ifndef MOTLEY_CLUSTER_COORDINATOR_H_
#define MOTLEY_CLUSTER_COORDINATOR_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "motley/base/clock.h"
#include "motley/base/status.h"
#include "motley/cluster/cluster.pb.h"
#include "motley/cluster/security.h"
#include "motley/cluster/traffic.h"
#include "motley/data/dataset.h"
#include "motley/graph/graph.h"
#include "motley/plan/controller.h"
#include "motley/run/executor.h"

namespace grpc {
class Channel;
}

namespace motley::cluster {

struct CoordinatorOptions {
  std::string listen = "127.0.0.1:0";  // port 0: any free one; empty: workers of this process only
  bool tls = true;
  Identity identity;             // with tls
  TokenStore* tokens = nullptr;  // who may join; outlives the coordinator
  int min_workers = 1;           // the first step waits for so many
  bool gloo = false;             // a trusted network: reduce by Gloo; otherwise through TLS
  double heartbeat_seconds = 1.0;
  // A member that is alive but does not finish: dropped after the larger of this and 20 times what
  // steps usually take, or sooner where its speed is known.
  double step_seconds = 120.0;
  int update_threads = 1;
  int head_threads = 0;  // of a merged head (proto::Job); 0: one for every core
  // With several groups: no update may be of a model that has seen so many others since; an update
  // that comes too early for that waits. At least the number of groups less one; 0: no bound.
  std::int64_t max_staleness = 0;
};

// The halves of a net whose head the coordinator computes (proto::Job). Refuses, with the reason, a
// job that cannot have that.
base::Result<graph::Halves> SplitForMergedHead(const graph::Graph& graph, std::int64_t bn_batch,
                                               bool gloo);

// Refuses, with the reason, a model that cannot be cut into so many ranges.
base::Status CheckShards(int shards, const graph::Graph& graph, bool gloo, bool merged_head);

// What a coordinator tells while it runs. Called from one thread at a time.
struct CoordinatorHooks {
  const std::atomic<bool>* interrupt = nullptr;
  // name: "joined", "left", "lost", "refused", "plan", "waiting"; message: one line for people;
  // fields: for the events file.
  std::function<void(const std::string& name, const std::string& message,
                     const std::vector<std::pair<std::string, std::string>>& fields)>
      on_event;
  // What the controller decided, and what came of it.
  std::function<void(const plan::Note& note)> on_note;
};

// What became of one worker, for the summary.
struct MemberTotal {
  std::string name, device;
  std::int64_t samples = 0;
  double compute_seconds = 0.0, wait_seconds = 0.0;
  double test_seconds = 0.0;                // computing with the test set
  double present_seconds = 0.0;             // as a member, computing or not
  std::optional<plan::PowerProfile> power;  // of estimates
  std::string meter;                        // "measured: rapl"; empty: nothing was measured
  // As measured, in all and while it computed steps. A meter is one of a whole machine: what it
  // counts is divided evenly among the members that read it at the time.
  double joules = 0.0, joules_busy = 0.0;
};

// The process that owns a job: lets workers in, cuts every batch by the controller's shares, sums
// their gradients, commits. An Executor, so that goals, events and checkpoints are those of a run
// on one machine.
//
// The plan's groups make their steps independently of each other; Step returns the next one that is
// done. A step is committed when every member of its group has reported its part and the sum is
// complete; when one is lost before that, all of it is discarded, a new generation of the group
// begins, and the same samples are cut anew over those who are left. A worker that has said it is
// ready becomes a member at the next step boundary. When a plan has other groups, those who are in
// the middle of a step finish it first.
//
// Nothing waits for a worker longer than two heartbeats of silence, or than `step_seconds`. Only
// waiting for somebody to join has no limit, and ends with the interrupt.
//
// Thread safety: as Executor; Stop may be called from any thread.
class Coordinator final : public run::Executor {
 public:
  // Takes the model out of `state` and begins to listen. `job` is what workers get (MakeJob).
  // Everything borrowed outlives the coordinator.
  static base::Result<std::unique_ptr<Coordinator>> Start(
      const CoordinatorOptions& options, const proto::Job& job, graph::Graph graph,
      const data::DataPair& data, run::TrainState& state, plan::Controller& controller,
      const base::Clock& clock, const CoordinatorHooks& hooks);
  // Without Stop workers take it for a crash, and try to come back.
  ~Coordinator() override;

  int port() const;
  // For workers in this process: no socket, no encryption.
  std::shared_ptr<grpc::Channel> InProcessChannel();

  const graph::Graph& graph() const override;
  std::string kind() const override;
  std::int64_t test_samples() const override;
  const data::Ledger& ledger() const override;
  void StartNextEpoch() override;
  base::Result<run::Update> Step(const optim::SgdOptions& sgd) override;
  base::Result<run::Evaluation> Evaluate() override;
  base::Status Capture(run::TrainState& state) override;
  void End() override;

  // Tells all workers that the job has ended, waits a moment for them to go, and stops listening.
  void Stop(const std::string& reason);

  telemetry::BytesSent traffic() const;
  std::vector<MemberTotal> totals() const;
  int groups() const;  // that there are at present

 private:
  class Impl;
  explicit Coordinator(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace motley::cluster

#endif  // MOTLEY_CLUSTER_COORDINATOR_H_
