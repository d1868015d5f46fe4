#include "motley/data/open.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <string>

#include "tests/data/test_files.h"

namespace motley::data {
namespace {

TEST(OpenTest, ListsTheFormsWhenTheNameIsUnknown) {
  for (const std::string spec : {"", "minst", "tar:x", "idx", "mnist:"}) {
    const auto pair = Open(spec, "", {});
    ASSERT_FALSE(pair.ok());
    EXPECT_EQ(pair.status().code(), base::Code::kInvalidInput);
    EXPECT_NE(pair.status().message().find("'" + spec + "'"), std::string::npos);
    EXPECT_NE(pair.status().fix().find("idx:DIR"), std::string::npos);
  }
}

TEST(OpenTest, NamesAPathThatDoesNotExist) {
  const auto pair = Open("idx:/no/such/folder", "", {});
  ASSERT_FALSE(pair.ok());
  EXPECT_EQ(pair.status().code(), base::Code::kNotFound);
  EXPECT_NE(pair.status().message().find("/no/such/folder"), std::string::npos);
}

TEST(OpenTest, AnAbsoluteNameIsFoundFromAnyFolder) {
  const std::string here = std::filesystem::current_path().string();
  EXPECT_EQ(AbsoluteSpec("idx:data"), "idx:" + here + "/data");
  EXPECT_EQ(AbsoluteSpec("images:./a/../b.tar"), "images:" + here + "/b.tar");
  for (const std::string spec : {"", "mnist", "glyphs", "cifar:", "cifar:/data", "other:data"}) {
    EXPECT_EQ(AbsoluteSpec(spec), spec);
  }
}

TEST(OpenTest, RefusesSetsOfDifferentShape) {
  const TestFolder folder;
  const std::string labels = Idx({2}, std::string("\0\1", 2));
  folder.Write("a/train-images-idx3-ubyte", Idx({2, 1, 1}, "ab"));
  folder.Write("a/train-labels-idx1-ubyte", labels);
  folder.Write("b/t10k-images-idx3-ubyte", Idx({2, 1, 2}, "abcd"));
  folder.Write("b/t10k-labels-idx1-ubyte", labels);
  const auto pair =
      Open("idx:" + (folder.path() / "a").string(), "idx:" + (folder.path() / "b").string(), {});
  ASSERT_FALSE(pair.ok());
  EXPECT_EQ(pair.status().message(), "training images are 1x1x1, test images are 1x1x2");
}

TEST(FetchTest, KnowsOnlyMnist) { EXPECT_FALSE(Fetch("imagenet", {.cache = "/tmp"}).ok()); }

TEST(FetchTest, SaysHowToGetMnistWhenItMayNotFetch) {
  const TestFolder folder;
  const OpenOptions options{.cache = folder.path(), .fetch = false};
  const auto fetched = Fetch("mnist", options);
  ASSERT_FALSE(fetched.ok());
  EXPECT_EQ(fetched.status().code(), base::Code::kNotFound);
  EXPECT_NE(fetched.status().fix().find("motley data get mnist"), std::string::npos);
  EXPECT_FALSE(Open("mnist", "", options).ok());
}

TEST(FetchTest, RefusesFilesThatAreNotTheOriginals) {
  const TestFolder folder;
  folder.Write("mnist/train-images-idx3-ubyte", Idx({1, 1, 1}, "a"));
  const auto fetched = Fetch("mnist", {.cache = folder.path(), .fetch = false});
  ASSERT_FALSE(fetched.ok());
  EXPECT_NE(fetched.status().message().find("SHA-256"), std::string::npos);
}

}  // namespace
}  // namespace motley::data
