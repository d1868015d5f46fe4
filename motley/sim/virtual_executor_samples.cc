// Which samples a step needs, and getting them ready ahead of time.
#include <algorithm>
#include <utility>

#include "motley/sim/virtual_executor.h"

namespace motley::sim {

const data::Permutation& VirtualExecutor::Order(std::uint64_t seed, std::int64_t size,
                                                std::uint64_t epoch) {
  auto found = orders_.find(seed);
  if (found == orders_.end() || found->second.first != epoch) {
    found = orders_.insert_or_assign(seed, std::pair(epoch, data::Permutation(size, seed, epoch)))
                .first;
  }
  return found->second.second;
}

std::vector<data::SampleId> VirtualExecutor::IdsOf(std::size_t device,
                                                   const run::Pools::Part& part) {
  const Source& source = sources_[device];
  std::vector<data::SampleId> ids;
  for (const data::Ticket& ticket : part.public_tickets) {
    const auto some = Order(train_.seed, data_.train->size(), ticket.epoch).Ids(ticket);
    ids.insert(ids.end(), some.begin(), some.end());
  }
  for (data::Ticket ticket : part.private_tickets) {
    ticket.begin -= part.private_begin;
    ticket.end -= part.private_begin;
    const auto& secret = options_.devices[device].secret;
    for (const data::SampleId id : Order(source.seed, secret->size(), ticket.epoch).Ids(ticket)) {
      ids.push_back(source.first_id + id);
    }
  }
  return ids;
}

data::Loader& VirtualExecutor::LoaderOf(std::size_t device) {
  const auto& own = sources_[device].loader;
  return own != nullptr ? *own : *sources_.front().loader;
}

std::int64_t VirtualExecutor::SampleBytes(const Flight& flight) const {
  std::int64_t samples = 0;
  if (flight.parts.size() != flight.members.size()) {
    // One part for all, without private samples.
    for (const auto& [device, its] : flight.work) {
      if (options_.devices[device].streamed) samples += its;
    }
    return samples * data_.train->pixels_per_sample();
  }
  for (std::size_t k = 0; k < flight.members.size(); ++k) {
    if (!options_.devices[flight.members[k]].streamed) continue;
    for (const data::Ticket& ticket : flight.parts[k].public_tickets) samples += ticket.size();
  }
  return samples * data_.train->pixels_per_sample();
}

void VirtualExecutor::Prepare(int number) {
  // The flight may be of an older plan with more groups.
  if (number >= groups() || groups_[static_cast<std::size_t>(number)].batch == 0) return;
  const Group& group = groups_[static_cast<std::size_t>(number)];
  run::Pools forecast = pools_;
  const auto parts = forecast.Take(std::min(group.batch, train_.batch), options_.multiple,
                                   group.planned, static_cast<std::int64_t>(groups_.size()));
  for (std::size_t k = 0; k < parts.size(); ++k) {
    if (parts[k].samples() == 0) continue;
    prepared_.push_back({group.members[k], IdsOf(group.members[k], parts[k])});
    LoaderOf(group.members[k]).Submit(prepared_.back().ids, ledger().epoch());
  }
}

base::Result<data::Batch> VirtualExecutor::Load(std::size_t device, const run::Pools::Part& part) {
  std::vector<data::SampleId> ids = IdsOf(device, part);
  if (!prepared_.empty() && prepared_.front().device == device && prepared_.front().ids == ids) {
    prepared_.pop_front();
    return LoaderOf(device).Next();
  }
  // Something came in between: what was prepared is of no use.
  for (const Prepared& one : prepared_) (void)LoaderOf(one.device).Next();
  prepared_.clear();
  LoaderOf(device).Submit(std::move(ids), ledger().epoch());
  return LoaderOf(device).Next();
}

}  // namespace motley::sim
