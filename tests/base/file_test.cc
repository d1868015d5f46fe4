#include "motley/base/file.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>

namespace motley::base {
namespace {

class FileTest : public testing::Test {
 protected:
  FileTest() : folder_(testing::TempDir() + "/file_test") {
    std::filesystem::remove_all(folder_);
    std::filesystem::create_directories(folder_);
  }
  std::filesystem::path folder_;
};

TEST_F(FileTest, ReplacesAFileAndLeavesNothingBeside) {
  ASSERT_TRUE(ReplaceFile(folder_ / "a", "one").ok());
  ASSERT_TRUE(ReplaceFile(folder_ / "a", "two").ok());
  EXPECT_EQ(*ReadFile(folder_ / "a"), "two");
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder_), {}), 1);
}

TEST_F(FileTest, AMissingFileIsNamed) {
  const auto result = ReadFile(folder_ / "nothing");
  EXPECT_EQ(result.status().code(), Code::kNotFound);
  EXPECT_NE(result.status().message().find("nothing"), std::string::npos);
}

TEST_F(FileTest, RefusesMoreThanTheLimit) {
  ASSERT_TRUE(ReplaceFile(folder_ / "big", std::string(1000, 'x')).ok());
  EXPECT_FALSE(ReadFile(folder_ / "big", 999).ok());
  EXPECT_TRUE(ReadFile(folder_ / "big", 1000).ok());
}

TEST_F(FileTest, RefusesAPipeInsteadOfWaitingForIt) {
  const std::filesystem::path pipe = folder_ / "pipe";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  EXPECT_FALSE(ReadFile(pipe).ok());
}

TEST_F(FileTest, RefusesAFolder) { EXPECT_FALSE(ReadFile(folder_).ok()); }

TEST(Sha256Test, MatchesTheStandardsExample) {
  EXPECT_EQ(Sha256("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
}

}  // namespace
}  // namespace motley::base
