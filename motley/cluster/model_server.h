#ifndef MOTLEY_CLUSTER_MODEL_SERVER_H_
#define MOTLEY_CLUSTER_MODEL_SERVER_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
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

// Holds the model; sums the gradients of a step part by part, and makes of each part of the sum at
// once the part of the next model, which can be sent while other parts are still on their way. The
// next model stands beside the present one until the step is committed: nothing is ever half done.
//
// Contributions are summed in the order of the contributors, whoever comes first: the same shares
// give the same bits.
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
    // Part `index` of the next model is final. Called from the threads that add.
    std::function<void(int index, const ModelArray& next)> on_part;
    std::function<void()> on_complete;
  };

  // The graph outlives the server.
  ModelServer(const graph::Graph& graph, std::vector<float> weights, std::vector<float> velocity,
              const std::vector<float>& buffers);

  const Parts& parts() const { return parts_; }
  ModelArray model() const { return model_; }
  std::span<const float> weights() const;
  std::span<const float> buffers() const;
  const std::vector<float>& velocity() const { return velocity_; }

  // Requires that no step is open.
  void Begin(Step step);
  // One part of the gradient sum of one contributor, over `samples` samples: the same number in all
  // of its parts. When it did less than it was told, the learning rate of this step falls in
  // proportion, as it would for a smaller batch. False for a step that is over, as is normal
  // after a failure. kInvalidInput, which names what is wrong, for what this contributor may not
  // send: no such part, a part twice, a number that is not finite.
  base::Result<bool> Add(const std::string& contributor, const StepKey& key, std::int64_t offset,
                         std::int64_t samples, std::string floats);
  // The squares of the norms of what the contributors have sent, and of their sum. Requires
  // Complete().
  struct Norms {
    std::vector<plan::GradientNorm> contributors;
    double total_squared = 0.0;
  };
  Norms norms() const;
  // How many samples its gradient was over, as far as it has sent some; 0 otherwise.
  std::int64_t SamplesOf(const std::string& contributor) const;
  // Whether every part of the next model is final.
  bool Complete() const { return final_parts_ == parts_.count(); }
  // What of the next model is not finite; empty when all is well. Requires Complete().
  std::string not_finite() const;

  // The next model becomes the model. Requires Complete().
  void Commit();
  // Forgets the open step, if there is one.
  void Discard();

  // A new state from elsewhere. Requires that no step is open.
  void Replace(std::vector<float> model, std::vector<float> velocity);

 private:
  // Arrays that nobody reads any more, to be written again.
  struct Spares {
    std::mutex mutex;
    std::vector<std::unique_ptr<std::vector<float>>> arrays;
  };
  std::shared_ptr<std::vector<float>> TakeSpare();

  struct PartSum {
    std::mutex mutex;
    std::size_t summed = 0;       // contributors
    std::int64_t samples = 0;     // of all who are here
    std::vector<double> squared;  // by contributor
    double total_squared = 0.0;
    std::vector<std::string> waiting;  // of contributors whose turn has not come
    std::vector<bool> seen;
  };
  void Sum(int index, PartSum& part, std::size_t contributor, std::string floats);
  void Finish(int index);
  void FinishBuffers(std::int64_t samples);
  void NotePart(int index);
  void NoteNotFinite(const std::string& what);

  const graph::Graph& graph_;
  const Parts parts_;
  const std::size_t parameters_;
  const std::shared_ptr<Spares> spares_ = std::make_shared<Spares>();
  ModelArray model_;
  std::vector<float> velocity_;

  // Shared by those who add, exclusive for opening and closing a step.
  mutable std::shared_mutex open_mutex_;
  bool open_ = false;
  Step step_;
  std::vector<std::unique_ptr<std::atomic<std::int64_t>>> done_;  // by contributor; -1: not said
  std::shared_ptr<std::vector<float>> next_;
  std::vector<float> next_velocity_, sum_;
  std::vector<std::unique_ptr<PartSum>> sums_;
  std::atomic<int> final_parts_{0}, buffer_parts_left_{0};
  mutable std::mutex not_finite_mutex_;
  std::string not_finite_;
};

}  // namespace motley::cluster

#endif  // MOTLEY_CLUSTER_MODEL_SERVER_H_
