#ifndef MOTLEY_RUN_POOLS_H_
#define MOTLEY_RUN_POOLS_H_

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "motley/base/status.h"
#include "motley/data/ledger.h"
#include "motley/plan/speed_curve.h"

namespace motley::run {

// Samples that only one device may see.
struct PrivatePool {
  std::string device;
  std::int64_t size = 0;
  std::string sha256;  // of the content: the same device may come back with other data
  bool operator==(const PrivatePool&) const = default;
};

// The samples of an epoch by where they lie: the public pool, and the private ones of some devices.
// One ledger counts them all: positions from 0 are public, then come the private pools in order.
//
// Cuts every step into what each device computes: its private samples in even portions over the
// epoch, and public ones up to its share.
//
// Thread safety: none. A copy is a forecast: what is taken from it is not taken from the original.
class Pools {
 public:
  Pools(data::Ledger ledger, std::int64_t public_size, std::vector<PrivatePool> pools);

  struct Device {
    std::string name;
    std::int64_t share = 0;            // of a full batch
    std::int64_t most = plan::kNoCap;  // that its memory holds
  };
  // What one device gets, in the order in which it computes it. Positions of the ledger.
  struct Part {
    std::vector<data::Ticket> public_tickets, private_tickets;
    std::int64_t private_begin = 0;  // where the device's pool begins in the ledger

    std::int64_t samples() const;
  };

  // The next samples for these devices, `batch` in all, or what is left that they can reach: then
  // less, and nothing at the end. Public shares are multiples of `multiple` as far as possible.
  // With several groups, these devices are one of them and will see one part of `groups` of what is
  // public. Nobody gets more than `most`, rounded down to a multiple but not to 0: the step has
  // fewer samples when the others cannot take the rest.
  std::vector<Part> Take(std::int64_t batch, std::int64_t multiple, std::span<const Device> devices,
                         std::int64_t groups = 1);
  // What is left of the epoch for these devices. A step with less than that and than the batch is
  // one that their memory has made smaller.
  std::int64_t ReachableBy(std::span<const Device> devices) const;
  // Commits the samples of a part that were done, as sorted ranges of its samples, and gives back
  // the rest. Refuses other ranges, and has then done nothing.
  base::Status Commit(const Part& part,
                      const std::vector<std::pair<std::int64_t, std::int64_t>>& done);
  base::Status GiveBack(const Part& part);

  // What is left and only devices that are not among `present` could compute: given up, so that the
  // epoch can end. Requires that nothing is out. Returns how many samples of which device.
  std::vector<std::pair<std::string, std::int64_t>> ForgoOf(std::span<const Device> present);

  // Goes on to the next epoch, with these private pools. Requires ledger().Complete().
  void StartNextEpoch(std::vector<PrivatePool> pools);

  const data::Ledger& ledger() const { return ledger_; }
  std::int64_t public_size() const { return public_size_; }
  const std::vector<PrivatePool>& pools() const { return pools_; }

 private:
  // Where the pool of a device lies; empty when it has none.
  data::Ledger::Range RangeOf(const std::string& device) const;

  data::Ledger ledger_;
  std::int64_t public_size_;
  std::vector<PrivatePool> pools_;
};

}  // namespace motley::run

#endif  // MOTLEY_RUN_POOLS_H_
