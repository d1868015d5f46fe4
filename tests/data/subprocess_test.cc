#include "motley/data/subprocess.h"

#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>

#include "tests/data/test_files.h"

namespace motley::data {
namespace {

TEST(SubprocessTest, RunsInTheGivenFolder) {
  const TestFolder folder;
  EXPECT_TRUE(RunCommand({.arguments = {"touch", "here"}, .folder = folder.path()}).ok());
  EXPECT_TRUE(std::filesystem::exists(folder.path() / "here"));
}

TEST(SubprocessTest, GivesArgumentsToNoShell) {
  const TestFolder folder;
  EXPECT_TRUE(RunCommand({.arguments = {"touch", "$(echo a); b"}, .folder = folder.path()}).ok());
  EXPECT_TRUE(std::filesystem::exists(folder.path() / "$(echo a); b"));
}

TEST(SubprocessTest, ReportsTheExitCodeAndWhatTheProgramSaid) {
  const auto status =
      RunCommand({.arguments = {"sh", "-c", "echo no luck >&2; exit 3"}, .folder = "."});
  EXPECT_EQ(status.code(), base::Code::kUnavailable);
  EXPECT_EQ(status.message(), "sh: exit code 3; it said: no luck");
}

TEST(SubprocessTest, SaysWhenThereIsNoSuchProgram) {
  const auto status = RunCommand({.arguments = {"no-such-program-anywhere"}, .folder = "."});
  EXPECT_EQ(status.code(), base::Code::kNotFound);
}

TEST(SubprocessTest, SurvivesAProgramThatSaysVeryMuch) {
  const auto status =
      RunCommand({.arguments = {"sh", "-c", "yes | head -c 3000000 >&2; echo end >&2; exit 1"},
                  .folder = "."});
  EXPECT_TRUE(status.message().ends_with("end")) << status.message();
  EXPECT_LT(status.message().size(), 5000U);
}

TEST(SubprocessTest, KillsTheProgramAndItsChildrenAtTheDeadline) {
  const auto start = std::chrono::steady_clock::now();
  const auto status = RunCommand({.arguments = {"sh", "-c", "echo slow >&2; sleep 60 & sleep 60"},
                                  .folder = ".",
                                  .deadline_seconds = 0.3});
  EXPECT_EQ(status.code(), base::Code::kCancelled);
  EXPECT_NE(status.message().find("slow"), std::string::npos);
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(10));
}

}  // namespace
}  // namespace motley::data
