#include "motley/cluster/model_server.h"

#include <gtest/gtest.h>

#include <limits>
#include <map>
#include <thread>

#include "motley/base/rng.h"
#include "motley/graph/graph.h"
#include "motley/run/update.h"

namespace motley::cluster {
namespace {

// Larger than a part, with batch norm, in a few milliseconds.
graph::Graph WideGraph() {
  graph::GraphBuilder builder("wide", {4, 5, 5});
  auto norm = builder.BatchNorm("norm", builder.input());
  auto wide = builder.FullyConnected("wide", builder.Flatten("flat", norm), {.out_features = 4000});
  return std::move(builder).Build(builder.FullyConnected("out", wide, {.out_features = 3})).value();
}

std::vector<float> Random(std::int64_t size, std::uint64_t key) {
  base::Rng rng(key);
  std::vector<float> values(static_cast<std::size_t>(size));
  for (float& value : values) value = static_cast<float>(rng.Normal());
  return values;
}

class ModelServerTest : public testing::Test {
 protected:
  ModelServerTest() : graph_(WideGraph()), server_(MakeServer()) {}

  ModelServer MakeServer() {
    return {graph_, Random(graph_.parameter_count(), 1), Random(graph_.parameter_count(), 2),
            std::vector<float>(static_cast<std::size_t>(graph_.buffer_count()), 1.0F)};
  }
  // Ten samples, as equal as possible.
  void Begin(const std::vector<std::string>& names, StepKey key = {1, 0}) {
    std::vector<ModelServer::Step::Contributor> contributors;
    told_.clear();
    for (const std::string& name : names) {
      const auto count = static_cast<std::int64_t>(names.size());
      const std::int64_t samples = 10 / count + (told_.empty() ? 10 % count : 0);
      contributors.push_back({name, samples});
      told_[name] = samples;
    }
    server_.Begin(0, {.key = key,
                      .contributors = std::move(contributors),
                      .samples = 10,
                      .sgd = {.learning_rate = 0.1F, .momentum = 0.9F},
                      .on_part = [this](int index, const ModelArray&) { ++announced_[index]; },
                      .on_complete = {}});
  }
  base::Result<bool> Add(const std::string& who, const std::vector<float>& update, int part,
                         StepKey key = {1, 0}) {
    const Parts::Part& place = server_.parts()[part];
    const auto floats = std::span(update).subspan(static_cast<std::size_t>(place.offset),
                                                  static_cast<std::size_t>(place.size));
    return server_.Add(who, key, place.offset, told_[who], std::string(BytesOf(floats)));
  }
  std::int64_t floats() const { return server_.parts().floats(); }

  const graph::Graph graph_;
  ModelServer server_;
  std::map<int, int> announced_;
  std::map<std::string, std::int64_t> told_;  // what a contributor says that it has done
};

TEST_F(ModelServerTest, MakesTheUpdateOfOneMachineFromTheSumOfSeveral) {
  const auto a = Random(floats(), 3), b = Random(floats(), 4), c = Random(floats(), 5);
  ASSERT_GT(server_.parts().parameter_parts(), 1);
  ModelServer plain = MakeServer();
  std::vector<float> model = *plain.model(), velocity = plain.velocity();
  std::vector<float> sum(a.size());
  for (std::size_t i = 0; i < sum.size(); ++i) sum[i] = (a[i] + b[i]) + c[i];
  const auto parameters = static_cast<std::size_t>(graph_.parameter_count());
  optim::SgdUpdate({.learning_rate = 0.1F, .momentum = 0.9F}, std::span(sum).first(parameters), 10,
                   std::span(model).first(parameters), velocity);
  run::UpdateBuffers(graph_, std::span(sum).subspan(parameters), 10,
                     std::span(model).subspan(parameters));

  Begin({"a", "b", "c"});
  std::vector<std::thread> threads;
  for (const auto& [name, update] : {std::pair{"c", &c}, std::pair{"a", &a}, std::pair{"b", &b}}) {
    threads.emplace_back([this, name = std::string(name), update = update] {
      for (int part = server_.parts().count(); part-- > 0;) {
        EXPECT_TRUE(Add(name, *update, part).ok());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  ASSERT_TRUE(server_.Complete(0));
  EXPECT_NE(*server_.model(), model) << "nothing may change before the commit";
  EXPECT_EQ(server_.Prepare(0), "");
  server_.Commit(0);
  EXPECT_EQ(*server_.model(), model) << "bit for bit, whoever came first";
  EXPECT_EQ(server_.velocity(), velocity);
  EXPECT_EQ(static_cast<int>(announced_.size()), server_.parts().count());
}

TEST_F(ModelServerTest, AStepWithFewerSamplesIsThatOfASmallerBatchWithALowerRate) {
  const auto a = Random(floats(), 3), b = Random(floats(), 4);
  ModelServer plain = MakeServer();
  std::vector<float> model = *plain.model(), velocity = plain.velocity();
  std::vector<float> sum(a.size());
  for (std::size_t i = 0; i < sum.size(); ++i) sum[i] = a[i] + b[i];
  const auto parameters = static_cast<std::size_t>(graph_.parameter_count());
  optim::SgdUpdate({.learning_rate = 0.1F * 7.0F / 10.0F, .momentum = 0.9F},
                   std::span(sum).first(parameters), 7, std::span(model).first(parameters),
                   velocity);
  run::UpdateBuffers(graph_, std::span(sum).subspan(parameters), 7,
                     std::span(model).subspan(parameters));
  Begin({"a", "b"});
  told_["b"] = 2;
  for (int part = 0; part < server_.parts().count(); ++part) {
    ASSERT_TRUE(Add("b", b, part).ok());
    ASSERT_TRUE(Add("a", a, part).ok());
  }
  EXPECT_EQ(server_.SamplesOf("b"), 2);
  ASSERT_TRUE(server_.Complete(0));
  EXPECT_EQ(server_.Prepare(0), "");
  server_.Commit(0);
  EXPECT_EQ(*server_.model(), model);
  EXPECT_EQ(server_.velocity(), velocity);
}

TEST_F(ModelServerTest, AppliesTheUpdatesOfSeveralGroupsWholeAndInTurn) {
  const optim::SgdOptions sgd{.learning_rate = 0.1F, .momentum = 0.9F};
  const auto a = Random(floats(), 3), b = Random(floats(), 4);
  std::vector<float> model = *server_.model(), velocity = server_.velocity();
  const auto parameters = static_cast<std::size_t>(graph_.parameter_count());
  for (const auto& sum : {b, a}) {
    optim::SgdUpdate(sgd, std::span(sum).first(parameters), 5, std::span(model).first(parameters),
                     velocity);
    run::UpdateBuffers(graph_, std::span(sum).subspan(parameters), 5,
                       std::span(model).subspan(parameters));
  }
  const auto begin = [&](int group, const char* name, StepKey key) {
    told_[name] = 5;
    server_.Begin(group, {.key = key,
                          .contributors = {{name, 5}},
                          .samples = 5,
                          .sgd = sgd,
                          .on_part = {},
                          .on_complete = {}});
  };
  begin(0, "a", {1, 0});
  begin(1, "b", {2, 0});
  EXPECT_FALSE(Add("a", a, 0, {2, 0}).ok()) << "of another group";
  for (int part = 0; part < server_.parts().count(); ++part) {
    ASSERT_TRUE(*Add("a", a, part, {1, 0}));
    ASSERT_TRUE(*Add("b", b, part, {2, 0}));
  }
  const ModelArray before = server_.model();
  const std::vector<float> copy = *before;
  for (const int group : {1, 0}) {
    ASSERT_TRUE(server_.Complete(group));
    EXPECT_EQ(server_.Prepare(group), "");
    server_.Commit(group);
  }
  EXPECT_EQ(*server_.model(), model);
  EXPECT_EQ(server_.velocity(), velocity);
  EXPECT_EQ(*before, copy) << "who reads the old model goes on reading that";
}

TEST_F(ModelServerTest, RefusesCountsThatCannotBeTrue) {
  const auto update = Random(floats(), 3);
  Begin({"a", "b"});
  told_["a"] = 6;
  EXPECT_FALSE(Add("a", update, 0).ok()) << "more than it was told to do";
  told_["a"] = -1;
  EXPECT_FALSE(Add("a", update, 0).ok());
  told_["a"] = 3;
  EXPECT_TRUE(Add("a", update, 0).ok());
  told_["a"] = 4;
  EXPECT_FALSE(Add("a", update, 1).ok()) << "another number than before";
}

TEST_F(ModelServerTest, ForgetsAStepThatIsDiscarded) {
  const std::vector<float> before = *server_.model();
  const auto update = Random(floats(), 3);
  Begin({"a", "b"});
  for (int part = 0; part < server_.parts().count(); ++part)
    ASSERT_TRUE(Add("a", update, part).ok());
  ASSERT_TRUE(Add("b", update, 0).ok());
  EXPECT_TRUE(server_.HasAll("a"));
  EXPECT_FALSE(server_.HasAll("b"));
  server_.Discard(0);
  EXPECT_EQ(*server_.model(), before);

  Begin({"a"}, {2, 0});
  EXPECT_FALSE(*Add("b", update, 1)) << "what is late is no crime";
  for (int part = 0; part < server_.parts().count(); ++part) {
    ASSERT_TRUE(*Add("a", update, part, {2, 0}));
  }
  EXPECT_TRUE(server_.Complete(0));
}

TEST_F(ModelServerTest, RefusesWhatAContributorMayNotSend) {
  auto update = Random(floats(), 3);
  Begin({"a", "b"});
  ASSERT_TRUE(Add("a", update, 0).ok());
  EXPECT_FALSE(Add("a", update, 0).ok()) << "twice";
  EXPECT_FALSE(Add("stranger", update, 0).ok());
  EXPECT_FALSE(Add("a", update, 1, {1, 5}).ok()) << "a step that has not begun";
  EXPECT_FALSE(server_.Add("a", {1, 0}, 1, 5, std::string(400, 'x')).ok())
      << "no part begins there";
  EXPECT_FALSE(server_.Add("a", {1, 0}, -4, 5, std::string(400, 'x')).ok());
  EXPECT_FALSE(server_.Add("a", {1, 0}, floats() + 1, 5, std::string(4, 'x')).ok());
  const std::int64_t second = server_.parts()[1].offset;
  EXPECT_FALSE(server_.Add("a", {1, 0}, second, 5, std::string(8, '\0')).ok()) << "too short";
  EXPECT_FALSE(server_.Add("a", {1, 0}, second, 5, std::string(7, '\0')).ok()) << "half a float";
  update[static_cast<std::size_t>(second) + 9] = std::numeric_limits<float>::infinity();
  EXPECT_FALSE(Add("a", update, 1).ok());
}

TEST_F(ModelServerTest, TellsWhenAWeightIsNoNumberAnyMore) {
  // Finite itself, but times the learning rate beyond what a float holds.
  const std::vector<float> update(static_cast<std::size_t>(floats()), 3e38F);
  server_.Begin(0, {.key = {1, 0},
                    .contributors = {{"a", 1}},
                    .samples = 1,
                    .sgd = {.learning_rate = 10.0F},
                    .on_part = {},
                    .on_complete = {}});
  told_["a"] = 1;
  for (int part = 0; part < server_.parts().count(); ++part) {
    ASSERT_TRUE(Add("a", update, part).ok());
  }
  ASSERT_TRUE(server_.Complete(0));
  EXPECT_EQ(server_.Prepare(0), "a weight");
}

TEST(PartsTest, NoPartHasSomeOfBothArrays) {
  const Parts parts(Parts::kFloats * 2 + 5, 7);
  ASSERT_EQ(parts.count(), 4);
  EXPECT_EQ(parts.parameter_parts(), 3);
  EXPECT_EQ(parts[2].size, 5);
  EXPECT_EQ(parts[3].offset, Parts::kFloats * 2 + 5);
  EXPECT_EQ(parts.Holding(Parts::kFloats * 2 + 6), 3);
  EXPECT_TRUE(parts.Find(Parts::kFloats, Parts::kFloats).ok());
  EXPECT_FALSE(parts.Find(Parts::kFloats, 5).ok());
}

TEST(PartProgressTest, TellsEachPartOnceWhenItsLastPieceCame) {
  const Parts parts(Parts::kFloats + 10, 3);
  PartProgress progress(parts);
  std::vector<int> completed;
  progress.Add(Parts::kFloats - 5, 10, completed);
  EXPECT_TRUE(completed.empty());
  progress.Add(0, Parts::kFloats - 5, completed);
  EXPECT_EQ(completed, std::vector<int>{0});
  progress.Add(Parts::kFloats + 5, 8, completed);
  EXPECT_EQ(completed, (std::vector<int>{0, 1, 2}));
}

}  // namespace
}  // namespace motley::cluster
