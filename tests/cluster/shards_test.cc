// A model that several processes serve, a range each: the same weights as from one, whoever comes,
// goes, dies or lies.
#include <gtest/gtest.h>

#include <limits>
#include <thread>

#include "motley/cluster/parts.h"
#include "tests/cluster/cluster.h"
#include "tests/cluster/stranger.h"

namespace motley::cluster {
namespace {

// Of the small job's net.
constexpr std::int64_t kParameters = 8 * 9 + 8 + 16 * 72 + 16 + 784 * 400 + 400 + 4010;

TestCluster::Options Shards(int shards, int workers, int groups = 1, const SmallJob& job = {}) {
  TestCluster::Options options;
  options.job = job;
  options.shards = shards;
  options.min_workers = workers;
  options.shares = {3, 1, 2, 5, 1};
  options.groups_at = [groups](std::int64_t) { return groups; };
  return options;
}

void AddWorkers(TestCluster& cluster, int count) {
  for (int i = 0; i < count; ++i) {
    cluster.AddWorker({.name = "s" + std::to_string(i), .rank = i});
  }
}

MakeDevice DiesAt(std::int64_t step) {
  return DeviceWith([step](std::int64_t at) {
    return at == step ? base::Internal("broken for good") : base::Status();
  });
}

struct ShardsCase {
  int workers = 1, shards = 2, groups = 1;
};

class ShardsTest : public ::testing::TestWithParam<ShardsCase> {};

TEST_P(ShardsTest, GiveTheWeightsOfOneServer) {
  const ShardsCase& one = GetParam();
  const TestCluster::Options options =
      Shards(one.shards, one.workers, one.groups, {.linear = one.groups > 1});
  TestCluster cluster(options);
  AddWorkers(cluster, one.workers);
  const auto report = cluster.Run();
  ASSERT_TRUE(report.ok()) << report.status().ToString();
  EXPECT_GE(cluster.CountTold(" holds range "), std::min(one.workers, one.shards - 1));
  EXPECT_EQ(cluster.CountTold("lost: "), 0) << fmt::format("{}", fmt::join(cluster.told(), "\n"));
  EXPECT_EQ(cluster.CountTold("refused: "), 0);
  EXPECT_EQ(cluster.CountTold("shard_failed: "), 0);
  if (one.groups == 1) {
    ExpectSame(report->state, OnOneDevice(options.job));
    return;
  }
  EXPECT_EQ(report->state.samples, options.job.train);
  const auto expected = WithStaleUpdates(options.job, Replay(cluster.steps(), one.groups));
  EXPECT_LT(RelativeDifference(report->state.weights, expected.weights), 1e-4);
  EXPECT_LT(RelativeDifference(report->state.velocity, expected.velocity), 1e-3);
}

INSTANTIATE_TEST_SUITE_P(Sizes, ShardsTest,
                         ::testing::Values(ShardsCase{1, 2, 1}, ShardsCase{2, 2, 1},
                                           ShardsCase{3, 2, 1}, ShardsCase{5, 2, 1},
                                           ShardsCase{1, 3, 1}, ShardsCase{2, 3, 1},
                                           ShardsCase{3, 3, 1}, ShardsCase{5, 3, 1},
                                           ShardsCase{2, 2, 2}, ShardsCase{3, 2, 2},
                                           ShardsCase{5, 2, 2}, ShardsCase{2, 3, 2},
                                           ShardsCase{3, 3, 2}, ShardsCase{5, 3, 2}),
                         [](const auto& param_info) {
                           return std::to_string(param_info.param.workers) + "WorkersIn" +
                                  std::to_string(param_info.param.groups) + "GroupsWith" +
                                  std::to_string(param_info.param.shards) + "Shards";
                         });

TEST(ShardedTest, TheSameSharesGiveTheSameBitsInAnyNumberOfShards) {
  std::vector<std::vector<float>> weights;
  for (const int shards : {1, 3}) {
    TestCluster cluster(Shards(shards, 3, 1, {.batch_norm = true, .bn_batch = 4}));
    AddWorkers(cluster, 3);
    const auto report = cluster.Run();
    ASSERT_TRUE(report.ok()) << report.status().ToString();
    weights.push_back(report->state.weights);
    weights.back().insert(weights.back().end(), report->state.velocity.begin(),
                          report->state.velocity.end());
  }
  EXPECT_EQ(weights[0], weights[1]);
}

// The bytes of gradients that a worker sends to whomever.
class Scale {
 public:
  void Put(std::string_view bytes) {
    proto::Part part;
    constexpr std::size_t kSmallestPart = 4096;  // other messages are shorter
    if (bytes.size() < kSmallestPart || !part.ParseFromArray(bytes.data(), std::ssize(bytes)))
      return;
    const bool gradient = part.array() == proto::ARRAY_UPDATE || part.array() == proto::ARRAY_SUM;
    (gradient ? gradients_ : weights_) += std::ssize(bytes);
  }
  std::int64_t gradients() const { return gradients_; }
  std::int64_t weights() const { return weights_; }

 private:
  std::atomic<std::int64_t> gradients_ = 0, weights_ = 0;
};

// Also of a step that is given up, and of the last one.
TEST(ShardedTest, EveryByteThatWorkersSendEachOtherIsCountedOnce) {
  TestCluster cluster(Shards(2, 3));
  Scale scale;
  for (int i = 0; i < 3; ++i) {
    WorkerOptions worker{.name = "s" + std::to_string(i), .rank = i};
    worker.on_sent = [&](std::string_view bytes) { scale.Put(bytes); };
    // When the others have sent all that they have.
    if (i == 2) {
      worker.make_device = DeviceWith([](std::int64_t step) {
        if (step != 9) return base::Status();
        std::this_thread::sleep_for(std::chrono::milliseconds(500));
        return base::Internal("broken for good");
      });
    }
    cluster.AddWorker(worker);
  }
  ASSERT_TRUE(cluster.Run().ok());
  EXPECT_EQ(cluster.CountTold("lost: s2"), 1);
  EXPECT_EQ(cluster.coordinator().traffic().gradient, scale.gradients());
  EXPECT_GT(scale.weights(), 0);
}

class LostHostTest : public ::testing::TestWithParam<int> {};

TEST_P(LostHostTest, TheJobGoesOnAndNoUpdateIsLost) {
  const int groups = GetParam();
  TestCluster::Options options = Shards(3, 4, groups);
  TestCluster cluster(options);
  // The first two hold the ranges.
  cluster.AddWorker({.name = "s0", .rank = 0, .make_device = DiesAt(groups == 1 ? 6 : 2)});
  cluster.AddWorker({.name = "s1", .rank = 1, .make_device = DiesAt(groups == 1 ? 11 : 4)});
  cluster.AddWorker({.name = "s2", .rank = 2});
  cluster.AddWorker({.name = "s3", .rank = 3});
  const auto report = cluster.Run();
  ASSERT_TRUE(report.ok()) << report.status().ToString();
  EXPECT_EQ(report->state.samples, options.job.train) << "every sample once";
  EXPECT_EQ(report->state.step, static_cast<std::int64_t>(cluster.steps().size()));
  EXPECT_EQ(cluster.CountTold("lost: s0"), 1);
  EXPECT_EQ(cluster.CountTold("lost: s1"), 1);
  EXPECT_EQ(cluster.CountTold("host: s0 holds range 2 of 3"), 1);
  EXPECT_GE(cluster.CountTold("host: s1 holds range 3 of 3"), 1);
  EXPECT_GE(cluster.CountTold("host: s2 holds range 2 of 3"), 1);
  EXPECT_EQ(cluster.CountTold("host: s3 holds range 3 of 3"), 1);
  if (groups == 1) ExpectSame(report->state, OnOneDevice(options.job));
}

INSTANTIATE_TEST_SUITE_P(Groups, LostHostTest, ::testing::Values(1, 2));

TEST(ShardedTest, TheOnlyHostsMayDieOneAfterTheOther) {
  TestCluster::Options options = Shards(2, 2);
  TestCluster cluster(options);
  cluster.AddWorker({.name = "s0", .rank = 0, .make_device = DiesAt(4)});
  cluster.AddWorker({.name = "s1", .rank = 1, .make_device = DiesAt(9)});
  const auto report = cluster.Run([&](std::int64_t step) {
    if (step == 7) cluster.AddWorker({.name = "s2", .rank = 2});
  });
  ASSERT_TRUE(report.ok()) << report.status().ToString();
  ExpectSame(report->state, OnOneDevice(options.job));
  EXPECT_EQ(cluster.CountTold("s0 holds range"), 1);
  EXPECT_GE(cluster.CountTold("s1 holds range"), 1);
}

TEST(ShardedTest, AHostMayLeaveAndAnotherOneJoin) {
  for (const int groups : {1, 2}) {
    TestCluster::Options options = Shards(2, 2, groups);
    TestCluster cluster(options);
    // Slow enough that the late one is in before they go.
    const auto slow = DeviceWith([](std::int64_t) {
      std::this_thread::sleep_for(std::chrono::milliseconds(30));
      return base::Status();
    });
    for (int i = 0; i < 2; ++i) {
      cluster.AddWorker({.name = "s" + std::to_string(i), .rank = i, .make_device = slow});
    }
    const auto report = cluster.Run([&](std::int64_t step) {
      if (step == 2) cluster.AddWorker({.name = "late", .rank = 2, .make_device = slow});
      if (step == 10) cluster.Leave(0);
      if (step == 14) cluster.Leave(1);
    });
    ASSERT_TRUE(report.ok()) << report.status().ToString();
    EXPECT_EQ(report->state.samples, options.job.train);
    EXPECT_EQ(cluster.CountTold("left: s0"), 1);
    EXPECT_EQ(cluster.CountTold("left: s1"), 1);
    EXPECT_EQ(cluster.CountTold("lost: "), 0);
    if (groups == 1) ExpectSame(report->state, OnOneDevice(options.job));
  }
}

TEST(ShardedTest, WithADeadlineHalfAStepIsApplied) {
  TestCluster::Options options = Shards(2, 2, 1, {.epochs = 2});
  options.predicted_seconds = 0.02;
  TestCluster cluster(options);
  AddWorkers(cluster, 1);
  cluster.AddWorker({.name = "s1", .rank = 1, .make_device = DeviceWith([](std::int64_t step) {
                                                if (step == 12) {
                                                  std::this_thread::sleep_for(
                                                      std::chrono::milliseconds(600));
                                                }
                                                return base::Status();
                                              })});
  const auto report = cluster.Run();
  ASSERT_TRUE(report.ok()) << report.status().ToString();
  EXPECT_EQ(report->state.samples, 2 * options.job.train);
  EXPECT_EQ(cluster.CountTold("lost: "), 0);
}

// A member that knows a shard's address, certificate and key, and sends there what it likes.
grpc::Status SendTo(const proto::Shards::Shard& shard, const std::string& name,
                    const std::string& key, const proto::Part& part) {
  grpc::SslCredentialsOptions ssl;
  ssl.pem_root_certs = shard.certificate();
  grpc::ChannelArguments arguments;
  arguments.SetSslTargetNameOverride(std::string(kCertificateName));
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  const auto stub = proto::Cluster::NewStub(
      grpc::CreateCustomChannel(shard.address(), grpc::SslCredentials(ssl), arguments));
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(10));
  context.AddMetadata(kWorker, name);
  context.AddMetadata(kCredential, key);
  const auto stream = stub->Exchange(&context);
  stream->Write(part);
  proto::Part ignored;
  while (stream->Read(&ignored)) {
  }
  return stream->Finish();
}

struct Attack {
  const char* name;
  std::int64_t floats = 2, offset = 0;  // from the beginning of the shard
  float value = 0.0F;
  bool whole = false;  // a part as it should be, but for what else is wrong
  proto::Array array = proto::ARRAY_UPDATE;
  const char* told = "";
};

class ShardAttackTest : public ::testing::TestWithParam<Attack> {};

TEST_P(ShardAttackTest, IsRefusedAndTheJobUnharmed) {
  const Attack& attack = GetParam();
  TestCluster::Options options = Shards(2, 2);
  TestCluster cluster(options);
  cluster.AddWorker({.name = "honest"});
  Stranger stranger(cluster, cluster.token());
  ASSERT_TRUE(stranger.Join("liar").ok());
  std::atomic<int> refused = 0;
  {
    proto::Shards::Shard shard;
    const std::jthread lying([&] {
      stranger.Pretend([&](const proto::Order& order) {
        if (order.has_shards() && order.shards().shards_size() > 0) {
          shard = order.shards().shards(0);
        }
        if (!order.has_train() || shard.address().empty()) return;
        const Parts parts(kParameters, 0, 2);
        proto::Part part;
        part.set_generation(order.generation());
        part.set_step(order.step());
        part.set_array(attack.array);
        part.set_offset(parts.range(1).offset + attack.offset);
        const Parts::Part& first = parts[parts.Holding(parts.range(1).offset)];
        const std::int64_t count = attack.whole ? first.size : attack.floats;
        const std::vector<float> floats(static_cast<std::size_t>(count), attack.value);
        part.set_floats(std::string(BytesOf(floats)));
        part.set_samples(1);
        const grpc::Status ended = SendTo(shard, "liar", shard.key(), part);
        if (!ended.ok() && ended.error_code() != grpc::StatusCode::DEADLINE_EXCEEDED) ++refused;
      });
    });
    const auto report = cluster.Run();
    ASSERT_TRUE(report.ok()) << report.status().ToString();
    ExpectSame(report->state, OnOneDevice({}));
  }
  EXPECT_EQ(refused, 1);
  EXPECT_EQ(cluster.CountTold("lost: liar"), 1);
  EXPECT_EQ(cluster.CountTold("lost: honest"), 0);
  EXPECT_GE(cluster.CountTold(attack.told), 1);
}

INSTANTIATE_TEST_SUITE_P(
    All, ShardAttackTest,
    ::testing::Values(Attack{.name = "WrongSize", .told = "at the shard of honest: 2 floats at 0"},
                      Attack{.name = "OtherRange", .offset = -1, .told = "another shard"},
                      Attack{.name = "NotFinite",
                             .value = std::numeric_limits<float>::quiet_NaN(),
                             .whole = true,
                             .told = "not finite"},
                      Attack{.name = "Weights",
                             .whole = true,
                             .array = proto::ARRAY_MODEL,
                             .told = "not for a shard"}),
    [](const auto& param_info) { return param_info.param.name; });

// Its half of the gradient comes to the coordinator, and the other one nowhere.
TEST(ShardStrangerTest, WhoSendsNothingToAShardIsSentAwayAndNotItsHost) {
  TestCluster::Options options = Shards(2, 2);
  options.step_seconds = 1.0;
  TestCluster cluster(options);
  cluster.AddWorker({.name = "honest"});
  Stranger stranger(cluster, cluster.token());
  ASSERT_TRUE(stranger.Join("liar").ok());
  {
    grpc::ClientContext context;
    stranger.Prepare(context, 60);
    const auto stream = stranger.stub().Exchange(&context);
    const std::jthread lying([&] {
      stranger.Pretend([&](const proto::Order& order) {
        if (!order.has_train()) return;
        proto::Part part;
        part.set_generation(order.generation());
        part.set_step(order.step());
        part.set_array(proto::ARRAY_UPDATE);
        for (const proto::Range& range : order.train().part().open()) {
          part.set_samples(part.samples() + range.end() - range.begin());
        }
        const Parts parts(kParameters, 0, 2);
        for (int i = 0; i < parts.count() && parts.RangeOf(i) == 0; ++i) {
          part.set_offset(parts[i].offset);
          const auto floats = static_cast<std::size_t>(parts[i].size);
          part.set_floats(std::string(floats * sizeof(float), '\0'));
          stream->Write(part);
        }
      });
    });
    const auto report = cluster.Run();
    ASSERT_TRUE(report.ok()) << report.status().ToString();
    ExpectSame(report->state, OnOneDevice({}));
    context.TryCancel();
    (void)stream->Finish();
  }
  EXPECT_EQ(cluster.CountTold("lost: liar"), 1);
  EXPECT_EQ(cluster.CountTold("at the shard of honest: alive, but its gradient has not come"), 1);
  EXPECT_EQ(cluster.CountTold("lost: honest"), 0);
}

TEST(ShardStrangerTest, WithoutTheKeyNobodyComesIn) {
  TestCluster::Options options = Shards(2, 2);
  options.step_seconds = 1.0;  // until the one that does nothing is sent away
  TestCluster cluster(options);
  cluster.AddWorker({.name = "honest"});
  Stranger stranger(cluster, cluster.token());
  ASSERT_TRUE(stranger.Join("idle").ok());
  std::vector<grpc::Status> ended;
  {
    const std::jthread knocking([&] {
      stranger.Pretend([&](const proto::Order& order) {
        if (!order.has_shards() || order.shards().shards_size() == 0 || !ended.empty()) return;
        const proto::Shards::Shard& shard = order.shards().shards(0);
        ended.push_back(SendTo(shard, "idle", std::string(64, '0'), {}));
        ended.push_back(SendTo(shard, "nobody", shard.key(), {}));
        // What opens the coordinator does not open a shard.
        ended.push_back(SendTo(shard, "idle", stranger.credential_, {}));
        // Whom the coordinator has not named is not trusted either.
        proto::Shards::Shard other = shard;
        other.set_certificate(MakeIdentity()->certificate_pem);
        ended.push_back(SendTo(other, "idle", shard.key(), {}));
      });
    });
    const auto report = cluster.Run();
    ASSERT_TRUE(report.ok()) << report.status().ToString();
    ExpectSame(report->state, OnOneDevice({}));
  }
  ASSERT_EQ(ended.size(), 4U);
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(ended[static_cast<std::size_t>(i)].error_code(), grpc::StatusCode::UNAUTHENTICATED);
  }
  EXPECT_EQ(ended[3].error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_GE(cluster.CountTold("at the shard of honest: a key that is not valid"), 1);
}

TEST(ShardedTest, AModelThatCannotBeCutIsRefusedWithTheReason) {
  graph::GraphBuilder net("tiny", {1, 1, 1});
  const auto graph =
      std::move(net)
          .Build(net.FullyConnected("out", net.Flatten("flat", net.input()), {.out_features = 2}))
          .value();
  EXPECT_TRUE(CheckShards(4, graph, false, false).ok());
  EXPECT_FALSE(CheckShards(5, graph, false, false).ok()) << "more shards than parameters";
  EXPECT_FALSE(CheckShards(2, graph, /*gloo=*/true, false).ok());
  EXPECT_FALSE(CheckShards(2, graph, false, /*merged_head=*/true).ok());
  EXPECT_TRUE(CheckShards(1, graph, true, true).ok());
}

}  // namespace
}  // namespace motley::cluster
