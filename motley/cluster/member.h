#ifndef MOTLEY_CLUSTER_MEMBER_H_
#define MOTLEY_CLUSTER_MEMBER_H_

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "motley/base/clock.h"
#include "motley/base/status.h"
#include "motley/cluster/boundary.h"
#include "motley/cluster/gloo_reducer.h"
#include "motley/cluster/incoming_model.h"
#include "motley/cluster/link.h"
#include "motley/cluster/model_server.h"
#include "motley/cluster/outbox.h"
#include "motley/cluster/part_to_send.h"
#include "motley/cluster/parts.h"
#include "motley/cluster/shard_host.h"
#include "motley/cluster/shard_link.h"
#include "motley/cluster/worker.h"
#include "motley/cluster/worker_data.h"
#include "motley/energy/meter.h"
#include "motley/engine/device.h"
#include "motley/run/pressure.h"
#include "motley/run/probe.h"

namespace motley::cluster {

// What a worker keeps when it has to join again: making it takes longest.
struct Workshop {
  std::string job;  // that it is for, as bytes
  std::shared_ptr<const graph::Graph> graph;
  std::unique_ptr<engine::Device> device;
  std::unique_ptr<engine::Device> body;  // with a merged head: what training computes
  data::DataPair own_data;
  std::shared_ptr<const data::Dataset> private_data;
  run::Probed probed;
};

// One membership of a worker, from joining to the end of its connection.
//
// Threads: the caller's computes; of each of the two streams, and of each stream to a shard, one
// thread reads and one writes. A newer generation cancels what is being computed for an older one.
class Member {
 public:
  // `leave` may be null. All outlive the member.
  Member(const WorkerOptions& options, std::shared_ptr<Link> link, const proto::JoinReply& joined,
         Workshop& workshop, const std::atomic<bool>* leave);
  ~Member();

  // kUnavailable when the connection is lost.
  base::Result<WorkerReport> Run();

 private:
  // An update that was computed and is not committed yet.
  struct Pending {
    StepKey key;
    std::int64_t samples = 0;  // of all,
    bool contributes = false;  // and some of them of this worker
    optim::SgdOptions sgd;
  };

  base::Status Open();
  base::Status Prepare();
  // What this worker computes in training: the net, or its body.
  engine::Device& trainer() const { return *(workshop_.body ? workshop_.body : workshop_.device); }
  base::Status MakeDevices();
  base::Status Probe();
  // An array that has come.
  base::Status Receive(const proto::Part& part);
  void ReportReady();
  std::optional<double> ReadMeter();  // joules; none without one, or when it cannot be read
  void ReadOrders();
  void WriteReports();
  void ReadParts();
  void WriteParts();
  bool Silent() const;
  void Hang();

  // The next order; none when the connection is lost.
  std::optional<proto::Order> NextOrder();
  base::Status Do(const proto::Order& order);
  base::Status Load(const proto::Order& order);
  base::Status Train(const proto::Order& order);
  base::Result<engine::StepResult> Compute(const proto::Order& order, const data::Batch& batch);
  // A piece of the update is final: it is the sum over `samples` samples.
  void Announce(const StepKey& key, std::int64_t offset, std::int64_t count, std::int64_t samples);
  base::Status Evaluate(const proto::Order& order);
  base::Status Save(const proto::Order& order);
  base::Status Form(const proto::Order& order);
  // Where other members reach this worker.
  base::Result<std::string> OwnAddress() const;
  void MakeHost();
  base::Status ObeyAsHost(const proto::Order& order);
  // Takes a range of the model, and serves it.
  base::Status Host(const proto::Order& order);
  // Opens the connections to the shards that an order names, and keeps those that are there.
  base::Status Connect(const proto::Order& order);
  base::Result<std::unique_ptr<ShardLink>> Reach(const proto::Shards::Shard& shard);
  base::Status TakeFromShard(int range, const proto::Part& part);
  // Brings the model to the step that an order works with: applies the pending update, or forgets
  // it.
  base::Status Advance(const proto::Order& order);
  // The update is over so many samples.
  base::Status ApplyPending(const proto::Order& order);
  // A model that comes in answer to an update, from all who serve some of it.
  base::Status AwaitNext(const StepKey& key);
  // One that comes from the coordinator.
  base::Status Await(const IncomingModel& incoming, const StepKey& key);
  // The weights of the whole net, as an order wants them.
  base::Result<std::span<const float>> WholeWeights(const proto::Order& order);
  void ReportDone(const proto::Order& order, const engine::StepResult& result, double wait_seconds);
  void ReportHosting(const proto::Order& order, const proto::Hosting& hosting);
  void ReportFailed(std::uint64_t generation, const base::Status& status, bool group);
  // The host of a range cannot be reached, or is silent.
  void ReportHost(std::uint64_t generation, const std::string& host, const base::Status& status,
                  bool silent = false);
  // Requires mutex_. Names those who should have sent their range of this model. False when it is
  // not clear that they are to blame.
  bool NameSilentHosts(const StepKey& key);

  // Says why it goes, and gives the report a moment to get out.
  void SayFarewell(std::uint64_t generation, const base::Status& status);

  std::span<float> weights() { return std::span(model_).first(parameters_); }
  std::span<float> buffers() { return std::span(model_).subspan(parameters_); }

  const WorkerOptions& options_;
  const std::shared_ptr<Link> link_;
  const proto::JoinReply joined_;
  Workshop& workshop_;
  const std::atomic<bool>* const leave_;
  const base::RealClock clock_{};

  std::size_t parameters_ = 0;
  std::unique_ptr<Parts> parts_;
  std::unique_ptr<WorkerData> data_;
  std::vector<float> model_, velocity_;
  std::vector<float> whole_;  // the weights with those of a merged head, in an evaluation
  std::int64_t model_step_ = -1;
  // Gradient sum, then sums of statistics. Anew in each generation: what is still being sent of an
  // older one must not change.
  std::shared_ptr<std::vector<float>> update_;
  std::uint64_t update_generation_ = 0;
  std::unique_ptr<PartProgress> progress_;
  std::optional<Pending> pending_;
  std::unique_ptr<GlooReducer> reducer_;
  int group_rank_ = 0, group_size_ = 1;
  double squared_ = 0.0, sum_squared_ = 0.0;  // of the gradient, as the report has them
  run::Pressure pressure_{clock_};
  std::unique_ptr<energy::Meter> meter_;  // null: there is none, or the profile estimates
  double joules_busy_ = 0.0;              // that it has counted while steps were computed
  std::atomic<bool> finite_{true};
  WorkerReport report_;
  double leave_deadline_ = 0.0;

  grpc::ClientContext work_context_, exchange_context_;
  std::unique_ptr<grpc::ClientReaderWriter<proto::Report, proto::Order>> work_;
  std::unique_ptr<grpc::ClientReaderWriter<proto::Part, proto::Part>> exchange_;
  Outbox<proto::Report> reports_;
  Outbox<PartToSend> parts_out_;

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<proto::Order> orders_;
  std::unique_ptr<IncomingModel> incoming_;
  // With a merged head.
  std::unique_ptr<Boundary> boundary_;
  std::unique_ptr<Parts> head_parts_;
  std::unique_ptr<IncomingModel> incoming_head_;
  // With several shards.
  std::unique_ptr<ShardHost> host_;                  // that this worker is, or may become
  std::map<int, std::unique_ptr<ShardLink>> links_;  // to the hosts of other ranges than 0
  std::atomic<std::uint64_t> shards_{0};             // the generation of the last such order
  bool lost_ = false;
  std::string lost_reason_;
  std::uint64_t computing_ = 0;  // generation
  std::atomic<bool> cancel_{false};
  std::atomic<double> last_heard_{0.0};

  std::vector<std::jthread> threads_;
};

}  // namespace motley::cluster

#endif  // MOTLEY_CLUSTER_MEMBER_H_
