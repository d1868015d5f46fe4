#include "motley/base/file.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cerrno>
#include <filesystem>
#include <fstream>

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

TEST_F(FileTest, RefusesMoreThanTheLimitBeforeReadingIt) {
  std::ofstream(folder_ / "hole").close();
  std::filesystem::resize_file(folder_ / "hole", std::uint64_t{1} << 40);  // takes no space
  EXPECT_FALSE(ReadFile(folder_ / "hole", 1000).ok());
}

TEST_F(FileTest, AFullFileSystemIsNamedWithWhatToDo) {
  const std::string_view content = "more than fits";
  const Status status = WriteFileSynced("/dev/full", {&content, 1});
  ASSERT_FALSE(status.ok());
  EXPECT_NE(status.message().find("/dev/full: cannot write: No space left"), std::string::npos);
  EXPECT_NE(status.message().find("the file system at /dev)"), std::string::npos)
      << status.message();
  EXPECT_NE(status.fix().find("free space on /dev"), std::string::npos);
  // A file that could not even be made has no file system but its folder's.
  EXPECT_NE(FileError("/dev/no/such/folder", "create", ENOSPC).fix().find("/dev,"),
            std::string::npos);
  EXPECT_EQ(FileError(folder_, "write", EIO).fix(), "");
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

TEST_F(FileTest, TheSha256OfAFileIsThatOfItsContent) {
  for (const std::size_t size : {0, 1, 65536, 200'000}) {
    const std::string content(size, 'x');
    ASSERT_TRUE(ReplaceFile(folder_ / "a", content).ok());
    EXPECT_EQ(*Sha256OfFile(folder_ / "a"), Sha256(content));
  }
  EXPECT_EQ(Sha256OfFile(folder_ / "nothing").status().code(), Code::kNotFound);
}

}  // namespace
}  // namespace motley::base
