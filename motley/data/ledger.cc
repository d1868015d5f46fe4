#include "motley/data/ledger.h"

#include <algorithm>
#include <iterator>
#include <numeric>

#include "motley/base/check.h"
#include "motley/base/rng.h"

namespace motley::data {
namespace {

using RangeMap = std::map<std::int64_t, std::int64_t>;

// Adds [begin, end) and joins it with the neighbours it touches. Requires that it overlaps none.
void AddMerged(RangeMap& ranges, std::int64_t begin, std::int64_t end) {
  auto next = ranges.lower_bound(begin);
  if (next != ranges.end() && next->first == end) {
    end = next->second;
    next = ranges.erase(next);
  }
  if (next != ranges.begin() && std::prev(next)->second == begin) {
    std::prev(next)->second = end;
  } else {
    ranges.emplace_hint(next, begin, end);
  }
}

// Removes exactly the ticket from what is out; the failure says what was asked for.
base::Status TakeBack(RangeMap& out, std::uint64_t epoch, const Ticket& ticket) {
  if (ticket.epoch != epoch) {
    return base::InvalidInput("ticket [{}, {}) is of epoch {}, the ledger is at epoch {}",
                              ticket.begin, ticket.end, ticket.epoch, epoch);
  }
  const auto found = out.find(ticket.begin);
  if (found == out.end() || found->second != ticket.end) {
    return base::InvalidInput("ticket [{}, {}) of epoch {} is not out", ticket.begin, ticket.end,
                              ticket.epoch);
  }
  out.erase(found);
  return {};
}

}  // namespace

Permutation::Permutation(std::int64_t size, std::uint64_t seed, std::uint64_t epoch)
    : epoch_(epoch) {
  MOTLEY_CHECK(size >= 0, "an epoch of {} samples", size);
  order_.resize(static_cast<std::size_t>(size));
  std::iota(order_.begin(), order_.end(), SampleId{0});
  base::Rng rng(base::Key({seed, epoch}));
  for (std::size_t left = order_.size(); left > 1; --left) {
    std::swap(order_[left - 1], order_[rng.Below(left)]);
  }
}

std::vector<SampleId> Permutation::Ids(const Ticket& ticket) const {
  MOTLEY_CHECK(ticket.epoch == epoch_, "ticket of epoch {} read in epoch {}", ticket.epoch, epoch_);
  MOTLEY_CHECK(0 <= ticket.begin && ticket.begin <= ticket.end &&
                   ticket.end <= static_cast<std::int64_t>(order_.size()),
               "ticket [{}, {}) outside an epoch of {}", ticket.begin, ticket.end, order_.size());
  return {order_.begin() + ticket.begin, order_.begin() + ticket.end};
}

Ledger::Ledger(std::uint64_t epoch, std::int64_t size) : epoch_(epoch), size_(size) {
  MOTLEY_CHECK(size >= 0, "an epoch of {} samples", size);
  if (size > 0) free_.emplace(0, size);
}

base::Result<Ledger> Ledger::Restore(std::uint64_t epoch, std::int64_t size,
                                     const std::vector<Range>& committed) {
  if (size < 0) return base::InvalidInput("ledger of epoch {} has size {}", epoch, size);
  Ledger ledger(epoch, size);
  ledger.free_.clear();
  std::int64_t position = 0;
  for (const auto& [begin, end] : committed) {
    if (begin < position || end <= begin || end > size) {
      return base::InvalidInput(
          "ledger of epoch {}: committed range [{}, {}) is empty, out of order, overlaps the one "
          "before it or lies outside [0, {})",
          epoch, begin, end, size);
    }
    if (begin > position) ledger.free_.emplace(position, begin);
    AddMerged(ledger.committed_, begin, end);
    ledger.committed_count_ += end - begin;
    position = end;
  }
  if (position < size) ledger.free_.emplace(position, size);
  return ledger;
}

std::optional<Ticket> Ledger::Take(std::int64_t count) {
  MOTLEY_CHECK(count > 0, "a ticket for {} samples", count);
  if (free_.empty()) return std::nullopt;
  const auto [begin, end] = *free_.begin();
  free_.erase(free_.begin());
  const std::int64_t taken = std::min(count, end - begin);
  if (begin + taken < end) free_.emplace(begin + taken, end);
  out_.emplace(begin, begin + taken);
  return Ticket{.epoch = epoch_, .begin = begin, .end = begin + taken};
}

base::Status Ledger::Commit(const Ticket& ticket) {
  MOTLEY_RETURN_IF_ERROR(TakeBack(out_, epoch_, ticket));
  AddMerged(committed_, ticket.begin, ticket.end);
  committed_count_ += ticket.size();
  return {};
}

base::Status Ledger::GiveBack(const Ticket& ticket) {
  MOTLEY_RETURN_IF_ERROR(TakeBack(out_, epoch_, ticket));
  AddMerged(free_, ticket.begin, ticket.end);
  return {};
}

std::vector<Ledger::Range> Ledger::CommittedRanges() const {
  return {committed_.begin(), committed_.end()};
}

}  // namespace motley::data
