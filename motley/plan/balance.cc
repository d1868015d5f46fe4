#include "motley/plan/balance.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>
#include <optional>

#include "motley/base/check.h"

namespace motley::plan {
namespace {

// Far above any batch, and low enough that sums over all devices stay exact.
constexpr std::int64_t kLargestBatch = std::int64_t{1} << 40;

// A candidate counted in units of `multiple` samples, on top of `extra` samples that it takes
// anyway (the rest of the batch, or 0).
struct Member {
  const Candidate* candidate;
  std::int64_t multiple, extra;
  std::int64_t low, high;  // units; low > high: it cannot be served

  std::int64_t Samples(std::int64_t units) const { return units * multiple + extra; }
  // The most units within `seconds`; -1 when it would not even finish the extra samples.
  std::int64_t Within(double seconds) const {
    const std::int64_t samples = SamplesWithin(*candidate, seconds);
    return samples < extra ? -1 : std::min(high, (samples - extra) / multiple);
  }
};
using Members = std::vector<Member>;

Member MakeMember(const Candidate& candidate, std::int64_t units, std::int64_t multiple,
                  std::int64_t extra) {
  const std::int64_t missing = std::max<std::int64_t>(candidate.least - extra, 0);
  return {
      .candidate = &candidate,
      .multiple = multiple,
      .extra = extra,
      .low = missing / multiple + (missing % multiple > 0 ? 1 : 0),
      .high = candidate.most < extra ? -1 : std::min(units, (candidate.most - extra) / multiple)};
}

Members MakeMembers(std::span<const Candidate> candidates, std::int64_t units,
                    std::int64_t multiple, std::int64_t extra) {
  Members members;
  for (const Candidate& each : candidates) {
    members.push_back(MakeMember(each, units, multiple, extra));
  }
  return members;
}

std::int64_t SumOfLow(const Members& members) {
  std::int64_t sum = 0;
  for (const Member& each : members) sum += each.low;
  return sum;
}

std::int64_t SumOfHigh(const Members& members) {
  std::int64_t sum = 0;
  for (const Member& each : members) sum += each.high;
  return sum;
}

double LatestFinish(const Members& members) {
  double latest = 0.0;
  for (const Member& each : members) {
    if (each.high < 0) continue;
    latest = std::max(latest, FinishTime(*each.candidate, each.Samples(each.high)));
  }
  return latest;
}

// The smallest double in [0, upper] for which `enough` holds, which it must for `upper` and then
// for everything in between. Doubles that are not negative are ordered like their bits, so this is
// exact and takes at most 63 calls: the time found is some device's finish time to the last bit.
template <typename Enough>
double SmallestTime(double upper, const Enough& enough) {
  std::uint64_t low = 0, high = std::bit_cast<std::uint64_t>(upper);
  while (low < high) {
    const std::uint64_t middle = low + (high - low) / 2;
    if (enough(std::bit_cast<double>(middle))) {
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  return std::bit_cast<double>(high);
}

// The smallest time within which members do `units` units, of which `within` says how many a member
// does. The same as SmallestTime finds, in a few looks at all members instead of 63: once nobody
// does more than one unit between a time that is too short and one that is enough, the level is
// among the ends of these units.
template <typename Within>
double LevelTime(std::int64_t units, const Members& members, const Within& within) {
  std::vector<std::int64_t> few, many, some(members.size());
  std::int64_t sum_of_few = 0;
  double speed = 0.0, delay = 0.0;  // in units, without any bounds
  for (const Member& each : members) {
    few.push_back(within(each, 0.0));
    sum_of_few += few.back();
    many.push_back(each.high);
    const double one = each.candidate->seconds_per_sample * static_cast<double>(each.multiple);
    speed += 1.0 / one;
    delay += (each.candidate->fixed_seconds + each.candidate->communication_seconds) / one;
  }
  if (sum_of_few >= units) return 0.0;
  std::uint64_t low = 1, high = std::bit_cast<std::uint64_t>(LatestFinish(members));
  const double guess = (static_cast<double>(units) + delay) / speed;
  const std::array<double, 3> guesses = {guess, 0.5 * guess, 2.0 * guess};
  const auto* next = guesses.begin();
  const auto one_more = [](std::int64_t a, std::int64_t b) { return b <= a + 1; };
  while (low < high && !std::equal(few.begin(), few.end(), many.begin(), one_more)) {
    std::uint64_t middle = low + (high - low) / 2;
    if (next != guesses.end()) {
      const auto bits = std::bit_cast<std::uint64_t>(*next++);
      if (bits < low || bits >= high) continue;
      middle = bits;
    }
    std::int64_t sum = 0;
    for (std::size_t i = 0; i < members.size(); ++i) {
      sum += some[i] = within(members[i], std::bit_cast<double>(middle));
    }
    if (sum >= units) {
      high = middle;
      many.swap(some);
    } else {
      low = middle + 1;
      few.swap(some);
      sum_of_few = sum;
    }
  }
  if (low == high) return std::bit_cast<double>(high);
  std::vector<double> ends;
  for (std::size_t i = 0; i < members.size(); ++i) {
    if (many[i] == few[i]) continue;
    ends.push_back(FinishTime(*members[i].candidate, members[i].Samples(many[i])));
  }
  const auto last = ends.begin() + static_cast<std::ptrdiff_t>(units - sum_of_few - 1);
  std::nth_element(ends.begin(), last, ends.end());
  return *last;
}

// Who should take the rest of the batch on top of whole units; none when nobody can.
class RestTaker {
 public:
  RestTaker(std::int64_t units, const Members& plain, const Members& with_rest)
      : units_(units), plain_(plain), with_rest_(with_rest), sum_of_low_(SumOfLow(plain)) {}

  std::optional<std::size_t> Find() const {
    const double upper = std::max(LatestFinish(plain_), LatestFinish(with_rest_));
    if (!Within(upper).has_value()) return std::nullopt;
    return Within(SmallestTime(upper, [&](double seconds) { return Within(seconds).has_value(); }));
  }

 private:
  // Who could take it so that all units are done within `seconds`. The rest is less than a unit,
  // so that taking it costs a device one unit or none.
  std::optional<std::size_t> Within(double seconds) const {
    std::optional<std::size_t> late;  // cannot do its least without the rest: must be the one
    std::int64_t sum = 0;
    for (std::size_t i = 0; i < plain_.size(); ++i) {
      const std::int64_t units = plain_[i].Within(seconds);
      if (units >= plain_[i].low) {
        sum += units;
      } else if (late.has_value()) {
        return std::nullopt;
      } else {
        late = i;
      }
    }
    if (!late.has_value() && sum < units_) return std::nullopt;
    std::optional<std::size_t> best;
    for (std::size_t i = 0; i < plain_.size(); ++i) {
      if (late.value_or(i) != i) continue;
      const std::int64_t units = with_rest_[i].Within(seconds);
      const std::int64_t without = late == i ? 0 : plain_[i].Within(seconds);
      if (units < with_rest_[i].low || sum - without + units < units_) continue;
      if (sum_of_low_ - plain_[i].low + with_rest_[i].low > units_) continue;
      // The fastest, to which the rest makes the least difference.
      if (!best ||
          plain_[i].candidate->seconds_per_sample < plain_[*best].candidate->seconds_per_sample) {
        best = i;
      }
    }
    return best;
  }

  const std::int64_t units_;
  const Members& plain_;
  const Members& with_rest_;
  const std::int64_t sum_of_low_;
};

// Shares with `units` units in all, everybody within [low, high], and the earliest last finish.
// Requires sum of low <= units <= sum of high.
std::vector<std::int64_t> Level(std::int64_t units, const Members& members) {
  const auto within = [](const Member& each, double seconds) {
    return std::clamp(each.Within(seconds), each.low, each.high);
  };
  const double level = LevelTime(units, members, within);

  // What is done a moment before the level is too little; those whose next unit ends exactly there
  // get it until there is enough. First those that work longest anyway: the others finish earlier.
  std::vector<std::int64_t> shares;
  std::vector<std::size_t> next;
  std::int64_t left = units;
  for (const Member& each : members) {
    const std::int64_t before = level > 0.0 ? within(each, std::nextafter(level, 0.0)) : each.low;
    if (within(each, level) > before) next.push_back(shares.size());
    shares.push_back(before);
    left -= before;
  }
  const auto finish = [&](std::size_t i) {
    return FinishTime(*members[i].candidate, members[i].Samples(shares[i]));
  };
  std::stable_sort(next.begin(), next.end(),
                   [&](std::size_t a, std::size_t b) { return finish(a) > finish(b); });
  for (const std::size_t i : next) {
    const std::int64_t more = std::min(left, within(members[i], level) - shares[i]);
    shares[i] += more;
    left -= more;
  }
  MOTLEY_CHECK(left == 0, "{} units were not given out", left);
  for (std::size_t i = 0; i < members.size(); ++i) shares[i] = members[i].Samples(shares[i]);
  return shares;
}

base::Status CheckCandidates(std::int64_t multiple, std::span<const Candidate> candidates) {
  const auto time = [](double seconds) { return std::isfinite(seconds) && seconds >= 0.0; };
  for (std::size_t i = 0; i < candidates.size(); ++i) {
    const Candidate& each = candidates[i];
    if (!time(each.fixed_seconds) || !time(each.communication_seconds) ||
        !time(each.seconds_per_sample) || each.seconds_per_sample == 0.0) {
      return base::InvalidInput("device {}: {} s + {} s + {} s per sample is no speed", i,
                                each.fixed_seconds, each.communication_seconds,
                                each.seconds_per_sample);
    }
    if (each.least < 0 || each.most < each.least || each.least > kLargestBatch) {
      return base::InvalidInput("device {}: no share lies between {} and {} samples", i, each.least,
                                each.most);
    }
  }
  MOTLEY_CHECK(multiple > 0, "shares in multiples of {}", multiple);
  return {};
}

// Why whole units cannot be given out, if so.
base::Status CheckBounds(std::int64_t batch, std::int64_t units, const Members& members) {
  for (std::size_t i = 0; i < members.size(); ++i) {
    const Member& each = members[i];
    if (each.low <= each.candidate->most / each.multiple) continue;
    return base::InvalidInput(
               "device {}: must take {} samples and has memory for {}, and no multiple of {} lies "
               "between",
               i, each.candidate->least, each.candidate->most, each.multiple)
        .WithFix("choose a smaller train.bn_batch");
  }
  const std::int64_t low = SumOfLow(members);
  if (low <= units) return {};
  const std::int64_t multiple = members.front().multiple;
  return base::InvalidInput(
             "the devices must take {} samples of a batch for their private data (in multiples of "
             "{}), and the batch has {}",
             low * multiple, multiple, batch)
      .WithFix(fmt::format("choose train.batch = {} or more", low * multiple));
}

}  // namespace

double FinishTime(const Candidate& candidate, std::int64_t samples) {
  if (samples == 0) return 0.0;
  return candidate.fixed_seconds + candidate.communication_seconds +
         candidate.seconds_per_sample * static_cast<double>(samples);
}

double FinishTime(std::span<const std::int64_t> shares, std::span<const Candidate> candidates) {
  MOTLEY_CHECK(shares.size() == candidates.size(), "{} shares for {} devices", shares.size(),
               candidates.size());
  double last = 0.0;
  for (std::size_t i = 0; i < shares.size(); ++i) {
    last = std::max(last, FinishTime(candidates[i], shares[i]));
  }
  return last;
}

std::int64_t SamplesWithin(const Candidate& candidate, double seconds) {
  if (!(seconds >= 0.0)) return 0;
  const std::int64_t most = candidate.most;
  const auto fits = [&](std::int64_t samples) { return FinishTime(candidate, samples) <= seconds; };
  const double guess = (seconds - candidate.fixed_seconds - candidate.communication_seconds) /
                       candidate.seconds_per_sample;
  std::int64_t samples = 0;
  if (guess >= static_cast<double>(most)) {
    samples = most;
  } else if (guess > 0.0) {
    samples = static_cast<std::int64_t>(guess);
  }
  // The division rounds: usually by one sample at most.
  if (!fits(samples)) {
    --samples;
  } else if (samples < most && fits(samples + 1)) {
    ++samples;
  }
  if (fits(samples) && (samples == most || !fits(samples + 1))) return samples;
  // Next to a huge fixed time many samples more may make no difference.
  std::int64_t low = 0, high = most;
  while (low < high) {
    const std::int64_t middle = low + (high - low) / 2 + (high - low) % 2;
    if (fits(middle)) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  return low;
}

base::Result<Balanced> Balance(std::int64_t batch, std::int64_t multiple,
                               std::span<const Candidate> candidates) {
  MOTLEY_RETURN_IF_ERROR(CheckCandidates(multiple, candidates));
  if (batch < 0 || batch > kLargestBatch || (batch > 0 && candidates.empty())) {
    return base::InvalidInput("a batch of {} for {} devices", batch, candidates.size());
  }
  const std::int64_t units = batch / multiple, rest = batch % multiple;
  Members members = MakeMembers(candidates, units, multiple, 0);
  std::optional<std::size_t> taker;
  if (rest > 0) {
    const Members with_rest = MakeMembers(candidates, units, multiple, rest);
    taker = RestTaker(units, members, with_rest).Find();
    if (taker.has_value()) members[*taker] = with_rest[*taker];
  }
  if (!taker.has_value()) MOTLEY_RETURN_IF_ERROR(CheckBounds(batch, units, members));

  Balanced balanced;
  balanced.shares = Level(std::min(units, SumOfHigh(members)), members);
  for (const std::int64_t share : balanced.shares) balanced.total += share;
  balanced.seconds = FinishTime(balanced.shares, candidates);
  return balanced;
}

}  // namespace motley::plan
