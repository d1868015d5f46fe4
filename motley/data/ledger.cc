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

std::vector<Ticket> Ledger::TakeWithin(std::int64_t count, std::int64_t begin, std::int64_t end) {
  std::vector<Ticket> tickets;
  auto at = free_.lower_bound(begin);
  // The one before may reach into it.
  if (at != free_.begin() && std::prev(at)->second > begin) --at;
  while (count > 0 && at != free_.end() && at->first < end) {
    const auto [free_begin, free_end] = *at;
    const std::int64_t from = std::max(free_begin, begin);
    const std::int64_t to = std::min({free_end, end, from + count});
    at = free_.erase(at);
    if (free_begin < from) free_.emplace_hint(at, free_begin, from);
    if (to < free_end) at = free_.emplace_hint(at, to, free_end);
    out_.emplace(from, to);
    tickets.push_back({.epoch = epoch_, .begin = from, .end = to});
    count -= to - from;
  }
  return tickets;
}

std::int64_t Ledger::FreeWithin(std::int64_t begin, std::int64_t end) const {
  std::int64_t count = 0;
  for (const auto& [free_begin, free_end] : free_) {
    count += std::max<std::int64_t>(0, std::min(free_end, end) - std::max(free_begin, begin));
  }
  return count;
}

base::Status Ledger::CommitParts(const Ticket& ticket, const std::vector<Range>& done) {
  std::int64_t position = ticket.begin;
  for (const auto& [begin, end] : done) {
    if (begin < position || end <= begin || end > ticket.end) {
      return base::InvalidInput("[{}, {}) is no part of ticket [{}, {})", begin, end, ticket.begin,
                                ticket.end);
    }
    position = end;
  }
  MOTLEY_RETURN_IF_ERROR(TakeBack(out_, epoch_, ticket));
  position = ticket.begin;
  for (const auto& [begin, end] : done) {
    if (begin > position) AddMerged(free_, position, begin);
    AddMerged(committed_, begin, end);
    committed_count_ += end - begin;
    position = end;
  }
  if (position < ticket.end) AddMerged(free_, position, ticket.end);
  return {};
}

std::int64_t Ledger::Forgo(std::int64_t begin, std::int64_t end) {
  std::int64_t count = 0;
  for (const Ticket& ticket : TakeWithin(end - begin, begin, end)) {
    out_.erase(ticket.begin);
    count += ticket.size();
  }
  forgone_ += count;
  return count;
}

std::vector<Ledger::Range> Ledger::CommittedRanges() const {
  return {committed_.begin(), committed_.end()};
}

}  // namespace motley::data
