#include "motley/sim/timeline.h"

#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <numeric>

#include "motley/base/rng.h"
#include "motley/plan/update_time.h"
#include "tests/run/linear.h"

namespace motley::sim {
namespace {

TimedDevice Each(double seconds_per_sample, const std::string& service = "constant") {
  return {.curve = {.seconds_per_sample = seconds_per_sample},
          .pace = {},
          .service = Service::Parse(service).value()};
}

TEST(ServiceTest, HasTheMeanOfTheCurve) {
  for (const char* text : {"constant", "exponential", "lognormal:0.5"}) {
    const Service service = Service::Parse(text).value();
    constexpr int kDraws = 200000;
    double sum = 0.0, squares = 0.0;
    for (std::uint64_t draw = 0; draw < kDraws; ++draw) {
      const double factor = service.Factor(base::Key({1, 2}), draw);
      ASSERT_GE(factor, 0.0);
      sum += factor;
      squares += factor * factor;
    }
    const double mean = sum / kDraws, variance = squares / kDraws - mean * mean;
    EXPECT_NEAR(mean, 1.0, 0.01) << text;
    const std::string name = text;
    const double expected = name == "constant"      ? 0.0
                            : name == "exponential" ? 1.0
                                                    : std::exp(0.25) - 1.0;
    EXPECT_NEAR(variance, expected, 0.03) << text;
  }
}

TEST(ServiceTest, DependsOnSeedDeviceAndDrawOnly) {
  const Service service = Service::Parse("exponential").value();
  EXPECT_EQ(service.Factor(base::Key({1, 2}), 3), service.Factor(base::Key({1, 2}), 3));
  EXPECT_NE(service.Factor(base::Key({1, 2}), 3), service.Factor(base::Key({2, 2}), 3));
  EXPECT_NE(service.Factor(base::Key({1, 2}), 3), service.Factor(base::Key({1, 3}), 3));
  EXPECT_NE(service.Factor(base::Key({1, 2}), 3), service.Factor(base::Key({1, 2}), 4));
}

TEST(ServiceTest, RepeatsATrace) {
  const run::ScratchFolder folder("service");
  const std::string file = (folder.path() / "trace.txt").string();
  std::ofstream(file) << "1\n2\n\n3.5\r\n";
  const Service service = Service::Parse("trace:" + file).value();
  std::vector<double> seen;
  for (std::uint64_t draw = 0; draw < 6; ++draw)
    seen.push_back(service.Factor(base::Key({1, 0}), draw));
  EXPECT_EQ(std::accumulate(seen.begin(), seen.begin() + 3, 0.0), 6.5);
  EXPECT_TRUE(std::equal(seen.begin(), seen.begin() + 3, seen.begin() + 3));
}

TEST(ServiceTest, RefusesWhatItIsNotWithThePlace) {
  for (const char* text : {"", "poisson", "lognormal:", "lognormal:x", "lognormal:0",
                           "lognormal:-1", "lognormal:5", "lognormal:nan", "trace:"}) {
    EXPECT_FALSE(Service::Parse(text).ok()) << text;
  }
  EXPECT_FALSE(Service::Parse("trace:/does/not/exist").ok());
  const run::ScratchFolder folder("service");
  const std::string file = (folder.path() / "trace.txt").string();
  for (const char* bad : {"1\n0\n", "1\n-2\n", "1\nx\n", "1\ninf\n", "1\n2 3\n"}) {
    std::ofstream(file) << bad;
    const auto parsed = Service::Parse("trace:" + file);
    ASSERT_FALSE(parsed.ok()) << bad;
    EXPECT_NE(parsed.status().message().find(file + ":2:"), std::string::npos);
  }
  std::ofstream(file, std::ios::trunc) << "\n";
  EXPECT_FALSE(Service::Parse("trace:" + file).ok());
}

// Every group again as soon as it is done, for so many updates.
std::vector<Timeline::Event> RunGroups(Timeline& timeline,
                                       const std::vector<std::vector<Timeline::Work>>& groups,
                                       int updates) {
  std::vector<Timeline::Event> events;
  for (std::size_t g = 0; g < groups.size(); ++g) {
    timeline.Begin(static_cast<int>(g), 0.0, groups[g], groups.size() == 1);
  }
  while (static_cast<int>(events.size()) < updates) {
    const auto event = timeline.Next().value();
    if (event.head) continue;
    events.push_back(event);
    const auto group = static_cast<std::size_t>(events.back().group);
    timeline.Begin(events.back().group, events.back().end, groups[group], groups.size() == 1);
  }
  return events;
}

TEST(TimelineTest, AddsUpTheWayOfAStep) {
  // 100 bytes: 1 s over the server's link, 4 s over the device's; half a second of latency.
  Timeline timeline({.devices = {{.curve = {.fixed_seconds = 1.0, .seconds_per_sample = 0.25},
                                  .pace = {.speed = 0.5, .slowdowns = {}},
                                  .service = {},
                                  .bytes_per_second = 25.0},
                                 Each(1.0)},
                     .latency_seconds = 0.5,
                     .model_bytes = 100.0,
                     .server_seconds = 2.0,
                     .server_bytes_per_second = 100.0});
  const std::vector<Timeline::Work> work = {{0, 8}};
  timeline.Begin(3, 10.0, work, /*alone=*/false);
  EXPECT_EQ(timeline.NextGroup(), 3);
  const auto event = timeline.Next();
  ASSERT_TRUE(event);
  // There 1 + 0.5 + 3, (1 + 8 / 4) / 0.5 of computing, back the same, 2 at the server.
  EXPECT_DOUBLE_EQ(event->compute_seconds.at(0), 6.0);
  EXPECT_DOUBLE_EQ(event->computed, 10.0 + 4.5 + 6.0);
  EXPECT_DOUBLE_EQ(event->end, 10.0 + 4.5 + 6.0 + 4.5 + 2.0);
  EXPECT_DOUBLE_EQ(timeline.ServerLinkSeconds(0), 4.5);
  EXPECT_FALSE(timeline.Next());
}

TEST(TimelineTest, QueuesAtTheServerInTheOrderOfArrival) {
  Timeline timeline({.devices = {Each(1.0), Each(1.1), Each(1.2)}, .server_seconds = 1.0});
  const auto events = RunGroups(timeline, {{{0, 1}}, {{1, 1}}, {{2, 1}}}, 6);
  // The server is busy from 1.0 on; each waits for the ones before.
  for (std::size_t i = 0; i < events.size(); ++i) {
    EXPECT_EQ(events[i].group, static_cast<int>(i % 3));
    EXPECT_NEAR(events[i].end, 2.0 + static_cast<double>(i), 1e-12);
  }
  EXPECT_EQ(events[5].staleness, 2);
}

TEST(TimelineTest, CountsTheUpdatesOfOthersSinceTheRead) {
  Timeline timeline({.devices = {Each(1.0), Each(3.5)}});
  std::vector<std::pair<int, std::int64_t>> seen;
  for (const Timeline::Event& event : RunGroups(timeline, {{{0, 1}}, {{1, 1}}}, 9)) {
    seen.emplace_back(event.group, event.staleness);
  }
  const std::vector<std::pair<int, std::int64_t>> expected = {
      {0, 0}, {0, 0}, {0, 0}, {1, 3}, {0, 1}, {0, 0}, {0, 0}, {0, 0}, {1, 4}};
  // At 7 s the fast one is first.
  EXPECT_EQ(seen, expected);
}

TEST(TimelineTest, HoldsAnUpdateThatWouldMakeAnotherTooStale) {
  // The first is done at 1, 2, 3, …, the second at 3.5.
  Timeline timeline({.devices = {Each(1.0), Each(3.5)}, .max_staleness = 2});
  std::vector<std::pair<int, double>> seen;
  for (const Timeline::Event& event : RunGroups(timeline, {{{0, 1}}, {{1, 1}}}, 8)) {
    EXPECT_LE(event.staleness, 2);
    seen.emplace_back(event.group, event.end);
  }
  // Its third update waits from 3 to 3.5, and so does its next one after two more.
  const std::vector<std::pair<int, double>> expected = {{0, 1.0}, {0, 2.0}, {1, 3.5}, {0, 3.5},
                                                        {0, 4.5}, {1, 7.0}, {0, 7.0}, {0, 8.0}};
  EXPECT_EQ(seen, expected);
}

TEST(TimelineTest, KeepsTheBoundOfStalenessForAnyGroupsAndGoesOn) {
  for (const int groups : {2, 4, 8}) {
    for (const std::int64_t bound : {groups - 1, groups, 2 * groups}) {
      std::vector<TimedDevice> devices;
      std::vector<std::vector<Timeline::Work>> work;
      for (int g = 0; g < groups; ++g) {
        work.push_back({{devices.size(), 1}});
        devices.push_back(Each(g % 3 == 0 ? 1.0 : 0.2, "exponential"));
      }
      const auto stalest = [&](std::int64_t max_staleness) {
        Timeline timeline({.devices = devices,
                           .latency_seconds = 0.01,
                           .server_seconds = 0.05,
                           .max_staleness = max_staleness});
        std::int64_t most = 0;
        double last = 0.0;
        for (const Timeline::Event& event : RunGroups(timeline, work, 2000)) {
          most = std::max(most, event.staleness);
          EXPECT_GE(event.end, last);
          last = event.end;
        }
        return most;
      };
      EXPECT_EQ(stalest(bound), bound) << groups;
      EXPECT_GT(stalest(0), bound) << groups;
    }
  }
}

TEST(TimelineTest, AFailedDeviceNoLongerHoldsUpdates) {
  std::vector<TimedDevice> devices = {Each(1.0), Each(100.0)};
  devices[1].fails_at = 5.25;
  Timeline timeline({.devices = devices, .max_staleness = 1});
  const std::vector<Timeline::Work> fast = {{0, 1}}, slow = {{1, 1}};
  timeline.Begin(0, 0.0, fast, false);
  timeline.Begin(1, 0.0, slow, false);
  EXPECT_DOUBLE_EQ(timeline.Next()->end, 1.0);
  timeline.Begin(0, 1.0, fast, false);
  EXPECT_EQ(timeline.Next()->lost, 1U);
  const auto event = timeline.Next().value();
  EXPECT_EQ(event.group, 0);
  EXPECT_DOUBLE_EQ(event.end, 5.25);
  EXPECT_FALSE(timeline.Next());
}

TEST(TimelineTest, AFailureGivesUpTheStepOfItsGroupAndNoOther) {
  std::vector<TimedDevice> devices = {Each(1.0), Each(1.0), Each(2.0), Each(1.0)};
  devices[1].fails_at = 0.5;
  devices[3].fails_at = 1.5;  // in no step
  Timeline timeline({.devices = devices});
  const std::vector<Timeline::Work> pair = {{0, 1}, {1, 1}}, single = {{2, 1}};
  timeline.Begin(0, 0.0, pair, false);
  timeline.Begin(1, 0.0, single, false);
  auto event = timeline.Next().value();
  EXPECT_EQ(event.lost, 1U);
  EXPECT_EQ(event.group, 0);
  EXPECT_DOUBLE_EQ(event.end, 0.5);
  const std::vector<Timeline::Work> left = {{0, 1}};
  timeline.Begin(0, 0.5, left, false);
  event = timeline.Next().value();
  EXPECT_EQ(event.lost, 3U);
  EXPECT_EQ(event.group, -1);
  event = timeline.Next().value();
  EXPECT_FALSE(event.lost);
  EXPECT_EQ(event.group, 0);
  EXPECT_DOUBLE_EQ(event.end, 1.5);
  EXPECT_EQ(timeline.Next()->group, 1);
}

TEST(TimelineTest, IsTheSameForASeed) {
  const auto ends = [](std::uint64_t seed) {
    Timeline timeline(
        {.devices = {Each(1.0, "exponential"), Each(0.5, "lognormal:0.4")}, .seed = seed});
    std::vector<double> all;
    for (const auto& event : RunGroups(timeline, {{{0, 3}}, {{1, 3}}}, 50))
      all.push_back(event.end);
    return all;
  };
  EXPECT_EQ(ends(1), ends(1));
  EXPECT_NE(ends(1), ends(2));
}

// Three predictions of seconds per update: the closed form and the queueing network against a run.
TEST(TimelineTest, AgreesWithTheFormulas) {
  for (const int groups : {1, 2, 4, 8}) {
    const plan::UpdateCosts costs{.compute_seconds = 8.0, .server_seconds = 0.4};
    const std::int64_t share = 64 * groups / 8;
    const auto seconds = [&](const std::string& service, double server) {
      std::vector<TimedDevice> devices(8, Each(8.0 / 64, service));
      Timeline timeline({.devices = devices, .server_seconds = server});
      std::vector<std::vector<Timeline::Work>> work(static_cast<std::size_t>(groups));
      for (std::size_t i = 0; i < 8; ++i) {
        work[i % work.size()].push_back({i, share});
      }
      // One group has no server: its update is in place.
      return RunGroups(timeline, work, 4000).back().end / 4000;
    };
    const double closed = plan::ClosedFormSeconds(costs, 8, groups);
    const double run = seconds("constant", groups == 1 ? 0.0 : 0.4);
    EXPECT_NEAR(run, groups == 1 ? 1.0 : closed, 0.02 * closed) << groups;
    if (groups < 8) continue;
    // Exponential service makes them meet at the server more often.
    const std::vector<double> away(8, 8.0), stations = {0.4};
    const double queueing = plan::QueueingSeconds(away, stations);
    EXPECT_NEAR(seconds("exponential", 0.4), queueing, 0.05 * queueing);
    EXPECT_GT(seconds("exponential", 0.4), 1.01 * closed);
  }
}

TEST(TimelineTest, AddsUpTheWayThroughAMergedHead) {
  // 8 samples of 50 bytes: 4 s over the server's link, 16 s over the device's.
  Timeline timeline(
      {.devices = {{.curve = {.fixed_seconds = 1.0, .seconds_per_sample = 0.25},
                    .pace = {.speed = 0.5, .slowdowns = {}},
                    .service = {},
                    .bytes_per_second = 25.0}},
       .latency_seconds = 0.5,
       .model_bytes = 100.0,
       .server_seconds = 2.0,
       .server_bytes_per_second = 100.0,
       .head = Timeline::Options::Head{.curve = {.fixed_seconds = 3.0, .seconds_per_sample = 0.5},
                                       .sample_bytes = 50.0,
                                       .forward_part = 0.25}});
  const std::vector<Timeline::Work> work = {{0, 8}};
  const double pass = 2 * (0.5 + 16.0) + 7.0;
  EXPECT_DOUBLE_EQ(timeline.HeadSeconds(work), pass);
  for (const bool alone : {false, true}) {
    const double begin = alone ? 200.0 : 100.0, link = alone ? 0.0 : 4.5;
    timeline.Begin(0, begin, work, alone);
    const auto head = timeline.Next().value();
    EXPECT_TRUE(head.head);
    EXPECT_DOUBLE_EQ(head.end, begin + link + 1.5 + 16.5 + 7.0);
    const auto event = timeline.Next().value();
    EXPECT_FALSE(event.head);
    EXPECT_DOUBLE_EQ(event.compute_seconds.at(0), 6.0);
    EXPECT_DOUBLE_EQ(event.computed, begin + link + 6.0);
    EXPECT_DOUBLE_EQ(event.end, begin + link + 6.0 + pass + link + (alone ? 0.0 : 2.0));
    EXPECT_FALSE(timeline.Next());
  }
}

// Passes of the head and updates come in the order of time, and each group's in its own.
TEST(TimelineTest, TellsPassesAndUpdatesInTheOrderOfTime) {
  std::vector<TimedDevice> devices;
  for (int i = 0; i < 6; ++i) devices.push_back(Each(0.5 + 0.1 * i, "exponential"));
  Timeline timeline(
      {.devices = devices,
       .latency_seconds = 0.01,
       .model_bytes = 3.0,
       .server_seconds = 0.05,
       .server_bytes_per_second = 100.0,
       .max_staleness = 7,
       .head = Timeline::Options::Head{
           .curve = {.seconds_per_sample = 0.1}, .sample_bytes = 2.0, .forward_part = 0.3}});
  std::vector<std::vector<Timeline::Work>> work;
  for (std::size_t i = 0; i < 6; ++i) work.push_back({{i, 1}});
  for (int g = 0; g < 6; ++g) timeline.Begin(g, 0.0, work[static_cast<std::size_t>(g)], false);
  std::vector<bool> passed(6);
  double last = 0.0, last_pass = 0.0;
  for (int i = 0; i < 4000; ++i) {
    const auto event = timeline.Next().value();
    ASSERT_GE(event.end, last);
    last = event.end;
    const auto g = static_cast<std::size_t>(event.group);
    ASSERT_EQ(event.head, !passed[g]);
    passed[g] = event.head;
    if (event.head) {
      EXPECT_GE(event.end, last_pass + 0.1 - 1e-9) << "one group at a time";
      last_pass = event.end;
    } else {
      EXPECT_LE(event.staleness, 7);
      timeline.Begin(event.group, event.end, work[g], false);
    }
  }
}

TEST(TimelineTest, AgreesWithTheFormulaOfAMergedHead) {
  // The head is a small part of the work, or what all wait for with four groups and more.
  for (const double head : {0.1, 2.5}) {
    for (const int groups : {1, 2, 4, 8}) {
      const plan::HeadCosts costs{.body_seconds = 8.0,
                                  .head_seconds = 1.0,
                                  .server_head_seconds = head,
                                  .body_bytes = 1e3,
                                  .head_bytes = 1e6,
                                  .activation_bytes = 64e2,
                                  .bytes_per_second = 1e9};
      Timeline timeline({.devices = std::vector<TimedDevice>(8, Each(8.0 / 64)),
                         .model_bytes = costs.body_bytes,
                         .server_bytes_per_second = costs.bytes_per_second,
                         .head = Timeline::Options::Head{.curve = {.seconds_per_sample = head / 64},
                                                         .sample_bytes = 1e2,
                                                         .forward_part = 0.4}});
      std::vector<std::vector<Timeline::Work>> work(static_cast<std::size_t>(groups));
      for (std::size_t i = 0; i < 8; ++i) work[i % work.size()].push_back({i, 8 * groups});
      const double run = RunGroups(timeline, work, 2000).back().end / 2000;
      const double merged =
          plan::ClosedFormSeconds(plan::WithMergedHead(costs, 8.0 / groups), 8, groups);
      EXPECT_NEAR(run, merged, 0.02 * merged) << groups << " groups, " << head << " s";
    }
  }
}

TEST(TimelineTest, OfUnequalGroupsAgreesWithTheQueueingNetwork) {
  const std::vector<double> away = {1.0, 2.0, 2.0, 5.0, 0.5};
  for (const double server : {0.02, 0.1, 0.3}) {
    std::vector<TimedDevice> devices;
    std::vector<std::vector<Timeline::Work>> work;
    for (const double seconds : away) {
      work.push_back({{devices.size(), 1}});
      devices.push_back(Each(seconds, "exponential"));
    }
    Timeline timeline({.devices = devices, .server_seconds = server});
    constexpr int kUpdates = 20000;
    const double run = RunGroups(timeline, work, kUpdates).back().end / kUpdates;
    const double queueing = plan::QueueingSeconds(away, std::vector<double>{server});
    // Service at the server is constant here and exponential there.
    EXPECT_NEAR(run, queueing, 0.1 * queueing) << server;
  }
}

}  // namespace
}  // namespace motley::sim
