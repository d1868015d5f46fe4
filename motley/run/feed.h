#ifndef MOTLEY_RUN_FEED_H_
#define MOTLEY_RUN_FEED_H_

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <vector>

#include "motley/base/status.h"
#include "motley/data/batch.h"
#include "motley/data/dataset.h"
#include "motley/data/ledger.h"
#include "motley/data/loader.h"
#include "motley/data/transform.h"

namespace motley::run {

// Batches of the training set in the order of the ledger, prepared a few ahead of the device, also
// across the end of an epoch. The order depends on (seed, epoch, what is committed) only, so that a
// resume goes on with the very batches that an uninterrupted run would have had.
//
// Thread safety: none.
class Feed {
 public:
  struct Options {
    std::int64_t batch = 0;
    std::uint64_t seed = 0;
    int loader_threads = 1;
    // Epochs from this one on are not prepared.
    std::optional<std::uint64_t> end_epoch;
  };
  struct Item {
    data::Ticket ticket;
    data::Batch batch;
  };

  // Requires transform.Check(*dataset), and a ledger of dataset->size().
  Feed(std::shared_ptr<const data::Dataset> dataset, const data::Transform& transform,
       Options options, data::Ledger ledger);

  // The next batch of the current epoch; its last one may be smaller. Waits until it is ready.
  // Requires that not everything is committed or out.
  base::Result<Item> Next();
  base::Status Commit(const data::Ticket& ticket) { return current_.ledger.Commit(ticket); }

  const data::Ledger& ledger() const { return current_.ledger; }
  // Goes on to the next epoch. Requires ledger().Complete().
  void StartNextEpoch();

 private:
  struct Epoch {
    data::Ledger ledger;
    data::Permutation order;
  };
  Epoch MakeEpoch(data::Ledger ledger) const;
  // Takes and submits tickets until enough are on their way.
  void Fill();
  std::optional<data::Ticket> TakeAhead();

  const Options options_;
  Epoch current_;
  std::optional<Epoch> next_;           // once the current one has nothing left to hand out
  std::deque<data::Ticket> submitted_;  // in the order of the loader
  data::Loader loader_;
};

}  // namespace motley::run

#endif  // MOTLEY_RUN_FEED_H_
