#include "motley/cluster/worker_data.h"

#include <gtest/gtest.h>

#include <memory>

#include "motley/cluster/job.h"
#include "motley/data/memory_dataset.h"
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

}  // namespace
}  // namespace motley::cluster
