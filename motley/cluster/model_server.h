#ifndef MOTLEY_CLUSTER_MODEL_SERVER_H_
#define MOTLEY_CLUSTER_MODEL_SERVER_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <shared_mutex>
#include <span>
#include <string>
#include <vector>

#include "motley/base/status.h"
#include "motley/cluster/parts.h"
#include "motley/graph/graph.h"
#include "motley/optim/sgd.h"
#include "motley/plan/noise.h"

namespace motley::cluster {

// One attempt at one step. A later generation, then a later step, supersedes an earlier one.
struct StepKey {
  std::uint64_t generation = 0;
  std::int64_t step = 0;
  auto operator<=>(const StepKey&) const = default;
};

// Weights, then running statistics.
using ModelArray = std::shared_ptr<const std::vector<float>>;

// Holds the model and makes steps of it: sums the gradients of each group of contributors part by
// part, and of the sum the next model, which stands beside the present one until the step is
// committed: nothing is ever half done, and who reads the model reads one that was committed.
//
// A group that is alone gets each part of its next model as soon as that part of the sum is
// complete, while others are still on their way. Of several groups each one's update is made of the
// model that is there when its turn comes, whichever it was that the group had read.
//
// Contributions are summed in the order of the contributors, whoever comes first: the same shares
// give the same bits.
//
// A model may be cut into ranges (Parts) that are served by other processes: by servers like this
// one, of their range alone. They sum, and pass every part of the sum on (Step::on_sum) to the one
// server that has the whole model (AddSum), which makes the same update once more: nothing is lost
// with a process that served a range.
//
// Thread safety: Add from any thread; the rest from one.
class ModelServer {
 public:
  struct Step {
    struct Contributor {
      std::string name;
      std::int64_t samples = 0;  // that it was told to do; it may do less
    };
    StepKey key;
    std::vector<Contributor> contributors;
    std::int64_t samples = 0;  // of all of them
    optim::SgdOptions sgd;
    // Part `index` of the next model is final; given: the group is alone. Called from the threads
    // that add.
    std::function<void(int index, const ModelArray& next)> on_part;
    std::function<void()> on_complete;  // from these threads, too
    // By range: who sums it; empty, or none at all: the contributors send theirs here.
    std::vector<std::string> hosts = {};
    // A part of the sum is complete; from these threads, too.
    std::function<void(int index, std::span<const float> sum,
                       const std::vector<plan::GradientNorm>& of)>
        on_sum = {};
  };

  // The place of somebody among those who contribute; none: it has no share.
  static std::optional<std::size_t> PlaceOf(const std::string& name,
                                            const std::vector<Step::Contributor>& contributors);

  // The graph outlives the server.
  ModelServer(const graph::Graph& graph, std::vector<float> weights, std::vector<float> velocity,
              const std::vector<float>& buffers, int update_threads = 1, int ranges = 1);
  // Of one range: parameters only.
  ModelServer(std::vector<float> weights, std::vector<float> velocity);
  ~ModelServer();

  const Parts& parts() const { return parts_; }
  ModelArray model() const { return model_; }
  std::span<const float> weights() const;
  std::span<const float> buffers() const;
  const std::vector<float>& velocity() const { return velocity_; }

  // Opens a step of this group. Requires that it has none, and that nobody contributes to two; and,
  // with on_part, that no other group has one.
  void Begin(int group, Step step);
  // One part of the gradient sum of one contributor, over `samples` samples: the same number in all
  // of its parts. When it did less than it was told, the learning rate of this step falls in
  // proportion, as it would for a smaller batch. False for a step that is over, as is normal
  // after a failure. kInvalidInput, which names what is wrong, for what this contributor may not
  // send: no such part, a part twice, a number that is not finite.
  base::Result<bool> Add(const std::string& contributor, const StepKey& key, std::int64_t offset,
                         std::int64_t samples, std::string floats);
  // One part of the sum of a whole range, made by its host of what the contributors sent there:
  // their norms in their order. As Add otherwise.
  base::Result<bool> AddSum(const std::string& host, const StepKey& key, std::int64_t offset,
                            const std::vector<plan::GradientNorm>& of, std::string floats);
  // Who has sent another number of samples to a host than here; empty: nobody. Requires
  // Complete(group).
  std::string Contradicting(int group) const;
  // The hosts whose sums are not here yet.
  std::vector<std::string> Owing(int group) const;
  // How many samples its gradient was over, as far as it has sent some; 0 otherwise.
  std::int64_t SamplesOf(const std::string& contributor) const;
  // Whether it has sent every part that is to be sent here; true of somebody who has no share.
  bool HasAll(const std::string& contributor) const;
  // Whether every part of the sum is there.
  bool Complete(int group) const;
  // The squares of the norms of what the contributors have sent, and of their sum. Requires
  // Complete(group).
  struct Norms {
    std::vector<plan::GradientNorm> contributors;
    double total_squared = 0.0;
  };
  Norms norms(int group) const;
  // The gradient sum, of the parameters. Requires Complete(group).
  std::span<const float> sum(int group) const;

  // Makes the next model ready, and says what of it is not finite: empty when all is well. Requires
  // Complete(group).
  std::string Prepare(int group);
  // The next model becomes the model. Requires a Prepare of this group just before.
  void Commit(int group);
  // Forgets the open step of this group, if it has one.
  void Discard(int group);

  // A new state from elsewhere. Requires that no step is open.
  void Replace(std::vector<float> model, std::vector<float> velocity);

 private:
  struct Open;
  // Arrays that nobody reads any more, to be written again.
  struct Spares {
    std::mutex mutex;
    std::vector<std::unique_ptr<std::vector<float>>> arrays;
  };
  std::shared_ptr<std::vector<float>> TakeSpare();
  // Require open_mutex_.
  Open* StepOf(const std::string& contributor, std::size_t& index) const;
  Open& StepOf(int group) const;

  // The floats of a part, checked but for who sends them.
  base::Result<int> Check(std::int64_t offset, const std::string& floats) const;
  // Who sums this part; empty: it is summed here.
  const std::string& HostOf(const Open& open, int index) const;
  void Sum(Open& open, int index, std::size_t contributor, std::string floats);
  void Finish(Open& open, int index);
  void UpdatePart(Open& open, std::size_t offset, std::size_t size, std::int64_t samples,
                  int threads);
  void UpdateStatistics(Open& open, std::int64_t samples);
  void NotePart(Open& open, int index);

  const graph::Graph* const graph_;  // null: there are no buffers
  const Parts parts_;
  const std::size_t parameters_;
  const int update_threads_;
  const std::shared_ptr<Spares> spares_ = std::make_shared<Spares>();
  ModelArray model_;
  std::vector<float> velocity_;
  // Of the group that is alone, or whose turn it is.
  std::shared_ptr<std::vector<float>> next_;
  std::vector<float> next_velocity_;

  // Shared by those who add, exclusive for opening and closing steps.
  mutable std::shared_mutex open_mutex_;
  std::map<int, std::unique_ptr<Open>> open_;  // by group; kept when a step is over
  std::uint64_t last_generation_ = 0;          // of any step
};

}  // namespace motley::cluster

#endif  // MOTLEY_CLUSTER_MODEL_SERVER_H_
