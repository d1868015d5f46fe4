#include "motley/cluster/remote_dataset.h"

#include <grpcpp/server_builder.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <future>
#include <memory>
#include <numeric>
#include <thread>
#include <vector>

#include "motley/cluster/job.h"
#include "motley/cluster/link.h"
#include "motley/cluster/resolve.h"

namespace motley::cluster {
namespace {

proto::Set SetOf(std::int64_t size, int height, int width) {
  proto::Set set;
  set.set_size(size);
  set.set_channels(1);
  set.set_height(height);
  set.set_width(width);
  set.add_classes("a");
  return set;
}

// Answers as a coordinator does, every pixel by the sample's number, and notes how many were asked
// for at once.
struct Source {
  base::Status Fetch(const proto::SamplesRequest& request,
                     const std::function<base::Status(proto::SamplesReply&)>& take) {
    largest = std::max(largest.load(), request.ids_size());
    proto::SamplesReply reply;
    if (request.ids_size() == 0) {
      for (std::int64_t i = 0; i < set.size(); ++i) reply.add_labels(0);
      return take(reply);
    }
    const auto bytes = static_cast<std::size_t>(set.height()) * set.width();
    for (const std::uint64_t id : request.ids()) {
      reply.add_ids(id);
      reply.mutable_pixels()->append(bytes, static_cast<char>(id % 251));
    }
    return take(reply);
  }
  std::shared_ptr<RemoteDataset> Open() {
    return RemoteDataset::Open(
               set, /*test=*/false,
               [this](const auto& request, const auto& take) { return Fetch(request, take); },
               std::size_t{1} << 30)
        .value();
  }
  const proto::Set set;
  std::atomic<int> largest{0};
};

TEST(RemoteDatasetTest, FetchesAnyNumberOfSamplesAFewThousandAtATime) {
  Source source{.set = SetOf(70'000, 1, 1)};
  const auto dataset = source.Open();
  std::vector<data::SampleId> ids(70'000);
  std::iota(ids.begin(), ids.end(), data::SampleId{0});
  dataset->Prefetch(ids);
  for (const data::SampleId id : ids) {
    std::uint8_t pixel = 0;
    ASSERT_TRUE(dataset->Decode(id, {&pixel, 1}).ok());
    ASSERT_EQ(pixel, id % 251);
  }
  EXPECT_EQ(source.largest, 4096);
}

TEST(RemoteDatasetTest, AsksForLessAtATimeWhereSamplesAreLarge) {
  Source source{.set = SetOf(5, 3000, 2000)};
  const auto dataset = source.Open();
  dataset->Prefetch({0, 1, 2, 3, 4});
  std::vector<std::uint8_t> pixels(6'000'000);
  ASSERT_TRUE(dataset->Decode(4, pixels).ok());
  EXPECT_EQ(source.largest, 2) << "of 6 MB each";
}

TEST(RemoteDatasetTest, EndsWithoutFetchingWhatNobodyWantsAnyMore) {
  Source source{.set = SetOf(70'000, 1, 1)};
  std::atomic<int> calls{0};
  std::promise<void> began, go_on;
  auto dataset = RemoteDataset::Open(
                     source.set, /*test=*/false,
                     [&](const auto& request, const auto& take) {
                       if (++calls == 2) {  // the first one is for the labels
                         began.set_value();
                         go_on.get_future().wait();
                       }
                       return source.Fetch(request, take);
                     },
                     std::size_t{1} << 20)
                     .value();
  std::vector<data::SampleId> ids(70'000);
  std::iota(ids.begin(), ids.end(), data::SampleId{0});
  dataset->Prefetch(ids);
  began.get_future().wait();
  {
    const std::jthread ending([&] { dataset = nullptr; });
    std::this_thread::sleep_for(std::chrono::milliseconds(50));  // until it waits for the call
    go_on.set_value();
  }
  EXPECT_EQ(calls, 2);
}

TEST(ResolveTest, FindsNumbersAndNamesAndGivesUpAtTheDeadline) {
  for (const char* host : {"127.0.0.1", "localhost"}) {
    const auto found = Resolve(host, "80", 5.0);
    ASSERT_TRUE(found.ok()) << found.status().message();
    const std::string number = found->front().Number();
    EXPECT_TRUE(number == "127.0.0.1" || number == "::1") << number;
  }
  for (const char* host : {"name.invalid", "not a host name"}) {
    const auto found = Resolve(host, "80", 5.0);
    EXPECT_EQ(found.status().code(), base::Code::kUnavailable) << host;
    EXPECT_NE(found.status().message().find(host), std::string::npos) << found.status().message();
  }
  // A number is no work for the resolver, and a name gets no more time than there is.
  EXPECT_TRUE(Resolve("::1", "", 0.0).ok());
  EXPECT_EQ(Resolve("name.invalid", "80", 0.0).status().code(), base::Code::kUnavailable);
}

// A coordinator that lets calls wait until they are cancelled.
class Endless final : public proto::Cluster::Service {
 public:
  grpc::Status Samples(grpc::ServerContext* context, const proto::SamplesRequest*,
                       grpc::ServerWriter<proto::SamplesReply>*) override {
    return Wait(*context);
  }
  grpc::Status Rendezvous(grpc::ServerContext* context, const proto::RendezvousRequest*,
                          proto::RendezvousReply*) override {
    return Wait(*context);
  }
  grpc::Status Join(grpc::ServerContext*, const proto::JoinRequest*,
                    proto::JoinReply* reply) override {
    reply->mutable_job()->set_onnx(std::string(5 << 20, 'x'));
    return grpc::Status::OK;
  }
  std::atomic<int> waiting{0}, cancelled{0};

 private:
  grpc::Status Wait(const grpc::ServerContext& context) {
    ++waiting;
    for (int i = 0; i < 400 && !context.IsCancelled(); ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
    if (context.IsCancelled()) ++cancelled;
    return grpc::Status::OK;
  }
};

TEST(LinkTest, WhoHangsWaitsForNoAnswer) {
  Endless service;
  grpc::ServerBuilder builder;
  builder.RegisterService(&service);
  const auto server = builder.BuildAndStart();
  WorkerOptions options;
  options.channel = server->InProcessChannel({});
  const auto link = Link::Connect(options).value();
  const auto take = [](proto::SamplesReply&) { return base::Status(); };
  base::Status samples, store;
  {
    const std::jthread one([&] { samples = link->Samples({}, take); });
    const std::jthread two([&] { store = link->MakeStore(1)->Wait({"0"}, 30.0).status(); });
    while (service.waiting < 2) std::this_thread::sleep_for(std::chrono::milliseconds(5));
    link->Hang();
  }
  EXPECT_EQ(samples.code(), base::Code::kUnavailable) << samples.message();
  EXPECT_EQ(store.code(), base::Code::kUnavailable) << store.message();
  EXPECT_EQ(link->Samples({}, take).code(), base::Code::kUnavailable) << "nor later";
  server->Shutdown();
  EXPECT_EQ(service.cancelled, service.waiting);
}

TEST(LinkTest, AJobThatIsTooLargeIsNoCoordinatorThatCannotBeReached) {
  Endless service;
  grpc::ServerBuilder builder;
  builder.RegisterService(&service);
  const auto server = builder.BuildAndStart();
  WorkerOptions options;
  options.channel = server->InProcessChannel({});  // with gRPC's usual limit of 4 MB
  const auto joined = Link::Connect(options).value()->Join({});
  EXPECT_EQ(joined.status().code(), base::Code::kInvalidInput) << joined.status().message();
  EXPECT_NE(joined.status().message().find("too large"), std::string::npos);
}

TEST(JobTest, ANetworkThatDoesNotFitIntoAMessageIsRefusedBeforeAnybodyJoins) {
  proto::Job job;
  job.set_onnx(std::string(40 << 20, 'x'));
  EXPECT_TRUE(CheckTravels(job).ok());
  job.set_onnx(std::string(64 << 20, 'x'));
  const base::Status refused = CheckTravels(job);
  EXPECT_EQ(refused.code(), base::Code::kInvalidInput);
  EXPECT_NE(refused.message().find("67 MB"), std::string::npos) << refused.message();
}

}  // namespace
}  // namespace motley::cluster
