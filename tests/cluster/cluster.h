#ifndef MOTLEY_TESTS_CLUSTER_CLUSTER_H_
#define MOTLEY_TESTS_CLUSTER_CLUSTER_H_

#include <gtest/gtest.h>

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "motley/base/clock.h"
#include "motley/cluster/coordinator.h"
#include "motley/cluster/security.h"
#include "motley/cluster/worker.h"
#include "motley/data/dataset.h"
#include "motley/plan/controller.h"
#include "motley/plan/hosts.h"
#include "motley/run/trainer.h"

namespace motley::cluster {

// A small job on the first glyphs.
struct SmallJob {
  bool batch_norm = false;
  // Without ReLU, where rounding may decide on which side of the kink a number lies: groups that do
  // not wait for each other make another order of updates each time, and one in a hundred of these
  // differs by a thousandth after 20 steps.
  bool linear = false;
  std::int64_t train = 630, test = 60;  // 20 steps, the last one smaller
  std::int64_t batch = 32;
  std::int64_t bn_batch = 0;
  std::int64_t epochs = 1;
  float learning_rate = 0.02F;
  bool augment = false;  // also flips, and normalises with odd numbers
};

// The first samples of the generated set.
data::DataPair FirstGlyphs(std::int64_t train, std::int64_t test);

// The same job on one device of this process, for comparison.
run::TrainState OnOneDevice(const SmallJob& job);
// One epoch of the job with every update made of a model that is as many updates old as it says.
struct StaleUpdate {
  std::int64_t batch = 0, staleness = 0;
};
run::TrainState WithStaleUpdates(const SmallJob& job, const std::vector<StaleUpdate>& updates);
// Which batch of the epoch made each update of one: a group takes the next one when it begins.
std::vector<StaleUpdate> Replay(const std::vector<plan::StepDone>& steps, int groups);
// The weights, statistics and velocities agree to 1e-4 of the largest.
void ExpectSame(const run::TrainState& state, const run::TrainState& expected);

// The largest difference of two arrays, relative to the largest element.
double RelativeDifference(const std::vector<float>& a, const std::vector<float>& b);

// How many groups there are to be after so many steps.
using GroupsAt = std::function<int(std::int64_t step)>;

// Gives devices shares in the order in which they join: shares[i % size], scaled to the batch; and
// puts them into groups in turn.
class FixedShares final : public plan::Controller {
 public:
  // `seconds` is what it predicts for a step; 0: it says nothing. With a total `momentum`, the
  // explicit one is what the number of groups leaves of it.
  FixedShares(std::int64_t batch, std::int64_t multiple, std::vector<std::int64_t> shares,
              double seconds, GroupsAt groups_at, std::optional<double> momentum, int shards)
      : shards_(shards),
        batch_(batch),
        multiple_(multiple),
        shares_(std::move(shares)),
        seconds_(seconds),
        groups_at_(std::move(groups_at)),
        momentum_(momentum),
        groups_(static_cast<std::size_t>(groups_at_(0))) {}
  std::optional<plan::Plan> OnEvent(const plan::Event& event) override;
  const std::vector<plan::StepDone>& steps() const { return steps_; }

 private:
  const int shards_;  // of the model, held by who joins first
  std::vector<plan::HostCandidate> candidates_;
  std::vector<std::string> hosts_;
  const std::int64_t batch_, multiple_;
  const std::vector<std::int64_t> shares_;
  const double seconds_;
  const GroupsAt groups_at_;
  const std::optional<double> momentum_;
  std::size_t groups_;
  std::vector<std::pair<std::string, std::int64_t>> devices_;
  std::size_t joined_ = 0;
  std::vector<plan::StepDone> steps_;
};

// How the gradients of a job come together.
enum class Way { kServer, kGloo, kMergedHead, kShards };
std::string NameOf(const testing::TestParamInfo<Way>& way);

// One that nobody else uses, under the temporary folder.
std::filesystem::path NewFolder();

// A device that does something before each step: fails, waits, spoils the gradient.
using BeforeStep = std::function<base::Status(std::int64_t step)>;
using AfterStep = std::function<void(const engine::StepRequest& request)>;
// `before_test`: before each batch of the test set, counted likewise.
MakeDevice DeviceWith(BeforeStep before, AfterStep after = {}, BeforeStep before_test = {});

// A whole cluster in one process: a coordinator on loopback with TLS, and workers as threads.
class TestCluster {
 public:
  struct Options {
    SmallJob job;
    bool gloo = false;
    bool merged_head = false;
    int shards = 1;
    int min_workers = 1;
    std::vector<std::int64_t> shares = {1};
    double heartbeat_seconds = 1.0;  // a busy machine may stand still for as long
    double predicted_seconds = 0.0;  // of a step; 0: the plan says nothing
    double step_seconds = 120.0;     // that a member may take at most, while nobody knows better
    bool probe = false;              // workers measure how fast they are
    GroupsAt groups_at = [](std::int64_t) { return 1; };
    std::optional<double> momentum;  // in total, whatever the number of groups
    std::int64_t max_staleness = 0;
    std::string listen = "127.0.0.1:0";
    std::filesystem::path folder;  // identity, tokens, checkpoints; empty: a new one
  };

  explicit TestCluster(Options options);
  ~TestCluster();

  // Before Run, or while it runs, from any thread.
  void AddWorker(WorkerOptions changes = {});
  void Leave(std::size_t worker) { workers_[worker]->leave = true; }
  // Trains to the end. `on_step` is called after every step.
  base::Result<run::TrainReport> Run(const std::function<void(std::int64_t step)>& on_step = {});
  // Of a checkpoint, instead of from fresh weights.
  run::TrainState state;
  std::atomic<bool> interrupt{false};

  Coordinator& coordinator() { return *coordinator_; }
  TokenStore& tokens() { return *tokens_; }
  const JoinToken& token() const { return token_; }
  const std::filesystem::path& folder() const { return folder_; }
  std::string address() const;
  const run::TrainOptions& train_options() const { return train_options_; }

  // Stops the coordinator as a kill would: without a word to the workers.
  void Vanish();
  // After Run: how the workers ended.
  base::Result<WorkerReport>& Ended(std::size_t worker);
  // What the coordinator told: "name: message".
  std::vector<std::string> told() const;
  int CountTold(const std::string& part) const;
  // The mean loss of the training samples, by epoch.
  const std::vector<double>& train_losses() const { return train_losses_; }
  // The updates, in their order.
  const std::vector<plan::StepDone>& steps() const { return controller_.steps(); }

 private:
  struct Worker {
    std::atomic<bool> leave{false};
    base::Result<WorkerReport> ended = base::Unavailable("still running");
    std::thread thread;
  };

  Options options_;
  std::filesystem::path folder_;
  base::RealClock clock_;
  data::DataPair data_;
  run::TrainOptions train_options_;
  std::unique_ptr<TokenStore> tokens_;
  JoinToken token_;
  FixedShares controller_;
  std::vector<double> train_losses_;
  mutable std::mutex told_mutex_;
  std::vector<std::string> told_;
  std::unique_ptr<Coordinator> coordinator_;
  int port_ = 0;
  std::vector<std::unique_ptr<Worker>> workers_;
};

}  // namespace motley::cluster

#endif  // MOTLEY_TESTS_CLUSTER_CLUSTER_H_
