#include "motley/telemetry/events.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <limits>
#include <thread>

#include "motley/base/file.h"

namespace motley::telemetry {
namespace {

using nlohmann::json;

class EventsTest : public testing::Test {
 protected:
  EventsTest()
      : folder_(testing::TempDir() + "/events_test_" + std::to_string(::getpid())),
        file_(folder_ / "events.jsonl") {
    std::filesystem::remove_all(folder_);
    std::filesystem::create_directories(folder_);
  }
  ~EventsTest() override { std::filesystem::remove_all(folder_); }

  std::unique_ptr<EventWriter> Open(const std::string& run = "r") {
    auto writer = EventWriter::Open(file_, run);
    EXPECT_TRUE(writer.ok()) << writer.status().ToString();
    return std::move(writer).value();
  }
  void Append(std::string_view text) { std::ofstream(file_, std::ios::app) << text; }

  std::filesystem::path folder_, file_;
};

TEST_F(EventsTest, AreOneLineEachWithTheCommonFieldsFirst) {
  auto writer = Open("run-7");
  writer->Write(0.0, "run_started", {{"step", 0}});
  writer->Write(1.5, "step", {{"step", 3}, {"a", "line\nbreak"}});
  const std::string content = *base::ReadFile(file_);
  EXPECT_EQ(std::count(content.begin(), content.end(), '\n'), 2);
  const std::string second = content.substr(content.find('\n') + 1);
  EXPECT_EQ(second.rfind(R"({"v":1,"time":1.5,"run":"run-7","event":"step",)", 0), 0U) << second;
  EXPECT_TRUE(writer->status().ok());
}

TEST_F(EventsTest, OnlyTheFirstOfEachProcessHasTheWallClock) {
  Open()->Write(0.0, "run_started", {});
  auto writer = Open();
  writer->Write(1.0, "run_started", {});
  writer->Write(2.0, "step", {});
  const auto events = *ReadEvents(file_);
  ASSERT_EQ(events.size(), 3U);
  EXPECT_EQ(events[0].at("wall_clock").get<std::string>().size(), 20U);
  EXPECT_TRUE(events[1].contains("wall_clock"));
  EXPECT_FALSE(events[2].contains("wall_clock"));
}

TEST_F(EventsTest, ATornLastLineIsLeftOutByTheReaderAndCutOffByTheWriter) {
  Open()->Write(0.0, "step", {{"step", 5}});
  const std::string whole = *base::ReadFile(file_);
  for (std::size_t torn = 1; torn < whole.size(); ++torn) {
    Append(std::string_view(whole).substr(0, torn));
    EXPECT_EQ(ReadEvents(file_)->size(), 1U);
    EXPECT_EQ(Open()->last_step(), 5);
    EXPECT_EQ(*base::ReadFile(file_), whole) << torn;
  }
}

TEST_F(EventsTest, ATornLineLongerThanOneReadIsCutOffToo) {
  Append("{\"event\":\"x\"}\n{\"event\":\"" + std::string(300'000, 'y'));
  EXPECT_EQ(Open()->last_step(), std::nullopt);
  EXPECT_EQ(*base::ReadFile(file_), "{\"event\":\"x\"}\n");
  std::filesystem::remove(file_);
  Append("{\"event");  // torn at the very first event
  Open();
  EXPECT_EQ(std::filesystem::file_size(file_), 0U);
}

TEST_F(EventsTest, TheLastStepIsThatOfTheLastEventThatHasOne) {
  {
    auto writer = Open();
    EXPECT_EQ(writer->last_step(), std::nullopt);
    writer->Write(0.0, "step", {{"step", 90}});
    writer->Write(1.0, "rolled_back", {{"step", 60}});
    writer->Write(2.0, "note", {{"text", "no step here"}});
  }
  EXPECT_EQ(Open()->last_step(), 60);
}

TEST_F(EventsTest, BlankAndForeignLinesDoNotHideTheLastStep) {
  Append("\n{\"step\":4}\n\n[]\nhello\n\n");
  EXPECT_EQ(Open()->last_step(), 4);
  std::filesystem::remove(file_);
  Append("\n");
  EXPECT_EQ(Open()->last_step(), std::nullopt);
}

TEST_F(EventsTest, BrokenTextIsReplacedAndInfinityIsNull) {
  Open()->Write(0.0, "x", {{"name", "\xff"}, {"loss", std::numeric_limits<double>::infinity()}});
  const auto events = ReadEvents(file_);
  ASSERT_TRUE(events.ok()) << events.status().ToString();
  EXPECT_TRUE(events->front().at("loss").is_null());
}

TEST_F(EventsTest, TheReaderNamesTheLineThatIsNoEvent) {
  Append("{}\n[1]\n");
  const auto events = ReadEvents(file_);
  ASSERT_FALSE(events.ok());
  EXPECT_NE(events.status().message().find("line 2"), std::string::npos);
}

TEST_F(EventsTest, AnUnwritablePlaceIsNamed) {
  const auto writer = EventWriter::Open(folder_ / "missing" / "events.jsonl", "r");
  ASSERT_FALSE(writer.ok());
  EXPECT_NE(writer.status().message().find("missing/events.jsonl"), std::string::npos);
}

TEST_F(EventsTest, ComeWholeFromManyThreads) {
  {
    auto writer = Open();
    std::vector<std::thread> threads;
    for (int t = 0; t < 4; ++t) {
      threads.emplace_back([&writer, t] {
        for (int i = 0; i < 200; ++i) writer->Write(i, "step", {{"thread", t}, {"step", i}});
      });
    }
    for (std::thread& thread : threads) thread.join();
  }
  EXPECT_EQ(ReadEvents(file_)->size(), 800U);
}

// A file-size limit makes the kernel take only a part of a line, as a full disk does.
TEST_F(EventsTest, AFullDiskIsReportedAndLeavesWholeLines) {
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    std::signal(SIGXFSZ, SIG_IGN);
    const rlimit limit{1000, 1000};
    if (::setrlimit(RLIMIT_FSIZE, &limit) != 0) ::_exit(2);
    auto writer = EventWriter::Open(file_, "r");
    if (!writer.ok()) ::_exit(3);
    for (int i = 0; i < 50; ++i) (*writer)->Write(i, "step", {{"step", i}});
    ::_exit((*writer)->status().ok() ? 4 : 0);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  const std::string content = *base::ReadFile(file_);
  EXPECT_EQ(content.back(), '\n');
  EXPECT_GT(ReadEvents(file_)->size(), 5U);
}

}  // namespace
}  // namespace motley::telemetry
