#ifndef MOTLEY_DATA_LEDGER_H_
#define MOTLEY_DATA_LEDGER_H_

#include <cstdint>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "motley/base/status.h"
#include "motley/data/batch.h"

namespace motley::data {

// A range of positions [begin, end) in the permutation of one epoch.
struct Ticket {
  std::uint64_t epoch = 0;
  std::int64_t begin = 0, end = 0;
  std::int64_t size() const { return end - begin; }
  bool operator==(const Ticket&) const = default;
};

// The order of an epoch: a permutation of [0, size) keyed by (seed, epoch). Pure: the same on
// every machine.
class Permutation {
 public:
  Permutation(std::int64_t size, std::uint64_t seed, std::uint64_t epoch);
  std::vector<SampleId> Ids(const Ticket& ticket) const;  // requires the ticket to fit

 private:
  std::uint64_t epoch_;
  std::vector<SampleId> order_;
};

// Keeps account of one epoch: every position is handed out, then committed, exactly once, whatever
// happens in between. A ticket that was handed out and not committed can be given back and is
// handed out again; a restart forgets all tickets that were not committed.
//
// Thread safety: none; the owner of the job keeps it.
class Ledger {
 public:
  using Range = std::pair<std::int64_t, std::int64_t>;  // [first, second)

  Ledger(std::uint64_t epoch, std::int64_t size);
  // From a checkpoint: refuses ranges that overlap, are empty, unsorted or outside the epoch.
  static base::Result<Ledger> Restore(std::uint64_t epoch, std::int64_t size,
                                      const std::vector<Range>& committed);

  // The lowest positions that nobody has: contiguous, at most `count`. None when all are out.
  std::optional<Ticket> Take(std::int64_t count);
  // The lowest `count` positions in [begin, end) that nobody has, or as many as there are.
  std::vector<Ticket> TakeWithin(std::int64_t count, std::int64_t begin, std::int64_t end);
  std::int64_t FreeWithin(std::int64_t begin, std::int64_t end) const;
  // Fails if the ticket is not out exactly as it was taken, or is of another epoch.
  base::Status Commit(const Ticket& ticket);
  base::Status GiveBack(const Ticket& ticket);
  // Commits what was done of a ticket, as sorted ranges of positions inside of it, and gives the
  // rest back.
  base::Status CommitParts(const Ticket& ticket, const std::vector<Range>& done);
  // Positions that nobody will be able to compute: those of [begin, end) that are free now. They
  // stay uncommitted, and the epoch is complete without them. Returns how many there are.
  std::int64_t Forgo(std::int64_t begin, std::int64_t end);

  std::uint64_t epoch() const { return epoch_; }
  std::int64_t size() const { return size_; }
  std::int64_t committed() const { return committed_count_; }
  std::int64_t forgone() const { return forgone_; }
  bool Complete() const { return committed_count_ + forgone_ == size_; }
  // Sorted, merged.
  std::vector<Range> CommittedRanges() const;

 private:
  std::uint64_t epoch_;
  std::int64_t size_;
  std::int64_t committed_count_ = 0, forgone_ = 0;
  std::map<std::int64_t, std::int64_t> free_;       // begin -> end
  std::map<std::int64_t, std::int64_t> out_;        // begin -> end
  std::map<std::int64_t, std::int64_t> committed_;  // begin -> end
};

}  // namespace motley::data

#endif  // MOTLEY_DATA_LEDGER_H_
