#include "motley/plan/groups.h"

#include <algorithm>
#include <numeric>
#include <optional>
#include <queue>
#include <utility>

#include "motley/base/check.h"

namespace motley::plan {
namespace {

// What a group's speed depends on, so that a move can be judged without balancing anew: all members
// finish at T = (B + sum a/c) / (sum 1/c).
struct Sums {
  double speed = 0.0;  // samples per second
  double delay = 0.0;  // samples that are lost to fixed costs
  double room = 0.0;   // samples that fit
  std::int64_t members = 0;

  void Add(const Candidate& one, double sign) {
    const double speed_of_one = 1.0 / one.seconds_per_sample;
    speed += sign * speed_of_one;
    delay += sign * (one.fixed_seconds + one.communication_seconds) * speed_of_one;
    // Caps are far below 2^53 or none at all.
    room += sign * static_cast<double>(std::min<std::int64_t>(one.most, std::int64_t{1} << 40));
    members += sign > 0.0 ? 1 : -1;
  }
  // Groups that cannot hold a batch come after all that can.
  double Seconds(std::int64_t batch) const {
    constexpr double kImpossible = 1e12;
    if (members == 0) return 2.0 * kImpossible;
    const auto samples = static_cast<double>(batch);
    if (room < samples) return kImpossible * (2.0 - room / samples);
    return (samples + delay) / speed;
  }
};

class Dealer {
 public:
  Dealer(std::int64_t batch, int groups, std::span<const Candidate> candidates)
      : batch_(batch),
        candidates_(candidates),
        group_(candidates.size()),
        sums_(static_cast<std::size_t>(groups)) {}

  std::vector<int> Deal() {
    std::vector<std::size_t> order(candidates_.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::stable_sort(order.begin(), order.end(), [this](std::size_t a, std::size_t b) {
      return candidates_[a].seconds_per_sample < candidates_[b].seconds_per_sample;
    });
    // The slowest group on top, the first of equal ones.
    std::priority_queue<std::pair<double, int>> slow;
    for (int g = 0; g < static_cast<int>(sums_.size()); ++g) {
      slow.emplace(sums_[static_cast<std::size_t>(g)].Seconds(batch_), -g);
    }
    for (const std::size_t device : order) {
      group_[device] = -slow.top().second;
      slow.pop();
      Sums& sums = sums_[static_cast<std::size_t>(group_[device])];
      sums.Add(candidates_[device], 1.0);
      slow.emplace(sums.Seconds(batch_), -group_[device]);
    }
    constexpr int kMostRounds = 64;
    for (int round = 0; round < kMostRounds && Improve(); ++round) {
    }
    return std::move(group_);
  }

 private:
  // The best single move into the slowest group, or swap with it, that leaves both faster than it
  // was. False when there is none.
  bool Improve() {
    const auto slowest =
        static_cast<std::size_t>(std::max_element(sums_.begin(), sums_.end(),
                                                  [this](const Sums& a, const Sums& b) {
                                                    return a.Seconds(batch_) < b.Seconds(batch_);
                                                  }) -
                                 sums_.begin());
    const double now = sums_[slowest].Seconds(batch_);
    // As good as even, which is what dealing makes of many devices.
    constexpr double kEven = 1.002;
    if (now <= kEven * EvenSeconds()) return false;
    double best = now * (1.0 - 1e-9);
    std::size_t taken = candidates_.size();
    std::optional<std::size_t> given;
    for (std::size_t in = 0; in < candidates_.size(); ++in) {
      const auto other = static_cast<std::size_t>(group_[in]);
      if (other == slowest) continue;
      const auto consider = [&](std::optional<std::size_t> out) {
        Sums mine = sums_[slowest], theirs = sums_[other];
        mine.Add(candidates_[in], 1.0);
        theirs.Add(candidates_[in], -1.0);
        if (out) mine.Add(candidates_[*out], -1.0), theirs.Add(candidates_[*out], 1.0);
        const double after = std::max(mine.Seconds(batch_), theirs.Seconds(batch_));
        if (after < best) best = after, taken = in, given = out;
      };
      consider(std::nullopt);
      for (std::size_t out = 0; out < candidates_.size(); ++out) {
        if (static_cast<std::size_t>(group_[out]) == slowest) consider(out);
      }
    }
    if (taken == candidates_.size()) return false;
    const int other = group_[taken];
    Move(taken, static_cast<int>(slowest));
    if (given) Move(*given, other);
    return true;
  }

  // If speed could be cut anywhere.
  double EvenSeconds() const {
    Sums all;
    for (const Candidate& one : candidates_) all.Add(one, 1.0);
    const double batches = static_cast<double>(sums_.size()) * static_cast<double>(batch_);
    return (batches + all.delay) / all.speed;
  }

  void Move(std::size_t device, int to) {
    sums_[static_cast<std::size_t>(group_[device])].Add(candidates_[device], -1.0);
    sums_[static_cast<std::size_t>(to)].Add(candidates_[device], 1.0);
    group_[device] = to;
  }

  const std::int64_t batch_;
  const std::span<const Candidate> candidates_;
  std::vector<int> group_;
  std::vector<Sums> sums_;
};

}  // namespace

base::Result<Grouped> BalanceGroups(std::int64_t batch, std::int64_t multiple,
                                    std::vector<int> group, std::span<const Candidate> candidates) {
  MOTLEY_CHECK(group.size() == candidates.size() && !group.empty(), "{} groups for {} devices",
               group.size(), candidates.size());
  Grouped grouped;
  grouped.shares.resize(candidates.size());
  std::vector<std::vector<std::size_t>> members(
      static_cast<std::size_t>(*std::max_element(group.begin(), group.end())) + 1);
  for (std::size_t i = 0; i < group.size(); ++i) {
    members[static_cast<std::size_t>(group[i])].push_back(i);
  }
  for (const std::vector<std::size_t>& some : members) {
    std::vector<Candidate> of_group;
    for (const std::size_t i : some) of_group.push_back(candidates[i]);
    MOTLEY_ASSIGN_OR_RETURN(const Balanced balanced, Balance(batch, multiple, of_group));
    for (std::size_t k = 0; k < some.size(); ++k) grouped.shares[some[k]] = balanced.shares[k];
    grouped.seconds.push_back(balanced.seconds);
    grouped.totals.push_back(balanced.total);
  }
  grouped.group = std::move(group);
  return grouped;
}

base::Result<Grouped> FormGroups(std::int64_t batch, std::int64_t multiple, int groups,
                                 std::span<const Candidate> candidates) {
  if (groups < 1 || static_cast<std::size_t>(groups) > candidates.size()) {
    return base::InvalidInput("{} groups of {} devices", groups, candidates.size())
        .WithFix("at least one device for every group");
  }
  const auto impossible = [](const Candidate& one) { return !(one.seconds_per_sample > 0.0); };
  if (std::any_of(candidates.begin(), candidates.end(), impossible)) {
    return base::InvalidInput("a device that needs no time for a sample");
  }
  return BalanceGroups(batch, multiple, Dealer(batch, groups, candidates).Deal(), candidates);
}

}  // namespace motley::plan
