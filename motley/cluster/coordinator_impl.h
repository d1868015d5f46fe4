#ifndef MOTLEY_CLUSTER_COORDINATOR_IMPL_H_
#define MOTLEY_CLUSTER_COORDINATOR_IMPL_H_

#include <grpcpp/server.h>

#include <condition_variable>
#include <deque>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "motley/cluster/conduct.h"
#include "motley/cluster/coordinator.h"
#include "motley/cluster/desk.h"
#include "motley/cluster/head_server.h"
#include "motley/cluster/model_server.h"
#include "motley/cluster/service.h"
#include "motley/cluster/shard_record.h"
#include "motley/data/ledger.h"
#include "motley/plan/coordinate_momentum.h"
#include "motley/plan/noise.h"
#include "motley/run/pools.h"

namespace motley::cluster {

// How often an interrupt is looked for while waiting.
inline constexpr double kLookSeconds = 0.05;
// A model may have to travel over a slow network.
inline constexpr double kLoadSeconds = 300.0;

struct MergedHead {
  graph::Halves halves;
  std::unique_ptr<engine::Device> device;
};

// The coordinator's own thread: who is a member, what they are told, when a step counts.
class Coordinator::Impl {
 public:
  Impl(const CoordinatorOptions& options, const proto::Job& job, graph::Graph graph,
       std::optional<MergedHead> merged, const data::DataPair& data, run::TrainState& state,
       run::Pools pools, plan::Controller& controller, const base::Clock& clock,
       const CoordinatorHooks& hooks);
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
  void End() { Tell(plan::JobEnded{}); }
  telemetry::BytesSent traffic() const { return traffic_.total(); }
  std::vector<MemberTotal> totals() const;
  int groups() const { return static_cast<int>(groups_.size()); }

 private:
  enum class Outcome { kDone, kBroken, kInterrupted };
  // What each member of a group is to compute, in their order.
  using Assignment = std::vector<run::Pools::Part>;

  // Members that make steps together, and where they are.
  struct Group {
    std::vector<SessionPtr> members;  // in the order in which their gradients are summed
    std::uint64_t generation = 0;
    std::int64_t version = 0;  // updates that the model has seen which they work with
    std::int64_t steps_of_plan = 0;
    bool asked = false;    // hosts were asked who keeps them waiting,
    bool heard = false;    // and members had the time to tell which host does
    bool hurried = false;  // the last attempt ended before anybody had done a sample
    // The attempt that is being made.
    bool busy = false;
    bool alone = false;  // there was no other group when it began
    Assignment parts;
    double began = 0.0, limit = 0.0;  // on the clock
    double deadline = 0.0;            // in seconds from the beginning; 0: none
    double allowed = 0.0;             // seconds to the limit
    optim::SgdOptions sgd;            // for all of its samples
  };

  // Waits until there are enough members that have the model and, with Gloo, form a group.
  base::Status Gather();
  void RemoveGone();
  std::vector<SessionPtr> Joiners() const;
  bool Admit(const std::vector<SessionPtr>& joiners);
  // Sends the present model to those who have another, and waits until it is there; who does not
  // have it after so many seconds is sent away. False when somebody is gone meanwhile.
  bool Refresh(const std::vector<SessionPtr>& sessions, double seconds);
  // Sends the model to those who are new while the members work, and leaves those who have got it:
  // what has changed since then comes as fast, and a lost connection holds nobody up.
  void LoadAhead(std::vector<SessionPtr>& joiners);
  void SendLoad(const SessionPtr& session);
  // Without `whole`, only what is served here.
  void SendModel(const SessionPtr& session, const StepKey& key, bool whole);
  // Sends away who says that it is done and does not take the models.
  void CheckTaken(const SessionPtr& session);
  bool FormGroup();
  void TakeGroupFailure(const SessionPtr& session);
  void ForgetClaims();
  // Brings the model of this step here from a member that has it.
  base::Status FetchState();
  bool AwaitUpload(const SessionPtr& member);

  // --- Ranges of the model that workers hold (coordinator_shards.cc)
  // Whom the plan wants to hold each range; null: nobody, it stays here.
  std::vector<SessionPtr> WantedHosts() const;
  // A range is held by somebody who is not wanted any more.
  bool HostsHaveChanged() const;
  // All ranges are where the plan wants them, and every member can reach them.
  bool ShardsFormed() const;
  // Makes it so. Requires that nobody is at work; false when it must be tried again.
  bool FormShards();
  // Gives every host its range, if it has it not yet, and the keys of all members.
  bool FillRanges();
  proto::Order HostOrder(std::size_t number);
  // What a host has answered: false when it is no answer.
  bool TakeHosting(std::size_t number);
  // Tells the members where the ranges are.
  bool ConnectMembers();
  void SendRange(const SessionPtr& host, int range, const StepKey& key);
  // A host is gone, or a member has lost its connection to one.
  bool ShardsBroken() const;
  // All ranges are here again. What hosts had not sent yet of the present model is lost, so all
  // members get it anew.
  void DropShards();
  // Relieves hosts of their ranges, and sends members away, when attempts have failed by them.
  void JudgeShards();
  // Who holds this part of the model; null: nobody else.
  SessionPtr HostOf(int part) const;
  std::vector<std::string> HostNames() const;  // by range
  void TellHosts(const proto::Order& order);
  void BeginAtShards(int number, const Group& group, const ModelServer::Step& step);
  void CommitAtShards(int number, const StepKey& key);
  void DiscardAtShards(int number);
  void TakeShardFailure(const SessionPtr& session, const proto::Failed& failed);
  void TakeComplaint(const SessionPtr& session, const proto::Complaint& complaint);
  // Everybody has sent what it had to send here, and a host has not: it may name those who have not
  // sent theirs there, and is sent away when it does not.
  bool AskHosts(int number, Group& group);
  // Somebody is not done, perhaps because a host has not sent it the model: it says so when it has
  // waited for long enough. False when it had the time.
  bool HearOfHosts(Group& group);
  void SendSlowHostsAway(int number, const Group& group);
  // Whether members told hosts the same as us; who did not is sent away.
  bool CheckSums(int number, const Group& group);

  // The group of each member, as the plan has it.
  std::vector<int> PlannedGroups() const;
  bool Grouped() const;
  // Puts the members into the plan's groups, with the present model. Requires that nobody is at
  // work; false when somebody is gone meanwhile.
  bool Regroup();
  bool AnyBusy() const;

  static std::int64_t SamplesOf(const Assignment& parts);
  // Gives a group its next samples; false when there are none left that it could compute.
  bool Begin(int number, Group& group, const optim::SgdOptions& sgd);
  void BeginReduction(int number, Group& group, const optim::SgdOptions& sgd);
  // False when the group's head step has failed, or is not finite.
  bool HeadIsWell(int number) const;
  base::Status HeadStatus(int number) const;
  // All samples of the group are there, and it is not their fault that nothing comes back.
  bool HeadIsAtWork(int number, const Group& group) const;
  void BeginHead(int number, const Group& group, const optim::SgdOptions& sgd);
  // The head's weights go to all members that do not have them.
  void SendHead();
  // Forgets the open step of a group, if it has one.
  void Discard(int number);
  proto::Order TrainOrder(const Group& group, const optim::SgdOptions& sgd) const;
  // --- How long a step may take (coordinator_patience.cc)
  // Whether the plan says how long the group's step takes. Steps of a new size compile, those of a
  // new plan may wait for their samples, and who did nothing in time needs more of it.
  bool AsPlanned(int number, const Group& group) const;
  // After how many seconds a member stops with what it has; 0: it takes the time it needs.
  double DeadlineOf(int number, const Group& group) const;
  // After how many seconds those who have not answered are sent away.
  double LimitOf(int number, const Group& group, double deadline) const;
  double LongestStep() const;  // where nobody knows how long it takes
  // That testing so many samples each may take.
  double LongestTest(const std::vector<std::int64_t>& shares) const;
  // How fast the member was in this step.
  static void Learn(Session& member, const Group& group, double now);

  // Waits for a group whose attempt has come to an end: the first that did.
  std::pair<int, Outcome> AwaitStep();
  // How the attempt stands; nothing: it goes on.
  std::optional<Outcome> Look(int number, Group& group);
  // Whether the update of this group would leave that of another one too stale.
  bool MayCommit(int number) const;
  // An attempt that all have reported: the update, or nothing when it has to be made again.
  std::optional<run::Update> Finish(int number, Group& group);
  // Gives back what the group was to compute.
  void Abandon(int number, Group& group);
  // Whether all did what they were told, or stopped at their deadline; who did neither is sent
  // away.
  bool CheckDone(const Group& group);
  bool CheckEvaluated(const std::vector<std::int64_t>& shares);
  // False when the step has to be made again, without those whose gradients cannot be used. When
  // nobody's can, the update says so.
  bool JudgeGradients(const Group& group, run::Update& update);
  // Whether anybody was sent away: not when it would be everybody.
  bool SendSuspectsAway(const std::vector<SessionPtr>& bad, const std::string& reason);
  run::Update Commit(int number, Group& group);
  // By Gloo nobody else knows them.
  static ModelServer::Norms ReportedNorms(const Group& group);
  // What the member needed in the step besides computing; negative when nobody can tell.
  double ExchangeSeconds(const Group& group, const SessionPtr& member) const;
  void Account(const SessionPtr& member, double now);
  void AccountPresence(const SessionPtr& member, double now);  // and its joules
  void TellShortStep(const run::Update& update, std::int64_t planned);
  // The samples of members that are gone, when all others are done.
  void ForgoUnreachable();
  // The private pools of the next epoch: of those who are here, and of those who were.
  std::vector<run::PrivatePool> KnownPools() const;
  std::vector<run::Pools::Device> PlannedDevices(const std::vector<SessionPtr>& members) const;
  std::int64_t PlannedBatch(int number) const;
  plan::DeviceJoined Describe(const SessionPtr& session) const;
  // All that is going on in a group is void.
  void NextGeneration(Group& group);
  void NextGenerations();

  // Waits for the answers of `who` to their last order, and for `complete`.
  Outcome Await(const std::vector<SessionPtr>& who, double seconds,
                const std::function<bool()>& complete = {}, bool interruptible = false);
  void Drain();
  void Take(Desk::Item item);
  bool Interrupted() const;

  static proto::Order NewOrder(const Group& group);
  void Send(const SessionPtr& session, proto::Order order);
  void SendStop(const SessionPtr& session, const std::string& reason);
  std::vector<std::int64_t> Cut(std::int64_t total) const;
  void Tell(const plan::Event& event);
  // Ends the session of one that holds the others up. Who needs that again and again is barred.
  void SendAway(const SessionPtr& session, const std::string& reason);
  double Strike(const Session& session);  // for how many seconds it is barred
  void TellLost(const SessionPtr& session);
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
  const std::optional<graph::Halves> halves_;  // with a merged head
  std::unique_ptr<HeadServer> head_;           // null: the members have the whole net
  std::optional<std::pair<std::uint64_t, data::Permutation>> order_;  // of this epoch
  ModelServer model_;                                                 // of the body then
  std::int64_t model_step_;       // the step that model_ holds; behind step_ with Gloo
  std::int64_t step_;             // updates that have been made
  std::uint64_t generation_ = 1;  // the last that any group has begun
  std::vector<SessionPtr> members_;
  std::map<int, Group> groups_;  // by the plan's number
  plan::Plan plan_;
  bool started_;  // whoever is there is enough
  bool formed_ = false, waiting_told_ = false;
  int failed_groups_ = 0;      // in a row, with everybody alive
  std::uint64_t claimed_ = 0;  // the last generation of which a member said so
  struct Range {
    SessionPtr host;                                                 // null: it is here
    bool filled = false;                                             // the host has its state
    std::map<std::string, std::pair<SessionPtr, std::string>> keys;  // of members, by name
    proto::Hosting hosting;
  };
  std::vector<Range> ranges_;   // of the model; the first is always here
  bool shards_formed_ = false;  // for the members that there are
  static constexpr double kNever = std::numeric_limits<double>::infinity();
  double shards_break_ = kNever;         // on the clock: a member does not reach a host
  std::uint64_t shards_generation_ = 0;  // in which they were formed
  ShardRecord shard_record_;
  Conduct conduct_;
  // Members were sent away for numbers that are not finite since the last update. Until the next
  // one nobody joins: every attempt has fewer members, so it comes to an end.
  bool suspects_ = false;
  plan::NoiseScale noise_;
  plan::CoordinateWatch watch_;  // without Gloo, whose members have the model
  std::int64_t short_steps_ = 0;
  double next_short_event_ = 0.0;
  double usual_seconds_ = 0.0, last_loss_ = 0.0;
  run::Evaluation last_test_;
  std::map<std::string, MemberTotal> totals_;

  Desk desk_;
  Service service_;
  std::unique_ptr<Server> server_;
  int port_ = 0;
};

}  // namespace motley::cluster

#endif  // MOTLEY_CLUSTER_COORDINATOR_IMPL_H_
