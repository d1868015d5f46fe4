#include "motley/data/ledger.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <numeric>
#include <vector>

#include "motley/base/rng.h"

namespace motley::data {
namespace {

std::vector<SampleId> WholeEpoch(std::int64_t size, std::uint64_t seed, std::uint64_t epoch) {
  return Permutation(size, seed, epoch).Ids({.epoch = epoch, .begin = 0, .end = size});
}

TEST(PermutationTest, HoldsEverySampleOnce) {
  for (const std::int64_t size : {0, 1, 2, 3, 1000}) {
    auto ids = WholeEpoch(size, 7, 3);
    std::sort(ids.begin(), ids.end());
    std::vector<SampleId> expected(static_cast<std::size_t>(size));
    std::iota(expected.begin(), expected.end(), SampleId{0});
    EXPECT_EQ(ids, expected);
  }
}

TEST(PermutationTest, DependsOnSeedAndEpochAndNothingElse) {
  EXPECT_EQ(WholeEpoch(100, 1, 2), WholeEpoch(100, 1, 2));
  EXPECT_NE(WholeEpoch(100, 1, 2), WholeEpoch(100, 1, 3));
  EXPECT_NE(WholeEpoch(100, 1, 2), WholeEpoch(100, 2, 2));
}

TEST(PermutationTest, PutsEverySampleEverywhereEquallyOften) {
  // 4! orders; with 24,000 draws each is expected 1,000 times, standard deviation 31.
  std::vector<int> seen(4 * 4 * 4 * 4);
  for (std::uint64_t epoch = 0; epoch < 24000; ++epoch) {
    std::size_t code = 0;
    for (const SampleId id : WholeEpoch(4, 5, epoch)) code = code * 4 + id;
    ++seen[code];
  }
  for (const int count : seen) {
    if (count > 0) {
      EXPECT_NEAR(count, 1000, 160);
    }
  }
  EXPECT_EQ(std::count_if(seen.begin(), seen.end(), [](int count) { return count > 0; }), 24);
}

TEST(PermutationTest, CutsATicketOutOfTheEpoch) {
  const auto all = WholeEpoch(10, 1, 0);
  const auto part = Permutation(10, 1, 0).Ids({.epoch = 0, .begin = 3, .end = 7});
  EXPECT_EQ(part, std::vector<SampleId>(all.begin() + 3, all.begin() + 7));
}

TEST(LedgerTest, HandsOutTheEpochInOrderAndEndsWithAShortTicket) {
  Ledger ledger(4, 10);
  EXPECT_EQ(ledger.Take(4), (Ticket{4, 0, 4}));
  EXPECT_EQ(ledger.Take(4), (Ticket{4, 4, 8}));
  EXPECT_EQ(ledger.Take(4), (Ticket{4, 8, 10}));
  EXPECT_EQ(ledger.Take(4), std::nullopt);
  EXPECT_FALSE(ledger.Complete());
}

TEST(LedgerTest, HandsOutAgainWhatWasGivenBack) {
  Ledger ledger(0, 10);
  const auto first = ledger.Take(4);
  const auto second = ledger.Take(4);
  ASSERT_TRUE(ledger.Commit(*first).ok());
  ASSERT_TRUE(ledger.GiveBack(*second).ok());
  EXPECT_EQ(ledger.Take(100), (Ticket{0, 4, 10}));
  EXPECT_EQ(ledger.CommittedRanges(), (std::vector<Ledger::Range>{{0, 4}}));
}

TEST(LedgerTest, RefusesATicketThatIsNotOutAsItWasTaken) {
  Ledger ledger(1, 10);
  const auto ticket = ledger.Take(4);
  EXPECT_FALSE(ledger.Commit({1, 0, 3}).ok());
  EXPECT_FALSE(ledger.Commit({1, 1, 4}).ok());
  EXPECT_FALSE(ledger.Commit({2, 0, 4}).ok());
  EXPECT_FALSE(ledger.GiveBack({1, 4, 8}).ok());
  ASSERT_TRUE(ledger.Commit(*ticket).ok());
  EXPECT_FALSE(ledger.Commit(*ticket).ok());
  EXPECT_FALSE(ledger.GiveBack(*ticket).ok());
  EXPECT_EQ(ledger.committed(), 4);
}

TEST(LedgerTest, AnEmptyEpochIsComplete) {
  Ledger ledger(0, 0);
  EXPECT_TRUE(ledger.Complete());
  EXPECT_EQ(ledger.Take(1), std::nullopt);
}

TEST(LedgerTest, ForgetsUncommittedTicketsWhenRestored) {
  Ledger before(3, 20);
  const auto first = before.Take(5);
  (void)before.Take(5);
  const auto third = before.Take(5);
  ASSERT_TRUE(before.Commit(*first).ok());
  ASSERT_TRUE(before.Commit(*third).ok());
  auto after = Ledger::Restore(3, 20, before.CommittedRanges());
  ASSERT_TRUE(after.ok());
  EXPECT_EQ(after->committed(), 10);
  EXPECT_EQ(after->Take(8), (Ticket{3, 5, 10}));
  EXPECT_EQ(after->Take(8), (Ticket{3, 15, 20}));
}

TEST(LedgerTest, RefusesToRestoreRangesThatCannotBe) {
  constexpr auto kMax = std::numeric_limits<std::int64_t>::max();
  constexpr auto kMin = std::numeric_limits<std::int64_t>::min();
  const std::vector<std::vector<Ledger::Range>> bad = {
      {{0, 4}, {3, 6}}, {{4, 6}, {0, 2}}, {{2, 2}},   {{5, 3}},
      {{-1, 2}},        {{0, 11}},        {{10, 11}}, {{kMin, kMax}},
  };
  for (const auto& ranges : bad) {
    EXPECT_FALSE(Ledger::Restore(0, 10, ranges).ok()) << ranges[0].first << "," << ranges[0].second;
  }
  EXPECT_FALSE(Ledger::Restore(0, -1, {}).ok());
  EXPECT_TRUE(Ledger::Restore(0, 10, {{0, 4}, {4, 6}, {9, 10}}).ok());
}

TEST(LedgerTest, TakesWithinARangeAroundWhatIsOut) {
  Ledger ledger(2, 20);
  ASSERT_EQ(ledger.TakeWithin(3, 8, 12), (std::vector<Ticket>{{2, 8, 11}}));
  EXPECT_EQ(ledger.FreeWithin(0, 20), 17);
  EXPECT_EQ(ledger.FreeWithin(5, 12), 4);
  EXPECT_EQ(ledger.TakeWithin(6, 5, 13), (std::vector<Ticket>{{2, 5, 8}, {2, 11, 13}}));
  EXPECT_TRUE(ledger.TakeWithin(1, 5, 13).empty());
  EXPECT_TRUE(ledger.TakeWithin(0, 0, 20).empty());
  EXPECT_TRUE(ledger.TakeWithin(5, 7, 7).empty());
  EXPECT_EQ(ledger.TakeWithin(100, 0, 20), (std::vector<Ticket>{{2, 0, 5}, {2, 13, 20}}));
}

TEST(LedgerTest, CommitsWhatWasDoneOfATicketAndHandsOutTheRestAgain) {
  Ledger ledger(0, 20);
  const auto ticket = ledger.Take(10);
  ASSERT_TRUE(ledger.CommitParts(*ticket, {{2, 4}, {4, 5}, {8, 10}}).ok());
  EXPECT_EQ(ledger.committed(), 5);
  EXPECT_EQ(ledger.CommittedRanges(), (std::vector<Ledger::Range>{{2, 5}, {8, 10}}));
  EXPECT_EQ(ledger.TakeWithin(20, 0, 20), (std::vector<Ticket>{{0, 0, 2}, {0, 5, 8}, {0, 10, 20}}));
}

TEST(LedgerTest, NothingDoneOfATicketIsGivingItBack) {
  Ledger ledger(0, 10);
  const auto ticket = ledger.Take(10);
  ASSERT_TRUE(ledger.CommitParts(*ticket, {}).ok());
  EXPECT_EQ(ledger.committed(), 0);
  EXPECT_EQ(ledger.Take(10), ticket);
}

TEST(LedgerTest, RefusesPartsThatAreNotOfTheTicketAndKeepsItOut) {
  Ledger ledger(0, 20);
  (void)ledger.Take(5);
  const auto ticket = ledger.Take(5);
  using Ranges = std::vector<Ledger::Range>;
  for (const Ranges& done : {Ranges{{4, 6}}, Ranges{{9, 11}}, Ranges{{7, 9}, {8, 10}},
                             Ranges{{8, 9}, {5, 6}}, Ranges{{6, 6}}, Ranges{{8, 7}}}) {
    EXPECT_FALSE(ledger.CommitParts(*ticket, done).ok()) << done[0].first;
  }
  EXPECT_FALSE(ledger.CommitParts({0, 10, 20}, {{10, 20}}).ok());
  EXPECT_EQ(ledger.committed(), 0);
  EXPECT_TRUE(ledger.CommitParts(*ticket, {{5, 10}}).ok());
}

TEST(LedgerTest, IsCompleteWithoutWhatNobodyCanCompute) {
  Ledger ledger(0, 10);
  const auto ticket = ledger.Take(3);
  EXPECT_EQ(ledger.Forgo(2, 6), 3);  // the first of them is out
  EXPECT_EQ(ledger.Forgo(2, 6), 0);
  EXPECT_EQ(ledger.forgone(), 3);
  ASSERT_TRUE(ledger.Commit(*ticket).ok());
  ASSERT_TRUE(ledger.Commit(*ledger.Take(10)).ok());
  EXPECT_TRUE(ledger.Complete());
  EXPECT_EQ(ledger.committed(), 7);
  EXPECT_EQ(ledger.CommittedRanges(), (std::vector<Ledger::Range>{{0, 3}, {6, 10}}));
}

// One random life of an epoch: takes, commits, losses and restarts in any order.
void LiveThroughAnEpoch(std::uint64_t key) {
  base::Rng rng(key);
  const auto size = static_cast<std::int64_t>(rng.Below(300));
  Ledger ledger(9, size);
  std::vector<Ticket> out;
  std::vector<int> committed(static_cast<std::size_t>(size));
  while (!ledger.Complete()) {
    const auto choice = rng.Below(100);
    if (choice < 45) {
      if (const auto ticket = ledger.Take(1 + static_cast<std::int64_t>(rng.Below(40)))) {
        out.push_back(*ticket);
      }
    } else if (choice < 98 && !out.empty()) {
      std::swap(out[rng.Below(out.size())], out.back());
      const Ticket ticket = out.back();
      out.pop_back();
      if (choice < 75) {
        ASSERT_TRUE(ledger.Commit(ticket).ok());
        for (auto i = ticket.begin; i < ticket.end; ++i) ++committed[static_cast<std::size_t>(i)];
      } else {
        ASSERT_TRUE(ledger.GiveBack(ticket).ok());
      }
    } else if (choice >= 98) {
      auto restored = Ledger::Restore(9, size, ledger.CommittedRanges());
      ASSERT_TRUE(restored.ok());
      ledger = *restored;
      out.clear();
    }
  }
  EXPECT_TRUE(std::all_of(committed.begin(), committed.end(), [](int n) { return n == 1; }));
  EXPECT_EQ(ledger.Take(1), std::nullopt);
  EXPECT_EQ(ledger.CommittedRanges().size(), size > 0 ? 1U : 0U);
}

TEST(LedgerTest, CommitsEveryPositionOnceWhateverHappens) {
  for (std::uint64_t key = 0; key < 500; ++key) LiveThroughAnEpoch(key);
}

}  // namespace
}  // namespace motley::data
