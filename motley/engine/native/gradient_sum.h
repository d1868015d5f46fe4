#ifndef MOTLEY_ENGINE_NATIVE_GRADIENT_SUM_H_
#define MOTLEY_ENGINE_NATIVE_GRADIENT_SUM_H_

#include <atomic>
#include <cstdint>
#include <deque>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include "motley/engine/device.h"
#include "motley/engine/native/aligned.h"
#include "motley/engine/native/gemm.h"
#include "motley/engine/native/lanes.h"
#include "motley/engine/native/parameters.h"
#include "motley/graph/graph.h"

namespace motley::engine::native {

// The gradients of the pieces of a batch, and their sum. A lane leaves the gradient of a node's
// parameters for its piece and goes on; when a lane comes by and all pieces have left theirs, it
// sums a part of it that no other has taken, in the order of the pieces, so that the result does
// not depend on who computed what, or when. The lane that ends a node's last part announces it.
//
// Of a fully connected layer the pieces leave not a gradient but its factors, and the sum is one
// product over the whole batch: a gradient per piece would be as large as the layer, and slower to
// write and read than to compute.
class GradientSum {
 public:
  GradientSum(const graph::Graph& graph, Parameters& parameters, const Gemm& gemm);

  // Before each step, which is to be given by its request, `pieces` and `lanes` that sum them.
  void Begin(int pieces, int lanes, const StepRequest& request);

  // Where a piece leaves the gradient of each parameter; null for those that are left as factors.
  // The first piece's canonical ones are written in place.
  std::span<float* const> Targets(int piece) const {
    return targets_[static_cast<std::size_t>(piece)];
  }
  // Where all pieces leave the factors, by parameter.
  std::span<const GradientFactors> factors() const { return factors_; }
  // Samples [begin, end) will not come.
  void SkipSamples(std::int64_t begin, std::int64_t end);

  // The piece's gradient of a node is complete. `contributes` is false for a piece that had no time
  // for a single sample: what its memory holds means nothing.
  void Leave(int piece, graph::NodeId node, bool contributes);
  // Sums one part of each node that all pieces have left since the lane last came by.
  void SumSome(int lane);
  // After all pieces have left everything: sums what nobody has taken, and waits for what others
  // have.
  void Finish();
  // Called by a lane that cannot go on: all who wait in Finish stop.
  void Abandon() { unsummed_->Abandon(); }

 private:
  struct Piece {
    std::vector<AlignedFloats> memory;  // by parameter
    std::atomic<bool> contributes = false;
  };
  struct Progress {
    std::atomic<int> arrived = 0;            // pieces
    std::atomic<int> taken = 0, summed = 0;  // parts
  };

  bool Complete(graph::NodeId node) const;
  // Sums the next part of a node; false when all have been taken.
  bool SumPart(graph::NodeId node);
  void SumParameter(int index, int part);
  void SumRange(int index, std::int64_t begin, std::int64_t end);
  void Multiply(int index, int part) const;
  void Announce(graph::NodeId node);
  void AnnounceFinal(std::int64_t offset, std::int64_t count) const;

  const graph::Graph& graph_;
  Parameters& parameters_;
  const Gemm& gemm_;
  std::vector<graph::NodeId> order_;  // nodes with parameters, as the backward pass comes by
  std::deque<Piece> pieces_;
  std::vector<std::vector<float*>> targets_;       // [piece][parameter]
  std::vector<AlignedFloats> inputs_, gradients_;  // of factors, by parameter
  std::vector<GradientFactors> factors_;
  std::vector<Progress> progress_;    // by node
  std::vector<std::size_t> come_by_;  // by lane: how far in order_
  std::optional<Latch> unsummed_;     // parts of all nodes
  int piece_count_ = 0, parts_ = 0;
  const StepRequest* request_ = nullptr;
  std::mutex bucket_mutex_;
};

}  // namespace motley::engine::native

#endif  // MOTLEY_ENGINE_NATIVE_GRADIENT_SUM_H_
