// The front desk of a coordinator by itself: no network, no other threads than a test's own.
#include "motley/cluster/desk.h"

#include <gtest/gtest.h>

#include <ctime>
#include <filesystem>
#include <limits>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "motley/cluster/job.h"
#include "motley/data/memory_dataset.h"
#include "motley/graph/graph.h"

namespace motley::cluster {
namespace {

graph::Graph SmallGraph() {
  graph::GraphBuilder net("small", {1, 2, 2});
  const auto flat = net.Flatten("flat", net.input());
  return std::move(net).Build(net.FullyConnected("out", flat, {.out_features = 2})).value();
}

data::DataPair SmallSets() {
  data::MemoryDataset::Parts parts;
  parts.shape = {1, 2, 2};
  parts.classes = {"a", "b"};
  parts.labels = {0, 1};
  parts.bytes.assign(2 * 4, 'x');
  const auto set = std::make_shared<data::MemoryDataset>(std::move(parts));
  return {set, set};
}

// How the members of a group find each other.
class RendezvousTest : public testing::Test {
 protected:
  RendezvousTest()
      : folder_((std::filesystem::temp_directory_path() / "motley-desk-XXXXXX").string()) {
    EXPECT_NE(::mkdtemp(folder_.data()), nullptr);
    tokens_ = std::make_unique<TokenStore>(std::filesystem::path(folder_) / "tokens.json",
                                           [] { return std::int64_t{std::time(nullptr)}; });
    token_ = tokens_->Issue(3600, "").value();
    options_.tokens = tokens_.get();
    options_.gloo = true;
    desk_ = std::make_unique<Desk>(options_, job_, sets_, model_, nullptr, clock_, hooks_);
    member_ = Join("member");
    other_ = Join("other");
    desk_->BeginGeneration(7, {member_});
  }
  ~RendezvousTest() override { std::filesystem::remove_all(folder_); }

  SessionPtr Join(const std::string& name) {
    Caller caller{"test", {{kTokenId, token_.id}, {kTokenSecret, token_.secret}}};
    proto::JoinRequest request;
    request.set_protocol(kProtocol);
    request.set_name(name);
    const proto::JoinReply joined = desk_->Join(caller, request).value();
    caller.metadata.emplace(kWorker, joined.worker());
    caller.metadata.emplace(kCredential, joined.credential());
    return desk_->Authenticate(caller).value();
  }

  static proto::RendezvousRequest Setting(const std::string& key, const std::string& value) {
    proto::RendezvousRequest request;
    request.set_generation(7);
    request.set_set_key(key);
    request.set_set_value(value);
    return request;
  }
  static proto::RendezvousRequest Waiting(const std::string& key, double seconds) {
    proto::RendezvousRequest request;
    request.set_generation(7);
    request.add_wait_keys(key);
    request.set_wait_seconds(seconds);
    return request;
  }
  base::Code Ask(const SessionPtr& who, const proto::RendezvousRequest& request) {
    return desk_->Rendezvous(who, request).status().code();
  }

  std::string folder_;
  const graph::Graph graph_ = SmallGraph();
  const data::DataPair sets_ = SmallSets();
  const proto::Job job_ = MakeJob({.batch = 2}, graph_, sets_);
  const base::RealClock clock_{};
  const CoordinatorHooks hooks_;
  CoordinatorOptions options_;
  std::unique_ptr<TokenStore> tokens_;
  JoinToken token_;
  ModelServer model_{graph_,
                     std::vector<float>(static_cast<std::size_t>(graph_.parameter_count())),
                     std::vector<float>(static_cast<std::size_t>(graph_.parameter_count())),
                     {}};
  std::unique_ptr<Desk> desk_;
  SessionPtr member_, other_;
};

TEST_F(RendezvousTest, IsForTheMembersOfTheGroup) {
  EXPECT_EQ(Ask(other_, Setting("0", "elsewhere")), base::Code::kInvalidInput);
  EXPECT_EQ(Ask(other_, Waiting("0", 0.0)), base::Code::kInvalidInput);
  EXPECT_EQ(Ask(member_, Setting("0", "here")), base::Code::kOk);
  const auto found = desk_->Rendezvous(member_, Waiting("0", 0.0)).value();
  ASSERT_TRUE(found.found());
  EXPECT_EQ(found.values(0), "here");
}

TEST_F(RendezvousTest, AKeyIsSetOnce) {
  ASSERT_EQ(Ask(member_, Setting("0", "here")), base::Code::kOk);
  EXPECT_EQ(Ask(member_, Setting("0", "elsewhere")), base::Code::kInvalidInput);
  EXPECT_EQ(desk_->Rendezvous(member_, Waiting("0", 0.0)).value().values(0), "here");
}

TEST_F(RendezvousTest, HoldsAFewMegabytesInAll) {
  const std::string large(60 << 10, 'x');
  int taken = 0;
  while (Ask(member_, Setting(std::to_string(taken), large)) == base::Code::kOk) {
    ASSERT_LT(++taken, 1000);
  }
  desk_->BeginGeneration(7, {member_});
  EXPECT_EQ(Ask(member_, Setting("0", large)), base::Code::kOk) << "the next group has room again";
}

TEST_F(RendezvousTest, ATimeThatIsNoNumberIsNoTime) {
  for (const double seconds : {std::numeric_limits<double>::quiet_NaN(), -1.0, 0.0}) {
    EXPECT_FALSE(desk_->Rendezvous(member_, Waiting("0", seconds)).value().found());
  }
}

TEST_F(RendezvousTest, AMemberWaitsOnceAndTheNextGenerationWakesIt) {
  base::Code waited = base::Code::kOk;
  {
    const std::jthread waiting([&] {
      do waited = Ask(member_, Waiting("0", 30.0));
      while (waited == base::Code::kInvalidInput);  // the other thread was at it just then
    });
    // Once it waits there is no room for another.
    while (Ask(member_, Waiting("1", 0.0)) == base::Code::kOk) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    EXPECT_EQ(Ask(member_, Setting("2", "still")), base::Code::kOk);
    desk_->BeginGeneration(8, {member_});
  }
  EXPECT_EQ(waited, base::Code::kUnavailable);
  proto::RendezvousRequest next = Waiting("0", 0.0);
  next.set_generation(8);
  EXPECT_EQ(Ask(member_, next), base::Code::kOk);
}

}  // namespace
}  // namespace motley::cluster
