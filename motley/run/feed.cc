#include "motley/run/feed.h"

#include <utility>

#include "motley/base/check.h"

namespace motley::run {
namespace {

// Enough to hide the jitter of decoding behind the device; more would only cost memory.
constexpr std::int64_t kAhead = 4;

}  // namespace

Feed::Feed(std::shared_ptr<const data::Dataset> dataset, const data::Transform& transform,
           Options options, data::Ledger ledger)
    : options_(options),
      current_(MakeEpoch(std::move(ledger))),
      loader_(std::move(dataset), transform,
              {.threads = options.loader_threads, .seed = options.seed}) {
  Fill();
}

Feed::Epoch Feed::MakeEpoch(data::Ledger ledger) const {
  data::Permutation order(ledger.size(), options_.seed, ledger.epoch());
  return {std::move(ledger), std::move(order)};
}

std::optional<data::Ticket> Feed::TakeAhead() {
  if (!next_) {
    if (auto ticket = current_.ledger.Take(options_.batch)) return ticket;
    const std::uint64_t following = current_.ledger.epoch() + 1;
    if (options_.end_epoch && following >= *options_.end_epoch) return std::nullopt;
    next_ = MakeEpoch(data::Ledger(following, current_.ledger.size()));
  }
  return next_->ledger.Take(options_.batch);
}

void Feed::Fill() {
  while (loader_.pending() < kAhead) {
    const auto ticket = TakeAhead();
    if (!ticket) return;
    const Epoch& epoch = next_ ? *next_ : current_;
    loader_.Submit(epoch.order.Ids(*ticket), ticket->epoch);
    submitted_.push_back(*ticket);
  }
}

base::Result<Feed::Item> Feed::Next() {
  Fill();
  MOTLEY_CHECK(!submitted_.empty() && submitted_.front().epoch == current_.ledger.epoch(),
               "epoch {} has no batch left", current_.ledger.epoch());
  MOTLEY_ASSIGN_OR_RETURN(data::Batch batch, loader_.Next());
  const data::Ticket ticket = submitted_.front();
  submitted_.pop_front();
  Fill();
  return Item{ticket, std::move(batch)};
}

void Feed::StartNextEpoch() {
  MOTLEY_CHECK(current_.ledger.Complete(), "epoch {} is not complete", current_.ledger.epoch());
  if (!next_) next_ = MakeEpoch(data::Ledger(current_.ledger.epoch() + 1, current_.ledger.size()));
  current_ = std::move(*next_);
  next_.reset();
}

}  // namespace motley::run
