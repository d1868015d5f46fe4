// A merged head: devices compute the body, the coordinator the fully connected layers.
#include <gtest/gtest.h>

#include <chrono>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "motley/cluster/head_server.h"
#include "motley/engine/native/native_device.h"
#include "motley/graph/zoo.h"
#include "tests/cluster/cluster.h"

namespace motley::cluster {
namespace {

// What the small net's body puts out for a sample, and what its body has of weights.
constexpr std::int64_t kFeatures = 16 * 7 * 7, kBody = 8 * 9 + 8 + 16 * 8 * 9 + 16;

TestCluster::Options MergedHead(int workers, const SmallJob& job = {}) {
  TestCluster::Options options{.job = job, .merged_head = true, .min_workers = workers};
  options.shares = {3, 1, 0, 5, 2, 7, 1, 4};
  return options;
}

class MergedHeadTest : public testing::TestWithParam<int> {};

TEST_P(MergedHeadTest, GivesTheWeightsOfOneDeviceForUnequalShares) {
  TestCluster cluster(MergedHead(GetParam()));
  for (int i = 0; i < GetParam(); ++i) cluster.AddWorker();
  const auto report = cluster.Run();
  ASSERT_TRUE(report.ok()) << report.status().ToString();
  ExpectSame(report->state, OnOneDevice({}));
  EXPECT_EQ(cluster.CountTold("lost: "), 0);
}

INSTANTIATE_TEST_SUITE_P(Workers, MergedHeadTest, testing::Values(1, 3, 8));

TEST(MergedHeadTest, MovesActivationsInsteadOfWeights) {
  TestCluster cluster(MergedHead(2));
  for (int i = 0; i < 2; ++i) cluster.AddWorker();
  const auto report = cluster.Run();
  ASSERT_TRUE(report.ok()) << report.status().ToString();
  const telemetry::BytesSent traffic = cluster.coordinator().traffic();
  const auto near = [](std::int64_t bytes, std::int64_t floats) {
    return bytes >= 4 * floats && bytes < 4 * floats * 11 / 10;
  };
  EXPECT_TRUE(near(traffic.activations, 2 * 630 * kFeatures)) << traffic.activations;
  EXPECT_TRUE(near(traffic.gradient, 20 * 2 * kBody)) << traffic.gradient;
  // A body for each of 20 steps and at the beginning, and the head for the evaluation.
  const std::int64_t head = kFeatures * 400 + 400 + 400 * 10 + 10;
  EXPECT_TRUE(near(traffic.weights, 2 * (21 * kBody + head))) << traffic.weights;
}

TEST(MergedHeadTest, IsThereForAllGroups) {
  const SmallJob job{.epochs = 6};
  TestCluster::Options options = MergedHead(4, job);
  options.shares = {1};
  options.groups_at = [](std::int64_t) { return 4; };
  options.momentum = 0.9;
  TestCluster cluster(options);
  for (int i = 0; i < 3; ++i) cluster.AddWorker();
  cluster.AddWorker({.name = "frail", .make_device = DeviceWith([](std::int64_t step) {
                                        return step == 9 ? base::Internal("smoke") : base::Status();
                                      })});
  const auto report = cluster.Run();
  ASSERT_TRUE(report.ok()) << report.status().ToString();
  EXPECT_EQ(report->state.samples, job.epochs * job.train) << "every sample once in every epoch";
  EXPECT_EQ(cluster.CountTold("lost: frail"), 1);
  EXPECT_LT(cluster.train_losses().back(), cluster.train_losses().front() - 0.1);
}

TEST(MergedHeadTest, AWorkerWithPrivateSamplesLearnsWhyItMayNotJoin) {
  TestCluster cluster(MergedHead(1));
  cluster.AddWorker({.name = "open"});
  cluster.AddWorker({.name = "secret", .private_data = "glyphs"});
  const auto report = cluster.Run();
  ASSERT_TRUE(report.ok()) << report.status().ToString();
  const auto& ended = cluster.Ended(1);
  ASSERT_FALSE(ended.ok());
  EXPECT_NE(ended.status().message().find("private samples"), std::string::npos);
}

TEST(MergedHeadTest, IsRefusedWithItsReason) {
  const auto refusal = [](const char* zoo, std::int64_t bn_batch, bool gloo) {
    const auto graph = graph::BuildZoo(zoo, {3, 64, 64}, 10).value();
    return SplitForMergedHead(graph, bn_batch, gloo).status().message();
  };
  EXPECT_NE(refusal("squeezenet", 0, false).find("no fully connected layer"), std::string::npos);
  EXPECT_NE(refusal("resnet18", 4, false).find("virtual batches"), std::string::npos);
  EXPECT_NE(refusal("resnet18", 0, true).find("no server for the head"), std::string::npos);
  EXPECT_EQ(refusal("resnet18", 0, false), "");
}

// --- The server by itself -----------------------------------------------------------------------

class HeadServerTest : public testing::Test {
 protected:
  static constexpr std::int64_t kIn = 6, kClasses = 3;

  HeadServerTest() {
    graph::GraphBuilder net("net", {1, 4, 4});
    auto at = net.Conv("conv", net.input(), {.out_channels = 6, .kernel_h = 4, .kernel_w = 4});
    at = net.FullyConnected("fc", net.Flatten("flat", at), {.out_features = kClasses});
    const graph::Model model = graph::InitialModel(std::move(net).Build(at).value(), 1);
    const graph::Halves halves = graph::Split(model.graph).value();
    weights_.assign(model.weights.begin() + halves.body.parameter_count(), model.weights.end());
    server_ = std::make_unique<HeadServer>(
        engine::native::MakeNativeDevice(std::make_shared<const graph::Graph>(halves.head),
                                         {.threads = 1})
            .value(),
        weights_, std::vector<float>(weights_.size()), 1, 1);
  }

  // Opens a step of two samples of "a" and one of "b".
  void Begin(int group, const StepKey& key) {
    HeadServer::Step step{.key = key, .contributors = {{"a", 2}, {"b", 1}}};
    step.batch.labels = {0, 1, 2};
    step.batch.ids = {7, 8, 9};
    step.sgd = {.learning_rate = 0.1F, .momentum = 0.9F};
    step.on_gradient = [this](const std::string& name, const ModelArray& gradient) {
      const std::lock_guard lock(mutex_);
      answers_[name] = static_cast<std::int64_t>(gradient->size());
    };
    server_->Begin(group, std::move(step));
  }

  base::Result<bool> Add(const std::string& name, const StepKey& key, std::int64_t offset,
                         std::vector<float> values) {
    return server_->Add(name, key, offset, std::string(BytesOf(values)));
  }
  base::Result<bool> AddAll(const StepKey& key) {
    MOTLEY_RETURN_IF_ERROR(Add("a", key, kIn, std::vector<float>(kIn, 0.5F)).status());
    MOTLEY_RETURN_IF_ERROR(Add("a", key, 0, std::vector<float>(kIn, -0.25F)).status());
    return Add("b", key, 0, std::vector<float>(kIn, 1.0F));
  }
  HeadServer::Outcome Await(int group) const {
    for (int i = 0; i < 2000 && !server_->outcome(group); ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    return server_->outcome(group)->value();
  }

  std::vector<float> weights_;
  std::mutex mutex_;
  std::map<std::string, std::int64_t> answers_;
  std::unique_ptr<HeadServer> server_;
};

TEST_F(HeadServerTest, AnswersEveryContributorWhenAllIsThere) {
  Begin(0, {1, 0});
  EXPECT_FALSE(server_->HasAll("a"));
  ASSERT_TRUE(AddAll({1, 0}).ok());
  const HeadServer::Outcome outcome = Await(0);
  EXPECT_GT(outcome.loss_sum, 0.0);
  EXPECT_TRUE(server_->HasAll("a"));
  {
    const std::lock_guard lock(mutex_);
    EXPECT_EQ(answers_, (std::map<std::string, std::int64_t>{{"a", 2 * kIn}, {"b", kIn}}));
  }
  server_->Commit(0);
  EXPECT_NE(server_->state().weights, weights_);
}

TEST_F(HeadServerTest, TakesBackAStepThatIsDiscarded) {
  Begin(0, {1, 0});
  ASSERT_TRUE(AddAll({1, 0}).ok());
  Await(0);
  server_->Discard(0);
  EXPECT_EQ(server_->state().weights, weights_);
  EXPECT_EQ(AddAll({1, 0}).value(), false) << "of a step that is over";
  // What comes next is as if it had never been.
  Begin(0, {2, 0});
  ASSERT_TRUE(AddAll({2, 0}).ok());
  const double loss = Await(0).loss_sum;
  server_->Commit(0);
  Begin(0, {2, 1});
  ASSERT_TRUE(AddAll({2, 1}).ok());
  EXPECT_LT(Await(0).loss_sum, loss);
}

TEST_F(HeadServerTest, ASecondGroupSeesTheUpdateOfTheFirst) {
  Begin(0, {1, 0});
  Begin(1, {2, 0});  // other contributors in a real run
  ASSERT_TRUE(AddAll({1, 0}).ok());
  Await(0);
  const std::vector<float> after = server_->state().weights;
  server_->Commit(0);
  ASSERT_TRUE(AddAll({2, 0}).ok());
  Await(1);
  server_->Discard(1);
  EXPECT_EQ(server_->state().weights, after);
}

TEST_F(HeadServerTest, RefusesWhatAContributorMayNotSend) {
  Begin(0, {2, 5});
  const auto code = [](const base::Result<bool>& added) { return added.status().code(); };
  const auto kBad = base::Code::kInvalidInput;
  const std::vector<float> sample(kIn, 1.0F);
  EXPECT_EQ(code(Add("c", {2, 5}, 0, sample)), kBad) << "somebody without a share";
  EXPECT_EQ(code(Add("a", {2, 6}, 0, sample)), kBad) << "a step that has not begun";
  EXPECT_EQ(code(Add("a", {2, 5}, -1, sample)), kBad);
  EXPECT_EQ(code(Add("a", {2, 5}, 2 * kIn, sample)), kBad);
  EXPECT_EQ(code(Add("b", {2, 5}, 0, std::vector<float>(2 * kIn))), kBad);
  EXPECT_EQ(code(Add("b", {2, 5}, 0, {})), kBad);
  EXPECT_EQ(code(Add("b", {2, 5}, 0, {std::numeric_limits<float>::infinity()})), kBad);
  EXPECT_EQ(code(server_->Add("b", {2, 5}, 0, "abc")), kBad);
  EXPECT_EQ(code(Add("b", {2, 5}, std::numeric_limits<std::int64_t>::max(), sample)), kBad);
  ASSERT_TRUE(Add("a", {2, 5}, kIn / 2, sample).value());
  for (const std::int64_t offset : {kIn / 2, std::int64_t{0}, kIn}) {
    EXPECT_EQ(code(Add("a", {2, 5}, offset, sample)), kBad) << "some of it twice: " << offset;
  }
  ASSERT_TRUE(Add("b", {2, 5}, 0, sample).value());
  EXPECT_EQ(code(Add("b", {2, 5}, 0, sample)), kBad) << "twice";
  EXPECT_FALSE(Add("a", {1, 5}, 0, sample).value()) << "late, which is nobody's fault";
}

}  // namespace
}  // namespace motley::cluster
