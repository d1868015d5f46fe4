#ifndef MOTLEY_CLUSTER_COORDINATOR_IMPL_H_
#define MOTLEY_CLUSTER_COORDINATOR_IMPL_H_

#include <grpcpp/server.h>

#include <condition_variable>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "motley/cluster/coordinator.h"
#include "motley/cluster/desk.h"
#include "motley/cluster/model_server.h"
#include "motley/cluster/service.h"
#include "motley/data/ledger.h"
#include "motley/plan/noise.h"
#include "motley/run/pools.h"

namespace motley::cluster {

// How often an interrupt is looked for while waiting.
inline constexpr double kLookSeconds = 0.05;
// A model may have to travel over a slow network.
inline constexpr double kLoadSeconds = 300.0;

// The coordinator's own thread: who is a member, what they are told, when a step counts.
class Coordinator::Impl {
 public:
  Impl(const CoordinatorOptions& options, const proto::Job& job, graph::Graph graph,
       const data::DataPair& data, run::TrainState& state, run::Pools pools,
       plan::Controller& controller, const base::Clock& clock, const CoordinatorHooks& hooks);
  ~Impl();

  base::Status Listen();
  int port() const { return port_; }
  std::shared_ptr<grpc::Channel> InProcessChannel();
  void Stop(const std::string& reason);
  void Close();

  const graph::Graph& graph() const { return graph_; }
  std::int64_t test_samples() const { return data_.test->size(); }
  const data::Ledger& ledger() const { return pools_.ledger(); }
  void StartNextEpoch();
  base::Result<run::Update> Step(const optim::SgdOptions& sgd);
  base::Result<run::Evaluation> Evaluate();
  base::Status Capture(run::TrainState& state);
  telemetry::BytesSent traffic() const { return traffic_.total(); }
  std::vector<MemberTotal> totals() const;

 private:
  enum class Outcome { kDone, kBroken, kInterrupted };

  // Waits until there are enough members that have the model and, with Gloo, form a group.
  base::Status Gather();
  void RemoveGone();
  std::vector<SessionPtr> Joiners() const;
  bool Admit(const std::vector<SessionPtr>& joiners);
  void SendModel(const SessionPtr& session);
  bool FormGroup();
  // Brings the model of this step here from a member that has it.
  base::Status FetchState();

  // What each member is to compute, in the order of the members.
  using Assignment = std::vector<run::Pools::Part>;
  static std::int64_t SamplesOf(const Assignment& parts);

  std::optional<run::Update> Attempt(const Assignment& parts, const optim::SgdOptions& sgd);
  void BeginReduction(const Assignment& parts, const optim::SgdOptions& sgd);
  proto::Order TrainOrder(std::int64_t samples, const optim::SgdOptions& sgd) const;
  // After how many seconds a member stops with what it has; 0: it takes the time it needs.
  double DeadlineOf(std::int64_t samples) const;
  // Whether all did what they were told, or stopped at their deadline; who did neither is sent
  // away.
  bool CheckDone(const Assignment& parts);
  bool CheckEvaluated(const std::vector<std::int64_t>& shares);
  // Why the gradients that came cannot be used; a single offender is sent away.
  std::string JudgeGradients();
  run::Update Commit(const Assignment& parts, double began);
  // The samples of members that are gone, when all others are done.
  void ForgoUnreachable();
  // The private pools of the next epoch: of those who are here, and of those who were.
  std::vector<run::PrivatePool> KnownPools() const;
  std::vector<run::Pools::Device> PlannedDevices() const;
  std::int64_t PlannedBatch() const;
  plan::DeviceJoined Describe(const SessionPtr& session) const;
  // All that is going on is void.
  void NextGeneration();

  // Waits for the reports of `who` about the present generation and step, and for `complete`.
  Outcome Await(const std::vector<SessionPtr>& who, double seconds,
                const std::function<bool()>& complete = {}, bool interruptible = false);
  void Drain();
  void Take(Desk::Item item);
  bool Interrupted() const;

  proto::Order NewOrder() const;
  void Send(const SessionPtr& session, proto::Order order);
  std::vector<std::int64_t> Cut(std::int64_t total) const;
  void Tell(const plan::Event& event);
  void TellLost(const SessionPtr& session);
  double StepLimit() const;
  void ShowProgress();

  const CoordinatorOptions options_;
  const graph::Graph graph_;
  const data::DataPair& data_;
  plan::Controller& controller_;
  const base::Clock& clock_;
  const CoordinatorHooks hooks_;
  const proto::Job job_;
  Traffic traffic_;

  run::Pools pools_;
  ModelServer model_;
  std::int64_t model_step_;  // the step that model_ holds; behind step_ with Gloo
  std::int64_t step_;
  std::uint64_t generation_ = 1;
  std::vector<SessionPtr> members_;
  plan::Plan plan_;
  bool formed_ = false, broken_ = false, started_ = false, waiting_told_ = false;
  std::int64_t steps_of_plan_ = 0;
  double deadline_ = 0.0;  // of the present attempt; 0: none
  bool hurried_ = false;   // the last attempt ended before anybody had done a sample
  int failed_forms_ = 0;   // in a row, with everybody alive
  int suspects_ = 0;       // members sent away for a bad gradient, in this step
  plan::NoiseScale noise_;
  std::int64_t short_steps_ = 0;
  double next_short_event_ = 0.0;
  std::int64_t committed_ = 0;  // samples of the last update
  double usual_seconds_ = 0.0, last_loss_ = 0.0;
  run::Evaluation last_test_;
  std::map<std::string, MemberTotal> totals_;

  Desk desk_;
  Service service_;
  std::unique_ptr<grpc::Server> server_;
  int port_ = 0;
};

}  // namespace motley::cluster

#endif  // MOTLEY_CLUSTER_COORDINATOR_IMPL_H_
