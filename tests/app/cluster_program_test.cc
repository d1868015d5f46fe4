#include <gtest/gtest.h>

#include <algorithm>
#include <csignal>
#include <fstream>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>

#include "apps/motley/address.h"
#include "motley/cluster/security.h"
#include "motley/telemetry/events.h"
#include "tests/app/process.h"

namespace motley::app {
namespace {

namespace fs = std::filesystem;
using Arguments = std::vector<std::string>;
using nlohmann::json;

constexpr double kLimit = 60.0;  // seconds, for what takes a few

Arguments operator+(Arguments first, const Arguments& second) {
  first.insert(first.end(), second.begin(), second.end());
  return first;
}

Arguments Set(const std::string& key) { return {"--set", key}; }

// A token that no server has issued.
std::string StrangeToken(bool tls) {
  return cluster::JoinToken{cluster::RandomHex(8), cluster::RandomHex(16),
                            tls ? cluster::RandomHex(32) : ""}
      .ToText();
}

class ClusterProgramTest : public testing::Test {
 protected:
  const fs::path& folder() const { return temporary_.path(); }
  Outcome Run(const Arguments& arguments,
              const std::map<std::string, std::string>& environment = {}) const {
    return RunMotley(folder(), arguments, environment);
  }

  // `motley serve` in the folder "run", on this machine only; its token is in the file "token".
  std::unique_ptr<Child> Serve(const Arguments& more) const {
    return std::make_unique<Child>(folder(), Arguments{"serve", "--token-file", "token"} +
                                                 Set("train.learning_rate=0.001") +
                                                 Set("cluster.heartbeat_seconds=0.25") + more);
  }
  // A job on generated data that goes on for a few seconds.
  std::unique_ptr<Child> ServeGlyphs(const Arguments& more) const {
    return Serve(Arguments{"--out", "run", "--listen", "127.0.0.1:0"} + Set("data.train=glyphs") +
                 Set("train.epochs=1") + more);
  }
  // The same without an end.
  std::unique_ptr<Child> ServeForever(const Arguments& more = {}) const {
    return Serve(Arguments{"--out", "run", "--listen", "127.0.0.1:0"} + Set("data.train=glyphs") +
                 Set("train.epochs=1000") + more);
  }
  bool Listens(Child& server) const {
    return server.WaitUntil([&] { return !Content(folder() / "token").empty(); }, kLimit);
  }
  std::string Where() const {
    const auto place = json::parse(Content(folder() / "run/cluster/address.json"));
    return place["join"];
  }
  std::unique_ptr<Child> Join(const Arguments& more = {},
                              const std::map<std::string, std::string>& environment = {}) const {
    return std::make_unique<Child>(
        folder(), Arguments{"join", Where(), "--token-file", "token", "--threads", "1"} + more,
        environment);
  }

  std::vector<json> Events(const std::string& name) const {
    const auto events = telemetry::ReadEvents(folder() / "run/events.jsonl");
    std::vector<json> found;
    if (!events.ok()) return found;
    std::copy_if(events->begin(), events->end(), std::back_inserter(found),
                 [&](const json& event) { return event["event"] == name; });
    return found;
  }
  bool WaitForEvents(Child& server, const std::string& name, std::size_t count) const {
    return server.WaitUntil(
        [&] {
          SleepSeconds(0.02);
          return Events(name).size() >= count;
        },
        kLimit);
  }
  json Status() const {
    const Outcome outcome = Run({"status", Where(), "--token-file", "token", "--json"});
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    return json::parse(outcome.out, nullptr, false);
  }
  json Summary() const { return json::parse(Content(folder() / "run/summary.json")); }

 private:
  TemporaryFolder temporary_;
};

TEST_F(ClusterProgramTest, RefusesToListenInsecurelyForOtherMachines) {
  const Outcome outcome = Run({"serve", "--insecure", "--listen", "0.0.0.0:0", "--out", "run"});
  EXPECT_EQ(outcome.exit_code, 2);
  EXPECT_TRUE(Says(outcome.err, "--insecure-anywhere")) << outcome.err;
  EXPECT_EQ(Run({"serve", "--insecure-anywhere"}).exit_code, 2);
  EXPECT_FALSE(fs::exists(folder() / "run"));
}

TEST_F(ClusterProgramTest, WrongUsageEndsWithTwoAndAFix) {
  const std::string token = StrangeToken(false);
  const std::pair<Arguments, std::string> mistakes[] = {
      {{"join"}, "coordinator"},
      {{"join", "here:7600"}, "no join token"},
      {{"join", "here:7600", "--token", "motley1-abc"}, "token"},
      {{"join", "here:7600", "--token", token.substr(0, token.size() - 1)}, "token"},
      {{"join", "here:7600", "--token-file", "nowhere"}, "nowhere"},
      {{"join", "here:port", "--token", token}, "'here:port' is no address"},
      {{"join", "here:7600", "--token", token, "--data", "nowhere"}, "--data nowhere"},
      {{"join", "here:7600", "--token", token, "--threads", "-1"}, "--threads"},
      {{"join", "here:7600", "--token", token, "--speed", "0"}, "--speed"},
      {{"join", "here:7600", "--token", token, "--watts-idle", "-1", "--watts-busy", "5"},
       "--watts-idle"},
      {{"join", "here:7600", "--token", token, "--watts-idle", "1", "--watts-busy", "-5"},
       "--watts-busy"},
      {{"join", "here:7600", "--token", token, "--private", "nowhere"}, "--private nowhere"},
      {{"status", "here:7600", "--token", "x"}, "token"},
      {{"serve", "--listen", "here"}, "here"},
      {{"serve", "--listen", "1.2.3.4.5:x"}, "--listen"},
      {{"serve", "--token-hours", "0"}, "--token-hours"},
      {{"token", "new", "nowhere"}, "nowhere"},
      {{"token", "list", "."}, "no coordinator"},
  };
  for (const auto& [arguments, words] : mistakes) {
    const Outcome outcome =
        Run(arguments + (arguments[0] == "serve" ? Set("data.train=glyphs") : Arguments{}));
    EXPECT_EQ(outcome.exit_code, 2) << outcome.err;
    EXPECT_TRUE(Says(outcome.err, words)) << outcome.err;
    EXPECT_TRUE(Says(outcome.err, "\n  fix: ")) << outcome.err;
    EXPECT_FALSE(Says(outcome.err, token.substr(8))) << "a secret was printed";
  }
  EXPECT_EQ(
      Run({"join", "here:7600", "--token", token}, {{"RANK", "4"}, {"WORLD_SIZE", "2"}}).exit_code,
      2);
  EXPECT_FALSE(fs::exists(folder() / "runs"));
}

TEST_F(ClusterProgramTest, ACoordinatorThatIsNotThereEndsWithThree) {
  for (const bool tls : {false, true}) {
    const Outcome outcome =
        Run({"join", "127.0.0.1:1", "--token", StrangeToken(tls), "--retry-seconds", "1"});
    EXPECT_EQ(outcome.exit_code, 3) << outcome.out << outcome.err;
    EXPECT_TRUE(Says(outcome.err, "127.0.0.1:1")) << outcome.err;
  }
  EXPECT_EQ(Run({"status", "127.0.0.1:1", "--token", StrangeToken(true)}).exit_code, 3);
}

TEST_F(ClusterProgramTest, WhatOnlyTheJobCanTellIsRefusedByItsFlagBeforeAStep) {
  WriteSmallIdx(folder() / "other", 8, 4);
  auto server = ServeForever();
  ASSERT_TRUE(Listens(*server)) << server->Wait(0).err;
  const Outcome classes = Join({"--name", "classes", "--private", "other"})->Wait(kLimit);
  EXPECT_EQ(classes.exit_code, 2) << classes.out << classes.err;
  EXPECT_TRUE(Says(classes.err, "motley: --private other: ")) << classes.err;
  EXPECT_TRUE(Says(classes.err, "its class 0 is '0', and the job's is 'arc'")) << classes.err;
  const Outcome cores =
      Run({"join", Where(), "--token-file", "token", "--name", "cores", "--cores", "65535"});
  EXPECT_EQ(cores.exit_code, 2) << cores.out << cores.err;
  EXPECT_TRUE(Says(cores.err, "core 65535")) << cores.err;
  EXPECT_TRUE(Events("step").empty());
  EXPECT_FALSE(Says(Content(folder() / "run/events.jsonl"), "other"))
      << "a name of private data left its machine";
}

TEST_F(ClusterProgramTest, AJobGoesOnWhenAWorkerIsKilled) {
  auto server = ServeGlyphs(Set("cluster.min_workers=2") + Set("train.epochs=2"));
  ASSERT_TRUE(Listens(*server)) << server->Wait(0).err;
  auto first = Join({"--name", "first"});
  auto second = Join({"--name", "second"});
  ASSERT_TRUE(WaitForEvents(*server, "step", 1));
  second->Signal(SIGKILL);
  const Outcome served = server->Wait(kLimit);
  EXPECT_EQ(served.exit_code, 0) << served.out << served.err;
  EXPECT_TRUE(Says(served.out, "motley join " + Where() + " --token motley1-")) << served.out;
  EXPECT_TRUE(Says(served.out, "trained lenet on glyphs")) << served.out;
  const Outcome worked = first->Wait(kLimit);
  EXPECT_EQ(worked.exit_code, 0) << worked.out << worked.err;
  EXPECT_TRUE(Says(worked.out, "the job has ended")) << worked.out;

  const auto lost = Events("lost");
  ASSERT_EQ(lost.size(), 1U);
  EXPECT_EQ(lost[0]["worker"], "second");
  EXPECT_LT(lost[0]["step"], 250);
  const json summary = Summary();
  EXPECT_EQ(summary["samples"], 16000);
  std::int64_t samples = 0;
  double shares = 0.0;
  std::set<std::string> names;
  for (const json& device : summary["devices"]) {
    samples += device["samples"].get<std::int64_t>();
    shares += device["share"].get<double>();
    names.insert(device["name"].get<std::string>());
  }
  EXPECT_EQ(samples, 16000);
  EXPECT_NEAR(shares, 1.0, 1e-9);
  EXPECT_EQ(names, (std::set<std::string>{"first", "second"}));
  EXPECT_GT(summary["bytes_sent"]["gradient"], 0);
  EXPECT_GT(summary["bytes_sent"]["weights"], 0);
  EXPECT_GT(summary["bytes_sent"]["control"], 0);
  EXPECT_EQ(summary["bytes_sent"]["private_data"], 0);
}

TEST_F(ClusterProgramTest, GroupsGoOnWhenAWorkerOfOneOfThemIsKilled) {
  auto server = ServeGlyphs(Set("cluster.min_workers=3") + Set("cluster.groups=2") +
                            Set("train.epochs=2") + Set("train.learning_rate=0.01") +
                            Set("train.tune=off"));
  ASSERT_TRUE(Listens(*server)) << server->Wait(0).err;
  std::vector<std::unique_ptr<Child>> workers;
  for (const char* name : {"first", "second", "third"}) workers.push_back(Join({"--name", name}));
  ASSERT_TRUE(WaitForEvents(*server, "step", 1));
  EXPECT_EQ(Status()["groups"], 2);
  workers[1]->Signal(SIGKILL);
  const Outcome served = server->Wait(kLimit);
  EXPECT_EQ(served.exit_code, 0) << served.out << served.err;
  ASSERT_EQ(Events("lost").size(), 1U);
  EXPECT_EQ(Events("lost")[0]["worker"], "second");
  const json summary = Summary();
  EXPECT_EQ(summary["samples"], 16000);
  EXPECT_EQ(summary["groups"], 2);
  std::int64_t samples = 0, updates = 0;
  for (const json& device : summary["devices"]) samples += device["samples"].get<std::int64_t>();
  EXPECT_EQ(samples, 16000);
  for (const json& count : summary["staleness"]["histogram"]) updates += count.get<std::int64_t>();
  EXPECT_EQ(updates, summary["steps"]);
  EXPECT_TRUE(summary["staleness"]["coordinate_momentum"].is_number());
}

TEST_F(ClusterProgramTest, AJobGoesOnWhenAWorkerThatHoldsARangeOfTheModelIsKilled) {
  auto server =
      ServeGlyphs(Set("cluster.min_workers=2") + Set("cluster.shards=2") + Set("train.epochs=2"));
  ASSERT_TRUE(Listens(*server)) << server->Wait(0).err;
  std::map<std::string, std::unique_ptr<Child>> workers;
  workers["first"] = Join({"--name", "first"});
  workers["second"] = Join({"--name", "second"});
  ASSERT_TRUE(WaitForEvents(*server, "step", 1));
  ASSERT_EQ(Events("host").size(), 1U);
  const std::string host = Events("host")[0]["worker"];
  for (const json& member : Status()["members"]) {
    EXPECT_EQ(member["range"], member["name"] == host ? 1 : 0) << member;
  }
  workers.at(host)->Signal(SIGKILL);
  const Outcome served = server->Wait(kLimit);
  EXPECT_EQ(served.exit_code, 0) << served.out << served.err;
  EXPECT_EQ(Summary()["samples"], 16000);
  EXPECT_EQ(Events("lost").size(), 1U);
  const auto hosts = Events("host");
  ASSERT_EQ(hosts.size(), 2U) << "the other one holds it now";
  EXPECT_NE(hosts[1]["worker"], host);
  const Outcome why = Run({"why", "run"});
  EXPECT_TRUE(Says(why.out, "ranges of the model: coordinator | " + host)) << why.out;
}

TEST_F(ClusterProgramTest, ShardsAreRefusedWhereNobodyCouldHoldThem) {
  for (const auto& [more, words] : std::vector<std::pair<Arguments, std::string>>{
           {{"train"}, "motley serve"},
           {Arguments{"serve"} + Set("cluster.trusted_network=true"), "cluster.trusted_network"},
           {Arguments{"serve"} + Set("cluster.merged_head=true"), "cluster.merged_head"}}) {
    const Outcome outcome =
        Run(more + Arguments{"--out", "run"} + Set("data.train=glyphs") + Set("cluster.shards=2"));
    EXPECT_EQ(outcome.exit_code, 2) << outcome.err;
    EXPECT_TRUE(Says(outcome.err, "cluster.shards") && Says(outcome.err, words)) << outcome.err;
  }
  EXPECT_FALSE(fs::exists(folder() / "run"));
}

TEST_F(ClusterProgramTest, WorkersComeBackToACoordinatorThatWasKilledAndResumed) {
  auto server = ServeGlyphs(Set("checkpoint.every_seconds=0.2"));
  ASSERT_TRUE(Listens(*server));
  const std::string where = Where();
  auto worker = Join({"--name", "faithful", "--retry-seconds", "60"});
  ASSERT_TRUE(WaitForEvents(*server, "checkpoint", 2));
  server->Signal(SIGKILL);
  EXPECT_EQ(server->Wait(kLimit).signal, SIGKILL);
  SleepSeconds(1.0);
  fs::remove(folder() / "token");
  server = Serve({"--resume", "run", "--json"});
  ASSERT_TRUE(Listens(*server));
  EXPECT_EQ(Where(), where);
  const Outcome served = server->Wait(kLimit);
  EXPECT_EQ(served.exit_code, 0) << served.out << served.err;
  const json answer = json::parse(served.out);
  EXPECT_EQ(answer["samples"], 8000);
  EXPECT_EQ(answer["run"], "run");
  EXPECT_EQ(worker->Wait(kLimit).exit_code, 0);
  EXPECT_EQ(Events("run_started").size(), 2U);
  EXPECT_TRUE(Events("run_started")[1]["resumed"]);
}

TEST_F(ClusterProgramTest, SigTermMakesAWorkerLeaveAndCtrlCStopsTheServer) {
  auto server = ServeForever();
  ASSERT_TRUE(Listens(*server));
  auto leaver = Join({"--name", "leaver", "--json"});
  auto stayer = Join({"--name", "stayer"});
  ASSERT_TRUE(WaitForEvents(*server, "joined", 2));
  leaver->Signal(SIGTERM);
  const Outcome left = leaver->Wait(kLimit);
  EXPECT_EQ(left.exit_code, 0) << left.out << left.err;
  EXPECT_EQ(json::parse(left.out)["end"], "left");
  ASSERT_TRUE(WaitForEvents(*server, "left", 1));
  EXPECT_EQ(Events("left")[0]["worker"], "leaver");

  server->Signal(SIGINT);
  const Outcome stopped = server->Wait(kLimit);
  EXPECT_EQ(stopped.exit_code, 4) << stopped.out << stopped.err;
  EXPECT_TRUE(Says(stopped.out, "next: motley serve --resume run")) << stopped.out;
  EXPECT_EQ(Summary()["stop"], "interrupted");
  const Outcome stayed = stayer->Wait(kLimit);
  EXPECT_EQ(stayed.exit_code, 0) << stayed.out << stayed.err;
}

TEST_F(ClusterProgramTest, CtrlCEndsAServerThatNobodyJoined) {
  auto server = ServeForever();
  ASSERT_TRUE(WaitForEvents(*server, "waiting", 1));
  server->Signal(SIGINT);
  const Outcome stopped = server->Wait(kLimit);
  EXPECT_EQ(stopped.exit_code, 4) << stopped.out << stopped.err;
}

TEST_F(ClusterProgramTest, StatusShowsMembersNamedByHostAndRank) {
  auto server = ServeForever();
  ASSERT_TRUE(Listens(*server));
  auto ranked = Join({}, {{"SLURM_PROCID", "3"}, {"SLURM_NTASKS", "4"}});
  auto unnamed = Join();
  ASSERT_TRUE(WaitForEvents(*server, "joined", 2));
  SleepSeconds(0.3);
  const json status = Status();
  EXPECT_EQ(status["model"], "lenet");
  EXPECT_GT(status["step"], 0);
  ASSERT_EQ(status["members"].size(), 2U);
  std::set<std::string> names;
  std::int64_t shares = 0;
  for (const json& member : status["members"]) {
    names.insert(member["name"].get<std::string>());
    shares += member["share"].get<std::int64_t>();
    EXPECT_GT(member["age_seconds"], 0.0);
    EXPECT_LT(member["silent_seconds"], 5.0);
  }
  EXPECT_TRUE(names.contains(HostName() + "-3")) << status;
  EXPECT_EQ(shares, 64);
  const Outcome table = Run({"status", Where()}, {{"MOTLEY_TOKEN", Content(folder() / "token")}});
  EXPECT_EQ(table.exit_code, 0) << table.err;
  for (const char* word : {"lenet on glyphs", "samples/s", "share", "silent", "native"}) {
    EXPECT_TRUE(Says(table.out, word)) << table.out;
  }
}

TEST_F(ClusterProgramTest, ARevokedTokenLetsNobodyIn) {
  auto server = ServeForever();
  ASSERT_TRUE(Listens(*server));
  const auto listed = json::parse(Run({"token", "list", "run", "--json"}).out);
  ASSERT_EQ(listed.size(), 1U);
  EXPECT_EQ(listed[0]["state"], "valid");
  const Outcome made = Run({"token", "new", "run", "--hours", "1", "--json"});
  ASSERT_EQ(made.exit_code, 0) << made.err;
  const json second = json::parse(made.out);
  EXPECT_EQ(second["join"],
            "motley join " + Where() + " --token " + second["token"].get<std::string>());

  const Outcome revoked = Run({"token", "revoke", "run", listed[0]["id"].get<std::string>()});
  EXPECT_EQ(revoked.exit_code, 0) << revoked.err;
  EXPECT_TRUE(Says(Run({"token", "list", "run"}).out, "revoked"));
  const Outcome refused = Run({"join", Where(), "--token-file", "token"});
  EXPECT_EQ(refused.exit_code, 2) << refused.out << refused.err;
  EXPECT_TRUE(WaitForEvents(*server, "refused", 1));
  const Outcome let_in =
      Run({"status", Where(), "--token", second["token"].get<std::string>(), "--json"});
  EXPECT_EQ(let_in.exit_code, 0) << let_in.err;
  EXPECT_EQ(Run({"token", "revoke", "run", "0123456789abcdef"}).exit_code, 2);
}

TEST_F(ClusterProgramTest, AListedDeviceComputesWithoutAnybodyElse) {
  WriteSmallIdx(folder() / "data", 160, 40);
  for (const char* trusted : {"false", "true"}) {
    const std::string out = std::string("run-") + trusted;
    const Outcome outcome =
        Run(Arguments{"serve", "--insecure", "--listen", "127.0.0.1:0", "--out", out, "--json"} +
            Set("data.train=idx:data") + Set("train.batch=16") + Set("train.epochs=2") +
            Set("train.learning_rate=0.001") + Set("device.threads=1") +
            Set(std::string("cluster.trusted_network=") + trusted));
    ASSERT_EQ(outcome.exit_code, 0) << outcome.out << outcome.err;
    const json answer = json::parse(outcome.out);
    EXPECT_EQ(answer["steps"], 20);
    ASSERT_EQ(answer["devices"].size(), 1U);
    EXPECT_EQ(answer["devices"][0]["name"], "host");
    EXPECT_EQ(answer["devices"][0]["samples"], 320);
    EXPECT_TRUE(Says(outcome.err, "WITHOUT ENCRYPTION")) << outcome.err;
  }
}

TEST_F(ClusterProgramTest, SaysBeforeTheFirstStepThatPrivateSamplesOfAWorkerDoNotFit) {
  WriteSmallIdx(folder() / "data", 1024, 40);
  WriteSmallIdx(folder() / "private", 7168, 8);  // seven eighths of all, on one of two
  auto server = Serve(Arguments{"--out", "run", "--listen", "127.0.0.1:0"} +
                      Set("data.train=idx:data") + Set("train.batch=1024") + Set("train.epochs=1") +
                      Set("train.learning_rate=0.001") + Set("cluster.min_workers=2"));
  ASSERT_TRUE(Listens(*server)) << server->Wait(0).err;
  auto open = Join({"--name", "open"});
  // So slow that what others need for joining does not matter.
  auto secret = Join({"--name", "secret", "--private", "idx:private", "--speed", "0.2"});
  const Outcome served = server->Wait(kLimit);
  ASSERT_EQ(served.exit_code, 0) << served.out << served.err;
  std::string misfit;
  for (const json& decision : Events("decision")) {
    if (decision["step"] == 0) misfit = decision.value("does_not_fit", "");
  }
  EXPECT_TRUE(Says(misfit, "the private samples of secret do not fit: secret must do 896 of them"))
      << served.out;
  EXPECT_TRUE(Says(served.out, "the private samples of secret do not fit")) << served.out;
}

TEST_F(ClusterProgramTest, APortThatIsTakenIsRefusedBeforeAnythingIsWritten) {
  auto server = ServeForever();
  ASSERT_TRUE(Listens(*server));
  const Outcome second =
      Run(Arguments{"serve", "--listen", Where(), "--out", "second"} + Set("data.train=glyphs"));
  EXPECT_EQ(second.exit_code, 2);
  EXPECT_TRUE(Says(second.err, "cannot listen on " + Where())) << second.err;
  EXPECT_FALSE(fs::exists(folder() / "second"));
}

}  // namespace
}  // namespace motley::app
