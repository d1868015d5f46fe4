#include "motley/cluster/worker_data.h"

#include <gtest/gtest.h>

#include <memory>

#include "motley/cluster/job.h"
#include "motley/data/memory_dataset.h"
#include "motley/data/open.h"
#include "motley/graph/graph.h"

namespace motley::cluster {
namespace {

constexpr std::int64_t kSamples = 8, kBatch = 4;

std::shared_ptr<const data::Dataset> SmallSet() {
  data::MemoryDataset::Parts parts;
  parts.shape = {1, 2, 2};
  parts.classes = {"a", "b"};
  parts.labels.assign(kSamples, 1);
  parts.bytes.assign(kSamples * 4, 'x');
  return std::make_shared<data::MemoryDataset>(std::move(parts));
}

class WorkerDataTest : public ::testing::Test {
 protected:
  WorkerDataTest() {
    graph::GraphBuilder net("small", {1, 2, 2});
    const auto flat = net.Flatten("flat", net.input());
    const graph::Graph graph =
        std::move(net).Build(net.FullyConnected("out", flat, {.out_features = 2})).value();
    const data::DataPair sets{SmallSet(), SmallSet()};
    const proto::Job job = MakeJob({.batch = kBatch}, graph, sets);
    data_ = WorkerData::Open({}, job, sets, nullptr, "worker", nullptr).value();
  }

  static void AddRange(proto::Train::Part& part, std::int64_t begin, std::int64_t end) {
    proto::Range& range = *part.add_open();
    range.set_begin(begin);
    range.set_end(end);
  }

  std::unique_ptr<WorkerData> data_;
};

TEST_F(WorkerDataTest, TakesTheRangesOfAShare) {
  proto::Train::Part part;
  AddRange(part, 0, 1);
  AddRange(part, 5, 8);
  const auto batch = data_->Take(part, {});
  ASSERT_TRUE(batch.ok()) << batch.status().ToString();
  EXPECT_EQ(batch->size(), kBatch);
}

// Ranges that fit one by one: a few bytes of an order must not become any number of images.
TEST_F(WorkerDataTest, RefusesAShareBeyondTheBatch) {
  proto::Train::Part part;
  AddRange(part, 0, 4);
  AddRange(part, 4, 5);
  const auto batch = data_->Take(part, {});
  EXPECT_EQ(batch.status().code(), base::Code::kInvalidInput);
}

TEST_F(WorkerDataTest, RefusesSamplesThatAreNotThere) {
  proto::Train::Part part;
  AddRange(part, kSamples - 1, kSamples + 1);
  EXPECT_EQ(data_->Take(part, {}).status().code(), base::Code::kInvalidInput);
}

class OwnCopyTest : public ::testing::Test {
 protected:
  // A job on these sets, whose name of them means nothing on this machine.
  static proto::Job JobOn(const data::DataPair& sets) {
    graph::GraphBuilder net("small",
                            {sets.train->channels(), sets.train->height(), sets.train->width()});
    const auto flat = net.Flatten("flat", net.input());
    const auto classes = static_cast<std::int64_t>(sets.train->classes().size());
    const graph::Graph graph =
        std::move(net).Build(net.FullyConnected("out", flat, {.out_features = classes})).value();
    return MakeJob({.batch = kBatch}, graph, sets);
  }
  WorkerOptions Options(const std::string& data) {
    WorkerOptions options;
    options.data = data;
    options.on_note = [this](const std::string& note) { notes_ += note; };
    return options;
  }
  std::string notes_;
};

TEST_F(OwnCopyTest, IsUsedWhenItsContentIsTheJobs) {
  const data::DataPair sets = data::Open("glyphs", "", {}).value();
  proto::Job job = JobOn(sets);
  const data::DataPair given = FindOwnCopy(Options("glyphs"), job);
  ASSERT_NE(given.train, nullptr) << notes_;
  EXPECT_EQ(given.train->ContentHash(), sets.train->ContentHash());
  EXPECT_EQ(given.test->ContentHash(), sets.test->ContentHash());
  EXPECT_EQ(notes_, "");
  EXPECT_EQ(FindOwnCopy(Options(""), job).train, nullptr) << "the job does not say where";
  job.set_data("glyphs");
  EXPECT_NE(FindOwnCopy(Options(""), job).train, nullptr);
  EXPECT_EQ(notes_, "");
}

TEST_F(OwnCopyTest, IsNotUsedWhenItsContentIsAnother) {
  const data::DataPair glyphs = data::Open("glyphs", "", {}).value();
  proto::Job job = JobOn(glyphs);
  job.mutable_test()->set_sha256(job.train().sha256());
  EXPECT_EQ(FindOwnCopy(Options("glyphs"), job).train, nullptr);
  EXPECT_NE(notes_.find("samples come from the coordinator"), std::string::npos) << notes_;
}

TEST_F(OwnCopyTest, IsMissedAloudOnlyWhenItWasPromised) {
  proto::Job job = JobOn({SmallSet(), SmallSet()});
  job.set_data("idx:/nowhere");
  EXPECT_EQ(FindOwnCopy(Options(""), job).train, nullptr);
  EXPECT_EQ(notes_, "");
  EXPECT_EQ(FindOwnCopy(Options("idx:/nowhere"), job).train, nullptr);
  EXPECT_NE(notes_.find("no own copy of the data"), std::string::npos) << notes_;
}

}  // namespace
}  // namespace motley::cluster
