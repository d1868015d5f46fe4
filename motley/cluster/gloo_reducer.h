#ifndef MOTLEY_CLUSTER_GLOO_REDUCER_H_
#define MOTLEY_CLUSTER_GLOO_REDUCER_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "motley/base/status.h"

namespace motley::cluster {

// How the members of a group that is being formed find each other: every member sets a value and
// waits for those of the others. Keys are already made unique for one generation.
//
// Thread safety: all calls from any thread.
class RendezvousStore {
 public:
  virtual ~RendezvousStore() = default;
  virtual base::Status Set(const std::string& key, const std::string& value) = 0;
  // Waits until all keys are set; kUnavailable when they are not after `seconds`.
  virtual base::Result<std::vector<std::string>> Wait(const std::vector<std::string>& keys,
                                                      double seconds) = 0;
};

struct GlooOptions {
  int rank = 0, size = 1;
  std::string address;  // of this member: host name or number that the others can reach
  std::shared_ptr<RendezvousStore> store;
  double form_seconds = 10.0;    // limit for the rendezvous
  double reduce_seconds = 30.0;  // limit for one collective without progress
  std::int64_t bucket_floats = std::int64_t{1} << 20;
  // So many at the end of the array become final after all others, as the sums of batch norm do:
  // they are summed last. Otherwise the first bucket would wait for them, and all others for it.
  std::int64_t late_floats = 0;
};

// Sums one flat array over the members of a group, in place, while it is still being written: from
// the end to the beginning, bucket by bucket, in the same order on every member, because the
// backward pass writes it so. Ring all-reduce: with n members each sends and receives
// 2 * (n - 1) / n times the array.
//
// The collectives run on threads of their own, because a Gloo call with a stopped peer cannot
// always be interrupted: Finish may give up on it. Then the reducer is broken for good and a new
// one is needed; the array stays alive until the abandoned thread has noticed, at most
// `reduce_seconds`. When a member fails or gives up, the others notice within about half a second;
// when its machine is lost without a word, after `reduce_seconds`.
//
// Thread safety: Announce from any thread; the rest from one.
class GlooReducer {
 public:
  // Forms the group: all members at about the same time. Fails with kUnavailable when the others do
  // not come within the limit, kCancelled soon after `cancel` (may be null) became true, and
  // kInvalidInput when `address` is not one of this machine. The rendezvous cannot be interrupted
  // either: its thread and the store may stay for another `form_seconds`.
  static base::Result<std::unique_ptr<GlooReducer>> Form(const GlooOptions& options,
                                                         const std::atomic<bool>* cancel);
  ~GlooReducer();

  // Begins to sum `array`; nothing of it is final yet. Requires that the one before was finished,
  // and that all members give the same size.
  void Begin(std::shared_ptr<std::vector<float>> array);
  // array[offset, offset + count) is final. Each element is announced exactly once.
  void Announce(std::int64_t offset, std::int64_t count);
  // Waits for the sum of the whole array, all of which is announced. kUnavailable when a member
  // failed, kCancelled soon after `cancel` (may be null) became true; broken in both cases.
  base::Status Finish(const std::atomic<bool>* cancel);

 private:
  class Impl;
  explicit GlooReducer(std::shared_ptr<Impl> impl);
  std::shared_ptr<Impl> impl_;
};

}  // namespace motley::cluster

#endif  // MOTLEY_CLUSTER_GLOO_REDUCER_H_
