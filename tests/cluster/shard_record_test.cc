#include "motley/cluster/shard_record.h"

#include <gtest/gtest.h>

namespace motley::cluster {
namespace {

using Names = std::vector<std::string>;
const Names kHere = {"a", "b", "c", "d"};

// Attempts in which `member` does not reach `host`, one a minute.
void Fail(ShardRecord& record, const std::string& member, const std::string& host, int first,
          int count) {
  for (int i = first; i < first + count; ++i) {
    EXPECT_TRUE(record.Add({60.0 * i, static_cast<std::uint64_t>(i), member, host}));
  }
}

TEST(ShardRecordTest, TheHostThatFailedThreeTimesIsToBlameAndNoOther) {
  ShardRecord record;
  Fail(record, "b", "a", 1, 2);
  Fail(record, "b", "c", 3, 2);
  EXPECT_TRUE(record.Judge(300.0, kHere).hosts.empty());
  Fail(record, "d", "a", 5, 1);
  const auto verdict = record.Judge(300.0, kHere);
  EXPECT_EQ(verdict.hosts, Names{"a"});
  EXPECT_TRUE(verdict.members.empty());
}

TEST(ShardRecordTest, AMemberThatTellsSoOfHostAfterHostIsToBlameItself) {
  ShardRecord record;
  Fail(record, "d", "a", 1, 3);
  EXPECT_EQ(record.Judge(200.0, kHere).hosts, Names{"a"});
  Fail(record, "d", "b", 4, 3);
  const auto verdict = record.Judge(400.0, kHere);
  EXPECT_EQ(verdict.members, Names{"d"});
  EXPECT_TRUE(verdict.hosts.empty()) << "who tells so is not believed any more";
}

TEST(ShardRecordTest, AMemberIsNotToBlameForWhatOthersTellTooOrForWhoIsGone) {
  ShardRecord record;
  Fail(record, "d", "a", 1, 3);
  Fail(record, "d", "b", 4, 3);
  EXPECT_TRUE(record.Judge(400.0, {"b", "c", "d"}).members.empty());
  EXPECT_TRUE(record.Add({400.0, 6, "c", "b"}));
  EXPECT_TRUE(record.Judge(400.0, kHere).members.empty());
}

TEST(ShardRecordTest, WhoIsToBlameStaysAwayForAWhileAndIsNotBelievedWhenItIsGone) {
  ShardRecord record;
  Fail(record, "d", "a", 1, 3);
  Fail(record, "d", "b", 4, 3);
  EXPECT_EQ(record.Judge(400.0, kHere).members, Names{"d"});
  EXPECT_TRUE(record.Barred(400.0, "d"));
  EXPECT_FALSE(record.Barred(400.0, "a"));
  EXPECT_TRUE(record.Judge(410.0, {"a", "b", "c"}).hosts.empty());
  EXPECT_FALSE(record.Barred(410.0 + ShardRecord::kWindowSeconds + 1.0, "d"));
}

TEST(ShardRecordTest, WhoIsGoneDoesNotCountAmongThoseThatAHostIsSilentTo) {
  ShardRecord record;
  record.Add({1.0, 1, "b", "a", /*silent=*/true});
  EXPECT_TRUE(record.Judge(1.0, {"a", "c"}).hosts.empty());
}

TEST(ShardRecordTest, WhatIsToldAgainAtOnceInANewAttemptCountsOnce) {
  ShardRecord record;
  EXPECT_TRUE(record.Add({1.0, 1, "b", "a"}));
  EXPECT_FALSE(record.Add({1.5, 2, "b", "a"}));
  EXPECT_TRUE(record.Add({3.0, 3, "b", "a"}));
}

TEST(ShardRecordTest, WhatWasLongAgoIsForgotten) {
  ShardRecord record;
  Fail(record, "b", "a", 1, 3);
  EXPECT_TRUE(record.Judge(60.0 + ShardRecord::kWindowSeconds + 1.0, kHere).hosts.empty());
}

TEST(ShardRecordTest, AnAttemptCountsOnceWhoeverTellsOfItAndHoweverOften) {
  ShardRecord record;
  for (const char* member : {"b", "c", "d"}) {
    EXPECT_TRUE(record.Add({1.0, 7, member, "a"}));
    EXPECT_FALSE(record.Add({2.0, 7, member, "a"}));
  }
  EXPECT_TRUE(record.Judge(3.0, kHere).hosts.empty());
}

TEST(ShardRecordTest, AHostThatIsSilentToSeveralOrToTheOnlyOneNeedNotBeTriedAgain) {
  ShardRecord record;
  record.Add({1.0, 1, "b", "a", /*silent=*/true});
  EXPECT_TRUE(record.Judge(1.0, kHere).hosts.empty());
  EXPECT_EQ(record.Judge(1.0, {"a", "b"}).hosts, Names{"a"}) << "there is no other to ask";
  record.Add({1.0, 1, "c", "a", /*silent=*/true});
  EXPECT_EQ(record.Judge(1.0, kHere).hosts, Names{"a"});
  record.Add({1.0, 1, "d", "d", /*silent=*/true});
  EXPECT_EQ(record.Judge(1.0, kHere).hosts, (Names{"a", "d"})) << "it says so itself";
}

TEST(ShardRecordTest, AHostThatAloneComplainsOfOneAfterAnotherIsToBlame) {
  ShardRecord record;
  record.Complain(1.0, "a", "b");
  record.Complain(2.0, "a", "b");
  EXPECT_TRUE(record.Judge(2.0, kHere).hosts.empty()) << "it may be right";
  record.Complain(3.0, "a", "c");
  EXPECT_TRUE(record.Doubtful("a"));
  EXPECT_EQ(record.Judge(3.0, kHere).hosts, Names{"a"});
  EXPECT_TRUE(record.Judge(3.0 + ShardRecord::kWindowSeconds + 1.0, kHere).hosts.empty());
}

TEST(ShardRecordTest, AHostThatAloneComplainsOfOneMemberAgainAndAgainIsToBlame) {
  ShardRecord record;
  for (const double time : {1.0, 2.0, 3.0}) {
    EXPECT_FALSE(record.Doubtful("a"));
    record.Complain(time, "a", "b");
  }
  EXPECT_TRUE(record.Doubtful("a"));
  EXPECT_FALSE(record.Confirmed("b"));
}

TEST(ShardRecordTest, WhatTwoHostsComplainOfIsTrue) {
  ShardRecord record;
  record.Complain(1.0, "a", "b");
  record.Complain(2.0, "c", "b");
  EXPECT_TRUE(record.Confirmed("b"));
  for (const double time : {3.0, 4.0, 5.0}) record.Complain(time, "a", "b");
  EXPECT_TRUE(record.Judge(5.0, kHere).hosts.empty());
}

}  // namespace
}  // namespace motley::cluster
