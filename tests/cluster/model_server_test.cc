#include "motley/cluster/model_server.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <map>
#include <memory>
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

// Two of three ranges at servers of their own, which pass their sums on.
class RangesTest : public ModelServerTest {
 protected:
  RangesTest()
      : whole_(graph_, Random(graph_.parameter_count(), 1), Random(graph_.parameter_count(), 2),
               std::vector<float>(static_cast<std::size_t>(graph_.buffer_count()), 1.0F),
               /*update_threads=*/1, /*ranges=*/3) {
    for (const int range : {1, 2}) {
      const Parts::Part& cut = whole_.parts().range(range);
      const auto slice = [&](std::span<const float> all) {
        const auto piece =
            all.subspan(static_cast<std::size_t>(cut.offset), static_cast<std::size_t>(cut.size));
        return std::vector<float>(piece.begin(), piece.end());
      };
      shards_[range] =
          std::make_unique<ModelServer>(slice(whole_.weights()), slice(whole_.velocity()));
    }
  }
  ModelServer::Step StepOf(bool alone) const {
    ModelServer::Step step{.key = key_,
                           .contributors = {{"a", 6}, {"b", 4}},
                           .samples = 10,
                           .sgd = {.learning_rate = 0.1F, .momentum = 0.9F},
                           .on_part = {},
                           .on_complete = {}};
    if (alone) step.on_part = [](int, const ModelArray&) {};
    return step;
  }
  void BeginAll(bool alone) {
    ModelServer::Step step = StepOf(alone);
    step.hosts = {"", "h1", "h2"};
    whole_.Begin(0, std::move(step));
    for (const auto& [range, shard] : shards_) {
      ModelServer::Step of_shard = StepOf(alone);
      of_shard.on_sum = [this, range = range, model = shard.get()](
                            int index, std::span<const float> sum, const auto& of) {
        const std::int64_t base = whole_.parts().range(range).offset;
        EXPECT_TRUE(*whole_.AddSum("h" + std::to_string(range), key_,
                                   base + model->parts()[index].offset, of,
                                   std::string(BytesOf(sum))));
      };
      shard->Begin(0, std::move(of_shard));
    }
  }
  // Every part to where it belongs.
  void Contribute(const std::string& name, std::int64_t samples, const std::vector<float>& update) {
    for (int i = 0; i < whole_.parts().count(); ++i) {
      const Parts::Part& part = whole_.parts()[i];
      const int range = whole_.parts().RangeOf(i);
      ModelServer& server = range == 0 ? whole_ : *shards_[range];
      const std::int64_t base = range == 0 ? 0 : whole_.parts().range(range).offset;
      const auto floats = std::span(update).subspan(static_cast<std::size_t>(part.offset),
                                                    static_cast<std::size_t>(part.size));
      EXPECT_TRUE(
          *server.Add(name, key_, part.offset - base, samples, std::string(BytesOf(floats))));
    }
  }

  const StepKey key_{1, 0};
  ModelServer whole_;
  std::map<int, std::unique_ptr<ModelServer>> shards_;
};

TEST_F(RangesTest, GiveTheBitsOfOneServerHereAndThere) {
  for (const bool alone : {true, false}) {
    const auto a = Random(floats(), 3), b = Random(floats(), 4);
    server_.Begin(0, StepOf(alone));
    BeginAll(alone);
    EXPECT_EQ(whole_.Owing(0), (std::vector<std::string>{"h1", "h2"}));
    told_ = {{"a", 6}, {"b", 4}};
    for (int part = 0; part < server_.parts().count(); ++part) {
      ASSERT_TRUE(*Add("a", a, part) && *Add("b", b, part));
    }
    Contribute("b", 4, b);
    EXPECT_TRUE(whole_.HasAll("b"));
    EXPECT_FALSE(whole_.Complete(0));
    Contribute("a", 6, a);
    ASSERT_TRUE(whole_.Complete(0));
    EXPECT_TRUE(whole_.Owing(0).empty());
    EXPECT_EQ(whole_.Contradicting(0), "");
    const auto norms = whole_.norms(0), expected = server_.norms(0);
    EXPECT_NEAR(norms.total_squared, expected.total_squared, 1e-6 * expected.total_squared);
    for (const std::size_t i : {0U, 1U}) {
      EXPECT_EQ(norms.contributors[i].samples, expected.contributors[i].samples);
      EXPECT_NEAR(norms.contributors[i].squared, expected.contributors[i].squared,
                  1e-6 * expected.contributors[i].squared);
    }
    for (ModelServer* server : {&server_, &whole_, shards_[1].get(), shards_[2].get()}) {
      EXPECT_EQ(server->Prepare(0), "");
      server->Commit(0);
    }
    EXPECT_EQ(*whole_.model(), *server_.model());
    EXPECT_EQ(whole_.velocity(), server_.velocity());
    for (const auto& [range, shard] : shards_) {
      const auto begin = static_cast<std::ptrdiff_t>(whole_.parts().range(range).offset);
      EXPECT_TRUE(std::equal(shard->model()->begin(), shard->model()->end(),
                             whole_.model()->begin() + begin));
      EXPECT_TRUE(std::equal(shard->velocity().begin(), shard->velocity().end(),
                             whole_.velocity().begin() + begin));
    }
  }
}

TEST_F(RangesTest, RefuseSumsThatAHostMayNotSend) {
  BeginAll(/*alone=*/false);
  const Parts& parts = whole_.parts();
  int first = 0;
  while (parts.RangeOf(first) != 1) ++first;
  const Parts::Part& part = parts[first];
  const std::vector<plan::GradientNorm> of = {{6, 1.0}, {4, 1.0}};
  const std::string zeros(static_cast<std::size_t>(part.size) * sizeof(float), '\0');
  const auto refused = [&](const std::string& host, const StepKey& key, std::int64_t offset,
                           const std::vector<plan::GradientNorm>& norms, const std::string& bytes) {
    return !whole_.AddSum(host, key, offset, norms, bytes).ok();
  };
  EXPECT_TRUE(refused("h2", key_, part.offset, of, zeros)) << "of another host";
  EXPECT_TRUE(refused("a", key_, part.offset, of, zeros)) << "of none";
  EXPECT_TRUE(refused("", key_, 0, of, zeros)) << "of a range that is summed here";
  EXPECT_TRUE(refused("h1", {2, 0}, part.offset, of, zeros)) << "of a step that has not begun";
  EXPECT_TRUE(refused("h1", key_, part.offset + 1, of, zeros)) << "no part begins there";
  EXPECT_TRUE(refused("h1", key_, part.offset, of, zeros.substr(4))) << "too short";
  EXPECT_TRUE(refused("h1", key_, part.offset, {{6, 1.0}}, zeros)) << "of one instead of two";
  EXPECT_TRUE(refused("h1", key_, part.offset, {{7, 1.0}, {4, 1.0}}, zeros)) << "too many samples";
  EXPECT_TRUE(refused("h1", key_, part.offset, {{6, -1.0}, {4, 1.0}}, zeros));
  std::string infinite = zeros;
  infinite.replace(8, 4, std::string("\x00\x00\x80\x7f", 4));
  EXPECT_TRUE(refused("h1", key_, part.offset, of, infinite));
  EXPECT_FALSE(whole_.Add("a", key_, part.offset, 6, zeros).ok()) << "a member at the wrong server";
  EXPECT_TRUE(*whole_.AddSum("h1", key_, part.offset, of, zeros));
  EXPECT_TRUE(refused("h1", key_, part.offset, of, zeros)) << "twice";
  whole_.Discard(0);
  EXPECT_FALSE(*whole_.AddSum("h1", key_, part.offset, of, zeros)) << "what is late is no crime";
}

TEST_F(RangesTest, TellWhoSaidAnotherNumberElsewhere) {
  ModelServer::Step step = StepOf(/*alone=*/false);
  step.hosts = {"", "h1", "h2"};
  whole_.Begin(0, std::move(step));
  for (int i = 0; i < whole_.parts().count(); ++i) {
    const Parts::Part& part = whole_.parts()[i];
    const std::string zeros(static_cast<std::size_t>(part.size) * sizeof(float), '\0');
    const int range = whole_.parts().RangeOf(i);
    if (range > 0) {
      EXPECT_TRUE(*whole_.AddSum("h" + std::to_string(range), key_, part.offset,
                                 {{6, 0.0}, {range == 2 ? 3 : 4, 0.0}}, zeros));
    } else {
      EXPECT_TRUE(*whole_.Add("a", key_, part.offset, 6, zeros) &&
                  *whole_.Add("b", key_, part.offset, 4, zeros));
    }
  }
  ASSERT_TRUE(whole_.Complete(0));
  EXPECT_EQ(whole_.Contradicting(0), "b");
}

TEST(PartsTest, NoPartCrossesTheEndOfARange) {
  const Parts parts(Parts::kFloats * 3 + 1, 7, 3);
  ASSERT_EQ(parts.ranges(), 3);
  std::int64_t at = 0;
  for (int range = 0; range < 3; ++range) {
    EXPECT_EQ(parts.range(range).offset, at);
    at += parts.range(range).size;
  }
  EXPECT_EQ(at, Parts::kFloats * 3 + 1);
  at = 0;
  for (int i = 0; i < parts.count(); ++i) {
    EXPECT_EQ(parts[i].offset, at);
    at += parts[i].size;
    EXPECT_LE(parts[i].size, Parts::kFloats);
    EXPECT_EQ(parts.Holding(at - 1), i);
    if (i >= parts.parameter_parts()) {
      EXPECT_EQ(parts.RangeOf(i), 0) << "statistics stay with the first";
      continue;
    }
    const Parts::Part& range = parts.range(parts.RangeOf(i));
    EXPECT_TRUE(parts[i].offset >= range.offset && at <= range.offset + range.size);
  }
}

constexpr std::int64_t kSmall = std::int64_t{1} << 14;  // the parts of a small array

TEST(PartsTest, NoPartHasSomeOfBothArrays) {
  const Parts parts(kSmall * 2 + 5, 7);
  ASSERT_EQ(parts.count(), 4);
  EXPECT_EQ(parts.parameter_parts(), 3);
  EXPECT_EQ(parts[2].size, 5);
  EXPECT_EQ(parts[3].offset, kSmall * 2 + 5);
  EXPECT_EQ(parts.Holding(kSmall * 2 + 6), 3);
  EXPECT_TRUE(parts.Find(kSmall, kSmall).ok());
  EXPECT_FALSE(parts.Find(kSmall, 5).ok());
}

TEST(PartsTest, AnArrayHasAboutSixteenUnlessTheseAreTooSmallOrTooLarge) {
  EXPECT_EQ(Parts(100, 0).count(), 1);
  EXPECT_EQ(Parts(431'080, 0).count(), 14);
  EXPECT_EQ(Parts(61'100'840, 0)[0].size, Parts::kFloats);
}

TEST(PartProgressTest, TellsEachPartOnceWhenItsLastPieceCame) {
  const Parts parts(kSmall + 10, 3);
  PartProgress progress(parts);
  std::vector<int> completed;
  progress.Add(kSmall - 5, 10, completed);
  EXPECT_TRUE(completed.empty());
  progress.Add(0, kSmall - 5, completed);
  EXPECT_EQ(completed, std::vector<int>{0});
  progress.Add(kSmall + 5, 8, completed);
  EXPECT_EQ(completed, (std::vector<int>{0, 1, 2}));
}

}  // namespace
}  // namespace motley::cluster
