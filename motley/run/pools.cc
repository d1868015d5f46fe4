#include "motley/run/pools.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "motley/base/check.h"
#include "motley/plan/shares.h"

namespace motley::run {
namespace {

// Products of one device's samples and everybody's.
__extension__ using Wide = __int128;

std::int64_t Sum(const std::vector<std::int64_t>& numbers) {
  return std::accumulate(numbers.begin(), numbers.end(), std::int64_t{0});
}

std::int64_t SizeOf(const std::vector<data::Ticket>& tickets) {
  std::int64_t size = 0;
  for (const data::Ticket& ticket : tickets) size += ticket.size();
  return size;
}

std::vector<data::Ticket> All(const Pools::Part& part) {
  std::vector<data::Ticket> all = part.public_tickets;
  all.insert(all.end(), part.private_tickets.begin(), part.private_tickets.end());
  return all;
}

// Changes portions, where that makes them least uneven, until their sum is `wanted`. Requires that
// there is so much of `own`.
void Settle(std::int64_t wanted, std::int64_t multiple, const std::vector<std::int64_t>& own,
            std::vector<std::int64_t>& portions) {
  const double part =
      static_cast<double>(wanted) / static_cast<double>(std::max<std::int64_t>(1, Sum(own)));
  for (std::int64_t missing = wanted - Sum(portions); missing != 0;
       missing = wanted - Sum(portions)) {
    const std::int64_t sign = missing > 0 ? 1 : -1;
    std::size_t best = own.size();
    double widest = 0.0;
    for (std::size_t i = 0; i < own.size(); ++i) {
      if (portions[i] == (sign > 0 ? own[i] : 0)) continue;
      const double gap = static_cast<double>(sign) *
                         (part * static_cast<double>(own[i]) - static_cast<double>(portions[i]));
      if (best == own.size() || gap > widest) best = i, widest = gap;
    }
    const std::int64_t room = sign > 0 ? own[best] - portions[best] : portions[best];
    portions[best] += sign * std::min({multiple, room, sign * missing});
  }
}

std::int64_t RoomOf(const Pools::Device& device, std::int64_t multiple) {
  return std::max(multiple, device.most / multiple * multiple);
}

// Moves what is more than a device has room for to others, in the proportions of their shares; what
// nobody with a share has room for is taken off.
void KeepToRoom(const std::vector<std::int64_t>& room, std::span<const Pools::Device> devices,
                std::int64_t multiple, std::vector<std::int64_t>& samples) {
  while (true) {
    std::int64_t excess = 0;
    std::vector<std::int64_t> weights(samples.size());
    for (std::size_t i = 0; i < samples.size(); ++i) {
      excess += std::max<std::int64_t>(0, samples[i] - room[i]);
      samples[i] = std::min(samples[i], room[i]);
      if (samples[i] < room[i]) weights[i] = devices[i].share;
    }
    if (excess == 0 || Sum(weights) == 0) return;
    const std::vector<std::int64_t> moved = plan::Apportion(excess, weights, multiple);
    for (std::size_t i = 0; i < samples.size(); ++i) samples[i] += moved[i];
  }
}

}  // namespace

Pools::Pools(data::Ledger ledger, std::int64_t public_size, std::vector<PrivatePool> pools)
    : ledger_(std::move(ledger)), public_size_(public_size), pools_(std::move(pools)) {
  std::int64_t size = public_size_;
  for (const PrivatePool& pool : pools_) size += pool.size;
  MOTLEY_CHECK(size == ledger_.size(), "{} samples in an epoch of {}", size, ledger_.size());
}

std::int64_t Pools::Part::samples() const {
  return SizeOf(public_tickets) + SizeOf(private_tickets);
}

data::Ledger::Range Pools::RangeOf(const std::string& device) const {
  std::int64_t begin = public_size_;
  for (const PrivatePool& pool : pools_) {
    if (pool.device == device) return {begin, begin + pool.size};
    begin += pool.size;
  }
  return {begin, begin};
}

std::int64_t Pools::ReachableBy(std::span<const Device> devices) const {
  std::int64_t samples = ledger_.FreeWithin(0, public_size_);
  for (const Device& device : devices) {
    const auto [begin, end] = RangeOf(device.name);
    samples += ledger_.FreeWithin(begin, end);
  }
  return samples;
}

std::vector<Pools::Part> Pools::Take(std::int64_t batch, std::int64_t multiple,
                                     std::span<const Device> devices, std::int64_t groups) {
  MOTLEY_CHECK(batch > 0 && multiple > 0 && groups > 0 && !devices.empty(),
               "{} samples for {} devices", batch, devices.size());
  const std::int64_t open = ledger_.FreeWithin(0, public_size_);
  std::vector<std::int64_t> own(devices.size());  // private ones that are left
  for (std::size_t i = 0; i < devices.size(); ++i) {
    const auto [begin, end] = RangeOf(devices[i].name);
    own[i] = ledger_.FreeWithin(begin, end);
  }
  const std::int64_t total = std::min(batch, open + Sum(own));
  if (total == 0) return std::vector<Part>(devices.size());

  // Of the epoch, and of what is left of it: what will come to these devices.
  std::int64_t all = public_size_ / groups;
  for (const Device& device : devices) {
    const auto [begin, end] = RangeOf(device.name);
    all += end - begin;
  }
  all = std::max<std::int64_t>(1, all);
  const std::int64_t coming = std::max(total, open / groups + Sum(own));
  std::vector<std::int64_t> secret(devices.size());
  for (std::size_t i = 0; i < devices.size(); ++i) {
    const auto [begin, end] = RangeOf(devices[i].name);
    // What should be left after this step, in multiples; not all devices round at the same step.
    const Wide phase = static_cast<Wide>(i) * multiple * all / std::ssize(devices);
    const Wide left =
        (static_cast<Wide>(end - begin) * (coming - total) + phase) / (all * multiple) * multiple;
    // An even part of what is left now, which is another after failures.
    const std::int64_t even = own[i] * total / (coming * multiple) * multiple;
    const auto now = own[i] - static_cast<std::int64_t>(left);
    secret[i] = std::min(own[i], std::clamp(now, even, even + multiple));
  }
  // Full batches to the end: as much of it as is not public, and no more than the batch.
  const std::int64_t wanted =
      std::clamp(Sum(secret), std::max<std::int64_t>(0, total - open), total);
  Settle(wanted, multiple, own, secret);
  std::vector<std::int64_t> room(devices.size());  // for public ones
  for (std::size_t i = 0; i < devices.size(); ++i) {
    const std::int64_t all_of_it = RoomOf(devices[i], multiple);
    secret[i] = std::min(secret[i], all_of_it);
    room[i] = all_of_it - secret[i];
  }

  std::vector<std::int64_t> weights(devices.size());
  for (std::size_t i = 0; i < devices.size(); ++i) {
    weights[i] = std::max<std::int64_t>(0, devices[i].share - secret[i]);
  }
  // Everybody has all that it should do: what is left goes by the shares, or anywhere.
  if (Sum(weights) == 0) {
    for (std::size_t i = 0; i < devices.size(); ++i) weights[i] = devices[i].share;
  }
  if (Sum(weights) == 0) std::fill(weights.begin(), weights.end(), 1);
  std::vector<std::int64_t> from_public =
      plan::Apportion(std::min(open, total - Sum(secret)), weights, multiple);
  KeepToRoom(room, devices, multiple, from_public);

  std::vector<Part> parts(devices.size());
  for (std::size_t i = 0; i < devices.size(); ++i) {
    const auto [begin, end] = RangeOf(devices[i].name);
    parts[i].private_begin = begin;
    parts[i].public_tickets = ledger_.TakeWithin(from_public[i], 0, public_size_);
    parts[i].private_tickets = ledger_.TakeWithin(secret[i], begin, end);
  }
  return parts;
}

base::Status Pools::Commit(const Part& part,
                           const std::vector<std::pair<std::int64_t, std::int64_t>>& done) {
  std::int64_t position = 0;
  for (const auto& [begin, end] : done) {
    if (begin < position || end < begin || end > part.samples()) {
      return base::InvalidInput("[{}, {}) is no part of {} samples", begin, end, part.samples());
    }
    position = end;
  }
  std::int64_t at = 0;  // of the ticket's first sample, in the part
  std::size_t next = 0;
  for (const data::Ticket& ticket : All(part)) {
    std::vector<data::Ledger::Range> ranges;
    for (; next < done.size() && done[next].first < at + ticket.size(); ++next) {
      const auto [begin, end] = done[next];
      const std::int64_t from = std::max(begin, at), to = std::min(end, at + ticket.size());
      if (from < to) ranges.emplace_back(ticket.begin + from - at, ticket.begin + to - at);
      if (end > at + ticket.size()) break;  // it goes on in the next ticket
    }
    MOTLEY_RETURN_IF_ERROR(ledger_.CommitParts(ticket, ranges));
    at += ticket.size();
  }
  return {};
}

base::Status Pools::GiveBack(const Part& part) {
  for (const data::Ticket& ticket : All(part)) {
    MOTLEY_RETURN_IF_ERROR(ledger_.GiveBack(ticket));
  }
  return {};
}

std::vector<std::pair<std::string, std::int64_t>> Pools::ForgoOf(std::span<const Device> present) {
  std::vector<std::pair<std::string, std::int64_t>> gone;
  for (const PrivatePool& pool : pools_) {
    const bool here = std::any_of(present.begin(), present.end(),
                                  [&](const Device& device) { return device.name == pool.device; });
    if (here) continue;
    const auto [begin, end] = RangeOf(pool.device);
    if (const std::int64_t count = ledger_.Forgo(begin, end); count > 0) {
      gone.emplace_back(pool.device, count);
    }
  }
  return gone;
}

void Pools::StartNextEpoch(std::vector<PrivatePool> pools) {
  MOTLEY_CHECK(ledger_.Complete(), "epoch {} is not complete", ledger_.epoch());
  pools_ = std::move(pools);
  std::int64_t size = public_size_;
  for (const PrivatePool& pool : pools_) size += pool.size;
  ledger_ = data::Ledger(ledger_.epoch() + 1, size);
}

}  // namespace motley::run
