// Hosts of ranges and members that do not get on: who is to blame, and that the job goes on.
#include <gtest/gtest.h>

#include <atomic>
#include <mutex>
#include <thread>

#include "motley/cluster/shard_host.h"
#include "tests/cluster/cluster.h"
#include "tests/cluster/stranger.h"

namespace motley::cluster {
namespace {

// Of the small job's net.
constexpr std::int64_t kModelFloats = 8 * 9 + 8 + 16 * 72 + 16 + 784 * 400 + 400 + 4010;

TestCluster::Options ShardsFor(int shards, int workers, std::vector<std::int64_t> shares) {
  TestCluster::Options options;
  options.shards = shards;
  options.min_workers = workers;
  options.shares = std::move(shares);
  return options;
}

// A member without a share that tells of failures as a test wants.
class Complainer {
 public:
  explicit Complainer(TestCluster& cluster) : stranger_(cluster, cluster.token()) {
    EXPECT_TRUE(stranger_.Join("unlucky").ok());
  }

  // Does not reach the last of the hosts: says so instead of what it was told to say when `when`
  // is true of the order.
  void Complain(const std::function<bool(const proto::Order&)>& when, bool name_it = true) {
    const std::jthread reading([&] { stranger_.ReadParts([](const proto::Part&) {}); });
    stranger_.Pretend({}, [&](const proto::Order& order, proto::Report& report) {
      if (order.has_shards()) {
        generation_ = order.generation();
        const auto& shards = order.shards().shards();
        host_ = shards.empty() ? "" : shards.rbegin()->host();
      }
      if (host_.empty() || !when(order)) return false;
      report.mutable_failed()->set_generation(generation_);
      report.mutable_failed()->set_group(true);
      report.mutable_failed()->set_message("there is a wall");
      if (name_it) report.mutable_failed()->set_host(host_);
      return true;
    });
  }

 private:
  Stranger stranger_;
  std::uint64_t generation_ = 0;
  std::string host_;
};

TEST(ShardFailuresTest, AHostThatAMemberNeverReachesIsGivenUpAndNoOther) {
  TestCluster cluster(ShardsFor(3, 3, {1, 1, 0}));
  cluster.AddWorker({.name = "h0"});
  cluster.AddWorker({.name = "h1"});
  Complainer complainer(cluster);
  {
    bool free = false;
    const std::jthread trying([&] {
      complainer.Complain([&](const proto::Order& order) {
        if (order.has_shards()) free = order.shards().shards_size() < 2;
        return order.has_shards() && !free;
      });
    });
    const auto report = cluster.Run();
    ASSERT_TRUE(report.ok()) << report.status().ToString();
    ExpectSame(report->state, OnOneDevice({}));
  }
  EXPECT_EQ(cluster.CountTold("shard_failed: unlucky: there is a wall"), 3);
  EXPECT_EQ(cluster.CountTold("unfit_host: h1"), 1);
  EXPECT_EQ(cluster.CountTold("unfit_host: h0"), 0);
  EXPECT_EQ(cluster.CountTold("lost: "), 0);
}

// Each time after an update, so that it is never the third in a row.
TEST(ShardFailuresTest, AMemberThatFailsAgainAndAgainIsSentAway) {
  TestCluster cluster(ShardsFor(2, 3, {1, 1, 0}));
  cluster.AddWorker({.name = "h0"});
  cluster.AddWorker({.name = "h1"});
  Complainer complainer(cluster);
  {
    int trained = 0;
    const std::jthread failing([&] {
      complainer.Complain(
          [&](const proto::Order& order) { return order.has_train() && ++trained % 2 == 0; });
    });
    const auto report = cluster.Run();
    ASSERT_TRUE(report.ok()) << report.status().ToString();
    ExpectSame(report->state, OnOneDevice({}));
  }
  EXPECT_EQ(cluster.CountTold("shard_failed: unlucky: there is a wall"), 6);
  EXPECT_EQ(cluster.CountTold("unfit_host: h0"), 1);
  EXPECT_EQ(cluster.CountTold("unfit_host: h1"), 0) << "it was the member";
  EXPECT_EQ(cluster.CountTold("lost: unlucky"), 1);
  EXPECT_EQ(cluster.CountTold("lost: "), 1);
}

TEST(ShardFailuresTest, WhoFailsAndNamesNoHostIsSentAway) {
  TestCluster cluster(ShardsFor(2, 2, {1, 0}));
  cluster.AddWorker({.name = "honest"});
  Complainer complainer(cluster);
  {
    const std::jthread failing([&] {
      complainer.Complain([](const proto::Order& order) { return order.has_train(); },
                          /*name_it=*/false);
    });
    const auto report = cluster.Run();
    ASSERT_TRUE(report.ok()) << report.status().ToString();
    ExpectSame(report->state, OnOneDevice({}));
  }
  EXPECT_EQ(cluster.CountTold("lost: unlucky"), 1);
  EXPECT_EQ(cluster.CountTold("names nobody who holds a range"), 1);
  EXPECT_EQ(cluster.CountTold("unfit_host: "), 0);
}

TEST(ShardFailuresTest, AHostThatComplainsOfOneMemberAfterAnotherIsGivenUp) {
  TestCluster cluster(ShardsFor(2, 3, {0, 1, 1}));
  Stranger slanderer(cluster, cluster.token());
  ASSERT_TRUE(slanderer.Join("a-slanderer").ok());
  slanderer.ready_.set_can_host(true);
  cluster.AddWorker({.name = "h1"});
  cluster.AddWorker({.name = "h2"});
  {
    std::vector<std::string> others;
    std::size_t next = 0;
    const std::jthread reading([&] { slanderer.ReadParts([](const proto::Part&) {}); });
    const std::jthread slandering([&] {
      slanderer.Pretend({}, [&](const proto::Order& order, proto::Report& report) {
        if (order.has_shards() && !others.empty()) {
          proto::Complaint& complaint = *report.mutable_complaint();
          complaint.set_member(others[next++ % others.size()]);
          complaint.set_what("what nobody else has seen");
          others.clear();
          return true;
        }
        if (!order.has_host()) return false;
        for (const proto::Host::Guest& guest : order.host().guests()) {
          if (guest.name() != slanderer.worker_) others.push_back(guest.name());
        }
        proto::Done& done = *report.mutable_done();
        done.set_generation(order.generation());
        done.set_step(order.step());
        done.set_finite(true);
        done.mutable_hosting()->set_address("127.0.0.1:1");
        done.mutable_hosting()->set_certificate(MakeIdentity()->certificate_pem);
        return true;
      });
    });
    const auto report = cluster.Run();
    ASSERT_TRUE(report.ok()) << report.status().ToString();
    ExpectSame(report->state, OnOneDevice({}));
  }
  EXPECT_EQ(cluster.CountTold("unfit_host: a-slanderer"), 1);
  EXPECT_LE(cluster.CountTold("what nobody else has seen"), 6) << "told at most twice each time";
}

// A host that takes gradients and passes the sums on, and keeps the new weights to itself.
class Miser {
 public:
  explicit Miser(TestCluster& cluster, const std::string& name)
      : stranger_(cluster, cluster.token()) {
    EXPECT_TRUE(stranger_.Join(name).ok());
    stranger_.ready_.set_can_host(true);
    stranger_.Prepare(context_, 60);
    exchange_ = stranger_.stub().Exchange(&context_);
    reader_ = std::jthread([this] {
      proto::Part part;
      while (exchange_->Read(&part)) {
        if (part.array() == proto::ARRAY_MODEL) continue;
        EXPECT_TRUE(host_.Take(part).ok());
      }
    });
  }
  ~Miser() {
    host_.Close();
    context_.TryCancel();
    reader_.join();
    (void)exchange_->Finish();
  }

  void Serve() {
    stranger_.Pretend({}, [this](const proto::Order& order, proto::Report& report) {
      const StepKey key{order.generation(), order.step()};
      if (order.has_shard()) {
        report.mutable_heartbeat();
        EXPECT_TRUE(host_.Obey(key, Miserly(order.shard())).ok());
        return true;
      }
      if (!order.has_host()) return false;
      for (int i = 0; i < 200 && !host_.Complete(key, order.host()); ++i) {
        std::this_thread::sleep_for(std::chrono::milliseconds(50));
      }
      proto::Done& done = *report.mutable_done();
      done.set_generation(order.generation());
      done.set_step(order.step());
      done.set_finite(true);
      *done.mutable_hosting() = host_.Host(key, order.host(), "127.0.0.1").value();
      return true;
    });
  }

 private:
  static proto::ShardStep Miserly(proto::ShardStep step) {
    if (step.has_begin()) step.mutable_begin()->set_alone(false);  // it would send too early
    if (step.has_commit()) step.mutable_discard();
    return step;
  }

  void Send(const PartToSend& item) {
    const std::lock_guard lock(mutex_);
    proto::Part part;
    Fill(item, part);
    exchange_->Write(part);
  }

  Stranger stranger_;
  grpc::ClientContext context_;
  std::unique_ptr<grpc::ClientReaderWriter<proto::Part, proto::Part>> exchange_;
  std::mutex mutex_;
  const Parts parts_{kModelFloats, 0, 2};
  ShardHost host_{parts_,
                  0.5,
                  {.send = [this](const PartToSend& part) { Send(part); },
                   .complain = [](const proto::Complaint&) {},
                   .on_sent = {}}};
  std::jthread reader_;
};

TEST(ShardFailuresTest, AHostThatKeepsTheNewWeightsIsGivenUpAndNobodyIsSentAway) {
  TestCluster::Options options = ShardsFor(2, 2, {0, 1});
  options.step_seconds = 1.0;  // by far less than it takes to be sure
  TestCluster cluster(options);
  cluster.AddWorker({.name = "worker"});
  Miser miser(cluster, "miser");
  {
    const std::jthread hosting([&] { miser.Serve(); });
    const auto report = cluster.Run();
    ASSERT_TRUE(report.ok()) << report.status().ToString();
    ExpectSame(report->state, OnOneDevice({}));
  }
  EXPECT_EQ(cluster.CountTold("host: miser holds range 2 of 2"), 1);
  EXPECT_EQ(cluster.CountTold("shard_failed: worker: miser does not send its range of model 1"), 1);
  EXPECT_EQ(cluster.CountTold("unfit_host: miser"), 1);
  EXPECT_EQ(cluster.CountTold("host: worker holds range 2 of 2"), 1);
  EXPECT_EQ(cluster.CountTold("lost: "), 0);
}

// --- A host alone, without a network ------------------------------------------------------------

class ShardHostTest : public ::testing::Test {
 protected:
  // The range [4, 8) of a model of 8, served to "a" by this key.
  void Serve(std::uint64_t generation, bool fresh, const std::string& key) {
    if (fresh) {
      for (const auto array : {proto::ARRAY_SHARD, proto::ARRAY_VELOCITY}) {
        proto::Part part = PartOf(generation, array);
        ASSERT_TRUE(host_.Take(part).ok());
      }
    }
    proto::Host order;
    order.set_range(1);
    order.set_fresh(fresh);
    order.add_guests()->set_name("a");
    order.mutable_guests(0)->set_key(key);
    ASSERT_TRUE(host_.Serve({generation, 0}, order).ok());
  }
  base::Status Begin(std::uint64_t generation, int group = 0, bool alone = true) {
    proto::ShardStep step;
    step.set_group(group);
    proto::ShardStep::Begin& begin = *step.mutable_begin();
    begin.set_samples(2);
    begin.set_alone(alone);
    begin.add_contributors()->set_name("a");
    begin.mutable_contributors(0)->set_samples(2);
    return host_.Obey({generation, 0}, step);
  }
  static proto::Part PartOf(std::uint64_t generation, proto::Array array) {
    const std::vector<float> floats(4, 1.0F);
    proto::Part part;
    part.set_generation(generation);
    part.set_array(array);
    part.set_offset(4);
    part.set_samples(2);
    part.set_floats(std::string(BytesOf(floats)));
    return part;
  }
  base::Status SendGradient(const SessionPtr& from, std::uint64_t generation) {
    proto::Part part = PartOf(generation, proto::ARRAY_UPDATE);
    return host_.OnPart(from, part);
  }
  SessionPtr Enter(const std::string& key) {
    return host_.Authenticate({"peer", {{kWorker, "a"}, {kCredential, key}}}).value();
  }

  std::vector<StepKey> sums_;
  std::vector<std::string> complaints_;
  const Parts parts_{8, 0, 2};
  ShardHost host_{
      parts_,
      1.0,
      {.send = [this](const PartToSend& part) { sums_.push_back(part.key); },
       .complain = [this](const auto& complaint) { complaints_.push_back(complaint.what()); },
       .on_sent = {}},
      /*early_seconds=*/-1.0};
};

TEST_F(ShardHostTest, WhatAnEarlierGuestOfTheSameNameSendsIsNotAdded) {
  Serve(1, /*fresh=*/true, "old");
  const SessionPtr old = Enter("old");
  Serve(2, /*fresh=*/false, "new");
  ASSERT_TRUE(Begin(3).ok());
  EXPECT_TRUE(SendGradient(old, 3).ok()) << "it learns that it is over another way";
  EXPECT_TRUE(sums_.empty());
  EXPECT_TRUE(SendGradient(Enter("new"), 3).ok());
  EXPECT_EQ(sums_, (std::vector<StepKey>{{3, 0}}));
  EXPECT_TRUE(complaints_.empty());
}

TEST_F(ShardHostTest, AGradientOfAnAbandonedAttemptIsNoFaultOfItsSender) {
  Serve(1, /*fresh=*/true, "old");
  const SessionPtr old = Enter("old");
  ASSERT_TRUE(Begin(2).ok());
  Serve(3, /*fresh=*/true, "new");
  EXPECT_TRUE(SendGradient(old, 2).ok());
  ASSERT_TRUE(Begin(4).ok());
  EXPECT_TRUE(SendGradient(old, 2).ok());
  EXPECT_TRUE(SendGradient(Enter("new"), 2).ok());
  EXPECT_TRUE(sums_.empty());
  EXPECT_TRUE(complaints_.empty());
}

TEST_F(ShardHostTest, NobodyElseBeginsBesideAGroupThatIsAlone) {
  Serve(1, /*fresh=*/true, "key");
  ASSERT_TRUE(Begin(2, 0, /*alone=*/true).ok());
  EXPECT_FALSE(Begin(3, 1, /*alone=*/false).ok());
  EXPECT_FALSE(Begin(3, 1, /*alone=*/true).ok());
}

TEST_F(ShardHostTest, AGradientOfNoStepIsRefusedAndItsSenderNamed) {
  Serve(1, /*fresh=*/true, "key");
  EXPECT_FALSE(SendGradient(Enter("key"), 7).ok());
  ASSERT_EQ(complaints_.size(), 1U);
  EXPECT_NE(complaints_[0].find("in which it has no share"), std::string::npos);
}

}  // namespace
}  // namespace motley::cluster
