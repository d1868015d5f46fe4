// What a stranger, or a worker gone wrong, can send to a coordinator: refused, logged with its
// address, and the job comes out as if nobody had been there.
#include <arpa/inet.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <ctime>
#include <functional>
#include <limits>
#include <mutex>
#include <thread>

#include "motley/base/descriptor.h"
#include "motley/base/rng.h"
#include "motley/cluster/job.h"
#include "motley/cluster/parts.h"
#include "tests/cluster/cluster.h"
#include "tests/cluster/stranger.h"

namespace motley::cluster {
namespace {

proto::Report Heartbeat(std::uint64_t sequence) {
  proto::Report report;
  report.set_sequence(sequence);
  report.mutable_heartbeat();
  return report;
}

// Two honest workers train while the test does its worst after the second step.
class HostileTest : public testing::Test {
 protected:
  HostileTest() : cluster_({.min_workers = 2, .shares = {2, 1}}) {
    cluster_.AddWorker({.name = "honest-1"});
    cluster_.AddWorker({.name = "honest-2"});
  }

  void WhileTraining(const std::function<void()>& attack) {
    const auto report = cluster_.Run([&](std::int64_t step) {
      if (step == 2) attack();
    });
    ASSERT_TRUE(report.ok()) << report.status().ToString();
    const run::TrainState expected = OnOneDevice({});
    EXPECT_EQ(report->state.step, expected.step);
    EXPECT_LT(RelativeDifference(report->state.weights, expected.weights), 1e-4);
    EXPECT_EQ(cluster_.CountTold("honest-1 (") + cluster_.CountTold("honest-2 ("), 0)
        << "no honest worker may be lost";
  }
  // The address of whoever was refused is in the log.
  void ExpectLogged(const std::string& what) {
    EXPECT_GE(cluster_.CountTold("refused ipv4:127.0.0.1:"), 1);
    EXPECT_GE(cluster_.CountTold(what), 1) << what;
  }
  JoinToken Token() { return cluster_.token(); }
  // A connection over which nothing was said; a negative one: there is none.
  base::Descriptor Connect() {
    sockaddr_in to{};
    to.sin_family = AF_INET;
    to.sin_port = htons(static_cast<std::uint16_t>(cluster_.coordinator().port()));
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    base::Descriptor connection(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    const void* memory = &to;
    const auto* address = static_cast<const sockaddr*>(memory);
    return ::connect(connection.get(), address, sizeof(to)) == 0 ? std::move(connection)
                                                                 : base::Descriptor();
  }

  TestCluster cluster_;
};

TEST_F(HostileTest, AWrongTokenIsRefused) {
  WhileTraining([&] {
    JoinToken wrong = Token();
    wrong.secret = std::string(32, 'a');
    Stranger stranger(cluster_, wrong);
    EXPECT_EQ(stranger.Join("x").error_code(), grpc::StatusCode::UNAUTHENTICATED);
    grpc::ClientContext context;
    stranger.Prepare(context);
    proto::StatusReply reply;
    EXPECT_FALSE(stranger.stub().Status(&context, {}, &reply).ok());
    EXPECT_EQ(reply.members_size(), 0);
  });
  ExpectLogged("token");
}

TEST_F(HostileTest, SomebodyWhoKnocksAllDayFillsNoDisk) {
  WhileTraining([&] {
    JoinToken wrong = Token();
    wrong.secret = std::string(32, 'a');
    Stranger stranger(cluster_, wrong);
    for (int i = 0; i < 500; ++i) EXPECT_FALSE(stranger.Join("x").ok());
  });
  EXPECT_GE(cluster_.CountTold("refused"), 10);
  EXPECT_LT(cluster_.CountTold("refused"), 100);
}

TEST_F(HostileTest, AnExpiredAndARevokedTokenAreRefused) {
  WhileTraining([&] {
    TokenStore yesterday(cluster_.folder() / "tokens.json",
                         [] { return std::int64_t{std::time(nullptr)} - 86400; });
    const JoinToken expired = yesterday.Issue(3600, Token().fingerprint).value();
    EXPECT_FALSE(Stranger(cluster_, expired).Join("x").ok());
    const JoinToken revoked = cluster_.tokens().Issue(100, Token().fingerprint).value();
    EXPECT_TRUE(Stranger(cluster_, revoked).Join("was-let-in").ok());
    ASSERT_TRUE(cluster_.tokens().Revoke(revoked.id).ok());
    EXPECT_FALSE(Stranger(cluster_, revoked).Join("x").ok());
  });
  ExpectLogged("expired");
  ExpectLogged("revoked");
}

TEST_F(HostileTest, APlainTextClientIsRefused) {
  WhileTraining([&] {
    const auto stub = proto::Cluster::NewStub(
        grpc::CreateChannel(cluster_.address(), grpc::InsecureChannelCredentials()));
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(2));
    proto::JoinReply reply;
    EXPECT_FALSE(stub->Join(&context, {}, &reply).ok());
  });
  ExpectLogged("no TLS");
}

TEST_F(HostileTest, BytesThatAreNoHandshakeAreRefused) {
  WhileTraining([&] {
    base::Rng rng(1);
    for (int round = 0; round < 20; ++round) {
      const base::Descriptor connection = Connect();
      ASSERT_GE(connection.get(), 0);
      std::string bytes(1 + rng.Below(5000), '\0');
      for (char& c : bytes) c = static_cast<char>(rng.Below(256));
      (void)!::send(connection.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
    }
  });
  ExpectLogged("no TLS");
}

// The limit of descriptors, which connections of strangers must not reach.
class DescriptorLimit {
 public:
  explicit DescriptorLimit(rlim_t more) {
    EXPECT_EQ(::getrlimit(RLIMIT_NOFILE, &before_), 0);
    const base::Descriptor lowest(::open("/dev/null", O_RDONLY | O_CLOEXEC));
    const rlimit limit{static_cast<rlim_t>(lowest.get()) + more, before_.rlim_max};
    EXPECT_EQ(::setrlimit(RLIMIT_NOFILE, &limit), 0);
  }
  ~DescriptorLimit() { EXPECT_EQ(::setrlimit(RLIMIT_NOFILE, &before_), 0); }
  DescriptorLimit(const DescriptorLimit&) = delete;
  DescriptorLimit& operator=(const DescriptorLimit&) = delete;

 private:
  rlimit before_{};
};

TEST_F(HostileTest, ManyWhoBeginAHandshakeAndSayNoMoreLeaveDescriptorsForTheJob) {
  const DescriptorLimit limit(300);
  std::vector<base::Descriptor> connections, files;
  WhileTraining([&] {
    // Both ends are of this process here: what the coordinator refuses, this end keeps.
    for (int i = 0; i < 140; ++i) {
      connections.push_back(Connect());
      ASSERT_GE(connections.back().get(), 0) << i << ": " << std::strerror(errno);
      (void)!::send(connections.back().get(), "\x16\x03\x01\x02\x00\x01", 6, MSG_NOSIGNAL);
    }
    for (int i = 0; i < 200 && cluster_.CountTold("too many connections") == 0; ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    for (int i = 0; i < 30; ++i) {
      files.emplace_back(::open("/dev/null", O_RDONLY | O_CLOEXEC));
      EXPECT_GE(files.back().get(), 0) << i << ": " << std::strerror(errno);
    }
  });
  ExpectLogged("too many connections are open");
}

TEST_F(HostileTest, ANameThatIsTakenOrNoNameIsRefused) {
  WhileTraining([&] {
    Stranger stranger(cluster_, Token());
    EXPECT_EQ(stranger.Join("honest-1").error_code(), grpc::StatusCode::INVALID_ARGUMENT);
    EXPECT_FALSE(stranger.Join("../../etc\n").ok());
    EXPECT_FALSE(stranger.Join(std::string(1000, 'n')).ok());
    EXPECT_FALSE(stranger.Join("other", kProtocol + 1).ok());
  });
  ExpectLogged("is here already");
}

TEST_F(HostileTest, WhoComesBackBeforeItIsMissedIsAskedToTryAgain) {
  WhileTraining([&] {
    Stranger stranger(cluster_, Token());
    EXPECT_EQ(stranger.Join("honest-1", kProtocol, "", /*again=*/true).error_code(),
              grpc::StatusCode::UNAVAILABLE);
  });
}

TEST_F(HostileTest, AWorkerThatClaimsAnothersNameIsRefused) {
  WhileTraining([&] {
    Stranger stranger(cluster_, Token());
    ASSERT_TRUE(stranger.Join("liar").ok());
    stranger.worker_ = "honest-1";
    EXPECT_EQ(stranger.Report({Heartbeat(1)}).error_code(), grpc::StatusCode::UNAUTHENTICATED);
    EXPECT_FALSE(stranger.SendPart({}).ok());
    grpc::ClientContext context;
    stranger.Prepare(context);
    proto::SamplesReply reply;
    EXPECT_FALSE(stranger.stub().Samples(&context, {})->Read(&reply));
  });
  ExpectLogged("credential");
}

TEST_F(HostileTest, APressureThatIsNoPartOfTheTimeIsRefused) {
  WhileTraining([&] {
    for (const double pressure : {-0.5, 1.5, std::numeric_limits<double>::quiet_NaN()}) {
      Stranger stranger(cluster_, Token());
      ASSERT_TRUE(stranger.Join("pressed").ok());
      proto::Report report = Heartbeat(1);
      report.mutable_heartbeat()->set_pressure(pressure);
      EXPECT_FALSE(stranger.Report({report}).ok()) << pressure;
    }
  });
  ExpectLogged("a pressure of 1.5");
}

TEST_F(HostileTest, ARepeatedAndALostReportAreRefused) {
  WhileTraining([&] {
    Stranger repeats(cluster_, Token());
    ASSERT_TRUE(repeats.Join("repeats").ok());
    EXPECT_FALSE(repeats.Report({Heartbeat(1), Heartbeat(2), Heartbeat(2)}).ok());
    Stranger skips(cluster_, Token());
    ASSERT_TRUE(skips.Join("skips").ok());
    EXPECT_FALSE(skips.Report({Heartbeat(1), Heartbeat(3)}).ok());
    EXPECT_FALSE(skips.Report({Heartbeat(1)}).ok()) << "the session is over";
  });
  ExpectLogged("report 2 after report 2");
  ExpectLogged("report 3 after report 1");
}

// Nobody reads them meanwhile: the coordinator's thread is here.
TEST_F(HostileTest, ReportsThatComeFasterThanTheyCanBeReadAreRefused) {
  WhileTraining([&] {
    Stranger stranger(cluster_, Token());
    ASSERT_TRUE(stranger.Join("flood").ok());
    std::vector<proto::Report> reports(200);
    for (std::size_t i = 0; i < reports.size(); ++i) {
      reports[i].set_sequence(i + 1);
      reports[i].mutable_done();
    }
    EXPECT_FALSE(stranger.Report(reports).ok());
  });
  ExpectLogged("reports faster than they can be read");
}

TEST_F(HostileTest, OfManyHeartbeatsUnderPressureOnlyTheNewestWaits) {
  WhileTraining([&] {
    Stranger stranger(cluster_, Token());
    ASSERT_TRUE(stranger.Join("pressed").ok());
    std::vector<proto::Report> reports;
    for (std::uint64_t i = 1; i <= 200; ++i) {
      reports.push_back(Heartbeat(i));
      reports.back().mutable_heartbeat()->set_pressure(0.5);
    }
    reports.push_back(Heartbeat(7));
    EXPECT_FALSE(stranger.Report(reports).ok());
  });
  ExpectLogged("report 7 after report 200");
}

TEST_F(HostileTest, WhoJoinsAllDayFillsNoDisk) {
  WhileTraining([&] {
    Stranger stranger(cluster_, Token());
    for (int i = 0; i < 100; ++i) {
      ASSERT_TRUE(stranger.Join("").ok());
      EXPECT_FALSE(stranger.Report({Heartbeat(2)}).ok());
    }
  });
  EXPECT_LT(cluster_.CountTold("lost: "), 80);
}

TEST_F(HostileTest, AReportThatMakesNoSenseIsRefused) {
  WhileTraining([&] {
    proto::Report done;
    done.set_sequence(1);
    done.mutable_done()->set_samples(-5);
    Stranger one(cluster_, Token());
    ASSERT_TRUE(one.Join("").ok());
    EXPECT_FALSE(one.Report({done}).ok());
    done.mutable_done()->set_samples(3);
    done.mutable_done()->set_compute_seconds(std::numeric_limits<double>::quiet_NaN());
    Stranger two(cluster_, Token());
    ASSERT_TRUE(two.Join("").ok());
    EXPECT_FALSE(two.Report({done}).ok());
  });
}

TEST_F(HostileTest, AGradientFromSomebodyWithoutAShareIsRefused) {
  WhileTraining([&] {
    proto::Part part;
    part.set_generation(std::numeric_limits<std::uint64_t>::max());
    part.set_step(1000);
    part.set_array(proto::ARRAY_UPDATE);
    part.set_floats(std::string(400, '\0'));
    Stranger stranger(cluster_, Token());
    ASSERT_TRUE(stranger.Join("giver").ok());
    stranger.SendPart(part);
    part.set_array(proto::ARRAY_MODEL);
    Stranger other(cluster_, Token());
    ASSERT_TRUE(other.Join("modeller").ok());
    other.SendPart(part);
  });
}

TEST_F(HostileTest, AnOversizedMessageIsRefused) {
  WhileTraining([&] {
    Stranger stranger(cluster_, Token());
    EXPECT_EQ(stranger.Join("x", kProtocol, std::string(8 << 20, 'h')).error_code(),
              grpc::StatusCode::RESOURCE_EXHAUSTED);
    EXPECT_EQ(stranger.Join("x", kProtocol, std::string(3 << 20, 'h')).error_code(),
              grpc::StatusCode::INVALID_ARGUMENT);
    ASSERT_TRUE(stranger.Join("big").ok());
    proto::Part part;
    part.set_floats(std::string(8 << 20, '\0'));
    EXPECT_FALSE(stranger.SendPart(part).ok());
    Stranger other(cluster_, Token());
    ASSERT_TRUE(other.Join("large").ok());
    part.set_floats(std::string(3 << 20, '\0'));
    EXPECT_FALSE(other.SendPart(part).ok());
    Stranger talker(cluster_, Token());
    ASSERT_TRUE(talker.Join("talker").ok());
    proto::Report report = Heartbeat(1);
    report.mutable_failed()->set_message(std::string(3 << 20, 'x'));
    EXPECT_FALSE(talker.Report({report}).ok());
  });
  ExpectLogged("join: a message of 31457");
  ExpectLogged("large: a message of 31457");
  ExpectLogged("talker: a message of 31457");
}

TEST_F(HostileTest, WhoSaysNothingOrTooLittleIsRefused) {
  std::vector<base::Descriptor> silent;
  WhileTraining([&] {
    for (int i = 0; i < 3; ++i) {
      silent.push_back(Connect());
      ASSERT_GE(silent.back().get(), 0);
    }
    (void)!::send(silent[1].get(), "\x16\x03\x01", 3, MSG_NOSIGNAL);
    (void)!::send(silent[2].get(), "\x16", 1, MSG_NOSIGNAL);
    ::shutdown(silent[2].get(), SHUT_WR);
    for (int i = 0; i < 300 && cluster_.CountTold("broke off after 3") == 0; ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
    }
  });
  ExpectLogged("nothing was said for 10 s");
  ExpectLogged("broke off after 3 bytes");
  ExpectLogged("broke off after 1 bytes");
}

TEST_F(HostileTest, BytesThatAreNoMessageAreRefused) {
  WhileTraining([&] {
    base::Rng rng(2);
    for (const char* method :
         {"Join", "Work", "Exchange", "Samples", "Rendezvous", "Status", "NoSuchCall"}) {
      Stranger stranger(cluster_, Token());
      ASSERT_TRUE(stranger.Join("").ok());
      std::string bytes(200, '\0');
      for (char& c : bytes) c = static_cast<char>(rng.Below(256));
      bytes[0] = '\x0a';  // a field that is longer than what follows
      bytes[1] = '\x7f';
      bytes.resize(60);
      EXPECT_FALSE(stranger.SendBytes(method, bytes).ok()) << method;
    }
  });
  for (const char* method : {"Join", "Samples", "Rendezvous", "Status"}) {
    ExpectLogged(std::string("Cluster/") + method + ": a message that cannot be read");
  }
  EXPECT_GE(cluster_.CountTold(": a message that cannot be read, or the end"), 2)
      << "of the streams Work and Exchange";
}

TEST_F(HostileTest, SamplesThatDoNotExistAreRefused) {
  WhileTraining([&] {
    Stranger stranger(cluster_, Token());
    ASSERT_TRUE(stranger.Join("reader").ok());
    grpc::ClientContext context;
    stranger.Prepare(context);
    proto::SamplesRequest request;
    request.add_ids(std::numeric_limits<std::uint64_t>::max());
    const auto reader = stranger.stub().Samples(&context, request);
    proto::SamplesReply reply;
    EXPECT_FALSE(reader->Read(&reply));
    EXPECT_FALSE(reader->Finish().ok());
  });
  ExpectLogged("samples");
}

TEST_F(HostileTest, WhoAsksForMoreSamplesThanItReadsKeepsFewThreads) {
  WhileTraining([&] {
    Stranger stranger(cluster_, Token());
    ASSERT_TRUE(stranger.Join("hoarder").ok());
    proto::SamplesRequest request;  // more than goes into the buffers of a connection
    for (int i = 0; i < 60'000; ++i) request.add_ids(static_cast<std::uint64_t>(i % 600));
    proto::SamplesReply reply;
    {
      grpc::ClientContext context;
      stranger.Prepare(context, /*seconds=*/3600);
      const auto reader = stranger.stub().Samples(&context, request);
      EXPECT_FALSE(reader->Read(&reply));
      EXPECT_EQ(reader->Finish().error_code(), grpc::StatusCode::INVALID_ARGUMENT);
    }
    std::vector<std::unique_ptr<grpc::ClientContext>> contexts;
    std::vector<std::unique_ptr<grpc::ClientReader<proto::SamplesReply>>> readers;
    for (int i = 0; i < 5; ++i) {
      contexts.push_back(std::make_unique<grpc::ClientContext>());
      stranger.Prepare(*contexts.back(), /*seconds=*/60);
      readers.push_back(stranger.stub().Samples(contexts.back().get(), request));
      EXPECT_EQ(readers.back()->Read(&reply), i < 4) << i;
    }
    EXPECT_EQ(readers.back()->Finish().error_code(), grpc::StatusCode::INVALID_ARGUMENT);
    EXPECT_FALSE(stranger.Report({Heartbeat(2)}).ok()) << "which ends its session";
    for (int i = 0; i < 4; ++i) {
      int messages = 1;
      while (readers[static_cast<std::size_t>(i)]->Read(&reply)) ++messages;
      EXPECT_LT(messages, 60'000 * 784 / (256 << 10)) << "the rest is for nobody";
      EXPECT_FALSE(readers[static_cast<std::size_t>(i)]->Finish().ok());
    }
  });
  ExpectLogged("a call without a deadline");
  ExpectLogged("more than 4 calls at once");
}

TEST_F(HostileTest, WhoNeverGetsTheModelHoldsNobodyUp) {
  Stranger stranger(cluster_, Token());
  std::jthread mute;
  WhileTraining([&] {
    ASSERT_TRUE(stranger.Join("mute").ok());
    mute = std::jthread([&] { stranger.PretendWithModels(0); });
    std::this_thread::sleep_for(std::chrono::milliseconds(500));  // it is ready by then
  });
  EXPECT_EQ(cluster_.CountTold("mute ("), 0) << "it was neither admitted nor waited for";
}

TEST_F(HostileTest, WhoGetsTheModelOnceAndNotAgainHoldsNobodyUpForLong) {
  Stranger stranger(cluster_, Token());
  std::jthread mute;
  WhileTraining([&] {
    ASSERT_TRUE(stranger.Join("mute").ok());
    mute = std::jthread([&] { stranger.PretendWithModels(1); });
    std::this_thread::sleep_for(std::chrono::milliseconds(500));
  });
  EXPECT_EQ(cluster_.CountTold("mute joined"), 0);
  EXPECT_EQ(cluster_.CountTold("is lost: alive, but not finished after 3 s"), 1);
}

TEST_F(HostileTest, AWorkerThatJoinsAndSaysNothingIsForgotten) {
  WhileTraining([&] {
    Stranger stranger(cluster_, Token());
    ASSERT_TRUE(stranger.Join("silent").ok());
    const auto began = std::chrono::steady_clock::now();
    (void)stranger.Report({Heartbeat(1)});  // returns when the coordinator has had enough
    EXPECT_LT(std::chrono::steady_clock::now() - began, std::chrono::seconds(8));
  });
  EXPECT_EQ(cluster_.CountTold("no sign of life"), 1);
}

// Else whoever was let in could say where the members of a group are.
TEST(GroupTest, AWorkerThatIsNotInTheGroupHasNoPartInItsRendezvous) {
  TestCluster cluster({.gloo = true, .min_workers = 2});
  cluster.AddWorker({.name = "honest-1"});
  cluster.AddWorker({.name = "honest-2"});
  int refused = 0;
  const auto report = cluster.Run([&](std::int64_t step) {
    if (step != 2) return;
    Stranger stranger(cluster, cluster.token());
    ASSERT_TRUE(stranger.Join("stranger").ok());
    for (std::uint64_t generation = 0; generation < 20; ++generation) {
      grpc::ClientContext context;
      stranger.Prepare(context);
      proto::RendezvousRequest request;
      request.set_generation(generation);
      request.set_set_key("0");
      request.set_set_value("elsewhere");
      proto::RendezvousReply reply;
      const grpc::Status status = stranger.stub().Rendezvous(&context, request, &reply);
      EXPECT_FALSE(status.ok());
      if (status.error_code() == grpc::StatusCode::INVALID_ARGUMENT) ++refused;
    }
  });
  ASSERT_TRUE(report.ok()) << report.status().ToString();
  EXPECT_EQ(refused, 1) << "in the generation of the group; the others are over";
  EXPECT_EQ(cluster.CountTold("stranger is not in the group"), 1);
}

class LiarTest : public testing::TestWithParam<bool> {};

TEST_P(LiarTest, WhoSaysThatItIsDoneAndSendsNothingIsSentAway) {
  TestCluster::Options options;
  options.merged_head = GetParam();
  options.min_workers = 2;
  options.step_seconds = 1.0;
  TestCluster cluster(options);
  cluster.AddWorker({.name = "honest"});
  Stranger stranger(cluster, cluster.token());
  ASSERT_TRUE(stranger.Join("liar").ok());
  std::jthread lying([&] { stranger.Pretend(); });
  const auto report = cluster.Run();
  ASSERT_TRUE(report.ok()) << report.status().ToString();
  EXPECT_EQ(cluster.CountTold("lost: liar"), 1);
  EXPECT_EQ(cluster.CountTold("lost: honest"), 0);
  ExpectSame(report->state, OnOneDevice({}));
}

INSTANTIATE_TEST_SUITE_P(Heads, LiarTest, testing::Bool(), [](const auto& param_info) {
  return param_info.param ? "WithAMergedHead" : "WithTheWholeNet";
});

TEST(TestLiarTest, WhoseLossInTheTestIsNotFiniteIsSentAwayAndTheOthersTest) {
  TestCluster::Options options;
  options.min_workers = 2;
  options.shares = {1, 0};
  TestCluster cluster(options);
  cluster.AddWorker({.name = "honest"});
  Stranger stranger(cluster, cluster.token());
  ASSERT_TRUE(stranger.Join("liar").ok());
  const std::jthread reading([&] { stranger.ReadParts([](const proto::Part&) {}); });
  const std::jthread lying([&] {
    stranger.Pretend({}, [](const proto::Order& order, proto::Report& report) {
      if (!order.has_evaluate()) return false;
      proto::Done& done = *report.mutable_done();
      done.set_generation(order.generation());
      done.set_step(order.step());
      done.set_finite(true);
      done.set_loss_sum(std::numeric_limits<double>::quiet_NaN());
      return true;
    });
  });
  const auto report = cluster.Run();
  cluster.Vanish();
  ASSERT_TRUE(report.ok()) << report.status().ToString();
  ExpectSame(report->state, OnOneDevice({}));
  EXPECT_EQ(cluster.CountTold("lost: liar"), 1);
  EXPECT_EQ(cluster.CountTold("lost: honest"), 0);
}

TEST(GroupLiarTest, WhoSaysThatItsGroupCannotIsSentAwayAndNobodyElse) {
  TestCluster::Options options;
  options.gloo = true;
  options.min_workers = 2;
  options.shares = {0, 1, 1};
  TestCluster cluster(options);
  Stranger stranger(cluster, cluster.token());
  ASSERT_TRUE(stranger.Join("a-liar").ok());
  for (const char* name : {"honest-1", "honest-2"}) cluster.AddWorker({.name = name});
  const std::jthread reading([&] { stranger.ReadParts([](const proto::Part&) {}); });
  const std::jthread lying([&] {
    stranger.Pretend({}, [](const proto::Order& order, proto::Report& report) {
      if (!order.has_form()) return false;
      report.mutable_failed()->set_generation(order.generation());
      report.mutable_failed()->set_group(true);
      report.mutable_failed()->set_message("there is a wall");
      return true;
    });
  });
  const auto report = cluster.Run();
  cluster.Vanish();
  ASSERT_TRUE(report.ok()) << report.status().ToString();
  ExpectSame(report->state, OnOneDevice({}));
  EXPECT_EQ(cluster.CountTold("lost: a-liar"), 1);
  EXPECT_EQ(cluster.CountTold("lost: honest"), 0);
}

// By Gloo, where a member hands over the model when somebody joins.
TEST(StateTest, AModelWithAPartThatComesTwiceIsRefused) {
  TestCluster::Options options;
  options.gloo = true;
  options.min_workers = 1;
  TestCluster cluster(options);
  Stranger stranger(cluster, cluster.token());
  ASSERT_TRUE(stranger.Join("liar").ok());
  std::mutex mutex;
  proto::Part model;  // the first part of it
  Stranger::Look send;
  {
    const std::jthread reading([&] {
      stranger.ReadParts(
          [&](const proto::Part& part) {
            const std::lock_guard lock(mutex);
            if (part.array() == proto::ARRAY_MODEL && part.offset() == 0) model = part;
          },
          [&](const Stranger::Look& open) {
            const std::lock_guard lock(mutex);
            send = open;
          });
    });
    const std::jthread working([&] {
      stranger.Pretend([&](const proto::Order& order) {
        // The other one has joined before the last step.
        if (order.has_train()) std::this_thread::sleep_for(std::chrono::milliseconds(500));
        if (!order.has_save()) return;
        const std::lock_guard lock(mutex);
        model.set_generation(order.generation());
        model.set_step(order.step());
        for (int i = 0; i < 2; ++i) send(model);
      });
    });
    const auto report = cluster.Run([&](std::int64_t step) {
      if (step == 2) cluster.AddWorker({.name = "honest"});
    });
    EXPECT_FALSE(report.ok()) << "nobody has the model";
    cluster.Vanish();
  }
  EXPECT_GE(cluster.CountTold("comes twice"), 1);
}

TEST(StateTest, WhoSaysThatItHasHandedTheModelOverAndHasNotIsSentAwaySoon) {
  TestCluster::Options options;
  options.gloo = true;
  TestCluster cluster(options);
  Stranger stranger(cluster, cluster.token());
  ASSERT_TRUE(stranger.Join("liar").ok());
  const std::jthread reading([&] { stranger.ReadParts([](const proto::Part&) {}); });
  const std::jthread lying([&] {
    stranger.Pretend([](const proto::Order& order) {
      // The other one has joined before the last step.
      if (order.has_train()) std::this_thread::sleep_for(std::chrono::milliseconds(500));
    });
  });
  const auto report = cluster.Run([&](std::int64_t step) {
    if (step == 2) cluster.AddWorker({.name = "honest"});
  });
  EXPECT_FALSE(report.ok()) << "nobody has the model";
  cluster.Vanish();
  EXPECT_EQ(cluster.CountTold("it was to hand over the model, and does not"), 1);
}

// Else the model that it has not taken yet would be overwritten.
TEST(IdleTest, WithoutAShareTheNextModelComesAfterTheStepIsDone) {
  TestCluster::Options options;
  options.min_workers = 2;
  options.shares = {1, 0};
  TestCluster cluster(options);
  cluster.AddWorker({.name = "busy"});
  Stranger stranger(cluster, cluster.token());
  ASSERT_TRUE(stranger.Join("idle").ok());
  std::atomic<std::int64_t> expected = 0, early = 0, last = 0;
  {
    const std::jthread reading([&] {
      stranger.ReadParts([&](const proto::Part& part) {
        if (part.step() > expected) ++early;
        last = part.step();
      });
    });
    const std::jthread working([&] {
      stranger.Pretend([&](const proto::Order& order) {
        if (!order.has_train()) return;
        std::this_thread::sleep_for(std::chrono::milliseconds(20));  // the others are done by then
        expected = order.step() + 1;
      });
    });
    const auto report = cluster.Run();
    ASSERT_TRUE(report.ok()) << report.status().ToString();
    ExpectSame(report->state, OnOneDevice({}));
    cluster.Vanish();
  }
  EXPECT_EQ(early, 0);
  EXPECT_GT(last, 0);
}

// Every part that waits for it keeps a whole model in memory.
TEST(IdleTest, WhoDoesNotTakeTheModelsIsSentAway) {
  TestCluster::Options options;
  options.min_workers = 2;
  options.shares = {1, 0};
  TestCluster cluster(options);
  cluster.AddWorker({.name = "busy"});
  Stranger stranger(cluster, cluster.token());
  ASSERT_TRUE(stranger.Join("deaf").ok());
  const std::jthread working([&] { stranger.Pretend(); });
  const auto report = cluster.Run();
  cluster.Vanish();
  ASSERT_TRUE(report.ok()) << report.status().ToString();
  ExpectSame(report->state, OnOneDevice({}));
  EXPECT_EQ(cluster.CountTold("lost: deaf"), 1);
  EXPECT_EQ(cluster.CountTold("it does not take what is sent to it"), 1);
}

}  // namespace
}  // namespace motley::cluster
