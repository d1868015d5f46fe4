#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "apps/motley/address.h"
#include "apps/motley/cluster_folder.h"
#include "apps/motley/coordinator_access.h"
#include "apps/motley/data_spec.h"
#include "apps/motley/launcher.h"

namespace motley::app {
namespace {

namespace fs = std::filesystem;

class Folder {
 public:
  Folder() {
    std::string name = (fs::path(testing::TempDir()) / "motley-XXXXXX").string();
    EXPECT_NE(::mkdtemp(name.data()), nullptr);
    path = name;
  }
  ~Folder() { fs::remove_all(path); }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  fs::path path;
};

TEST(AddressTest, TakesHostsWithAndWithoutAPort) {
  EXPECT_EQ(*ParseAddress("node7:80"), (Address{"node7", 80}));
  EXPECT_EQ(*ParseAddress("node7"), (Address{"node7", kDefaultPort}));
  EXPECT_EQ(*ParseAddress("10.0.0.7:0"), (Address{"10.0.0.7", 0}));
  EXPECT_EQ(*ParseAddress("[fe80::7]:80"), (Address{"fe80::7", 80}));
  EXPECT_EQ(*ParseAddress("fe80::7"), (Address{"fe80::7", kDefaultPort}));
  EXPECT_EQ(*ParseAddress("[::]"), (Address{"::", kDefaultPort}));
  for (const char* text : {"node7:80", "10.0.0.7:0", "[fe80::7]:80"}) {
    EXPECT_EQ(ParseAddress(text)->ToText(), text);
  }
}

TEST(AddressTest, RefusesAllElseWithTheForm) {
  for (const char* wrong : {"", ":80", "a:", "a:b", "a:70000", "a:-1", "a:80x", "[fe80::7",
                            "[a]:80", "[::1]80", "a b:80", "http://a:80", "a\n:80"}) {
    const auto address = ParseAddress(wrong);
    ASSERT_FALSE(address.ok()) << wrong;
    EXPECT_NE(address.status().fix().find("HOST:PORT"), std::string::npos) << wrong;
  }
}

TEST(AddressTest, TellsWhatOtherMachinesReach) {
  for (const char* here : {"127.0.0.1", "127.1.2.3", "::1", "localhost"}) {
    EXPECT_TRUE(IsLoopback(here)) << here;
  }
  for (const char* there : {"0.0.0.0", "::", "10.0.0.7", "node7", "127.0.0.1.example.org"}) {
    EXPECT_FALSE(IsLoopback(there)) << there;
  }
  EXPECT_TRUE(IsEveryAddress("0.0.0.0"));
  EXPECT_TRUE(IsEveryAddress("::"));
  EXPECT_FALSE(IsEveryAddress("127.0.0.1"));
  EXPECT_FALSE(IsEveryAddress(ReachableHost()));
}

TEST(AddressTest, SeesAPortThatIsTaken) {
  const int fd = ::socket(AF_INET, SOCK_STREAM, 0);
  ASSERT_EQ(::listen(fd, 1), 0);  // at a port that the system chooses
  sockaddr_storage storage{};
  socklen_t size = sizeof(storage);
  ASSERT_EQ(::getsockname(fd, reinterpret_cast<sockaddr*>(&storage), &size), 0);
  const auto* bytes = reinterpret_cast<const unsigned char*>(&storage);
  const int port = bytes[2] * 256 + bytes[3];  // sockaddr_in: family, port, …
  const auto taken = CheckCanListen({"127.0.0.1", port});
  ::close(fd);
  EXPECT_FALSE(taken.ok());
  EXPECT_NE(taken.fix().find("--listen"), std::string::npos) << taken.ToString();
  EXPECT_TRUE(CheckCanListen({"127.0.0.1", port}).ok());
  EXPECT_TRUE(CheckCanListen({"127.0.0.1", 0}).ok());
  EXPECT_FALSE(CheckCanListen({"192.0.2.1", 0}).ok()) << "no address of this machine";
}

TEST(LauncherTest, TakesRankAndSizeOfEveryLauncher) {
  EXPECT_FALSE(LaunchOf({{"HOME", "/"}})->has_value());
  const std::pair<const char*, const char*> launchers[] = {
      {"RANK", "WORLD_SIZE"},
      {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"},
      {"PMI_RANK", "PMI_SIZE"},
      {"SLURM_PROCID", "SLURM_NTASKS"}};
  for (const auto& [rank, size] : launchers) {
    const auto launch = LaunchOf({{rank, "2"}, {size, "3"}});
    ASSERT_TRUE(launch.ok() && *launch) << rank;
    EXPECT_EQ((*launch)->rank, 2) << rank;
    EXPECT_EQ((*launch)->size, 3) << rank;
  }
}

TEST(LauncherTest, TheInnermostLauncherCounts) {
  const auto launch = LaunchOf({{"SLURM_PROCID", "0"},
                                {"SLURM_NTASKS", "1"},
                                {"OMPI_COMM_WORLD_RANK", "5"},
                                {"OMPI_COMM_WORLD_SIZE", "8"}});
  ASSERT_TRUE(launch.ok() && *launch);
  EXPECT_EQ((*launch)->launcher, "Open MPI");
  EXPECT_EQ((*launch)->rank, 5);
}

TEST(LauncherTest, OneVariableAloneIsSomebodysOwn) {
  EXPECT_FALSE(LaunchOf({{"RANK", "colonel"}})->has_value());
}

TEST(LauncherTest, RefusesRanksThatCannotBe) {
  for (const auto& [rank, size] : std::vector<std::pair<std::string, std::string>>{
           {"3", "3"}, {"-1", "3"}, {"one", "3"}, {"1", ""}, {"1", "3x"}}) {
    const auto launch = LaunchOf({{"RANK", rank}, {"WORLD_SIZE", size}});
    ASSERT_FALSE(launch.ok()) << rank << " of " << size;
    EXPECT_NE(launch.status().message().find("RANK"), std::string::npos);
  }
}

TEST(DataSpecTest, AFolderTellsItsForm) {
  const Folder folder;
  for (const char* name : {"idx", "cifar", "images"}) fs::create_directory(folder.path / name);
  std::ofstream(folder.path / "idx/train-images.idx3-ubyte.gz");
  std::ofstream(folder.path / "cifar/data_batch_1.bin");
  std::ofstream(folder.path / "a.tar.gz");
  for (const char* name : {"idx", "cifar", "images"}) {
    const std::string path = (folder.path / name).string();
    EXPECT_EQ(*DataSpecOf(path), std::string(name) + ":" + path);
  }
  EXPECT_EQ(*DataSpecOf((folder.path / "a.tar.gz").string()),
            "images:" + (folder.path / "a.tar.gz").string());
  for (const char* form : {"", "mnist", "glyphs", "idx:nowhere", "cifar:x", "images:x.tar"}) {
    EXPECT_EQ(*DataSpecOf(form), form);
  }
  EXPECT_FALSE(DataSpecOf((folder.path / "nowhere").string()).ok());
}

TEST(ClusterFolderTest, KeepsAddressIdentityAndTokensForTheNextProcess) {
  const Folder folder;
  const Place place{{"0.0.0.0", 7600}, {"10.0.0.7", 7600}, true};
  std::string fingerprint;
  {
    const ClusterFolder first(folder.path / "cluster");
    EXPECT_FALSE(first.LoadPlace()->has_value());
    ASSERT_TRUE(first.SavePlace(place).ok());
    fingerprint = first.identity()->fingerprint;
  }
  ClusterFolder second(folder.path / "cluster");
  const auto loaded = second.LoadPlace();
  ASSERT_TRUE(loaded.ok() && *loaded) << loaded.status().ToString();
  EXPECT_EQ((*loaded)->listen, place.listen);
  EXPECT_EQ((*loaded)->join, place.join);
  EXPECT_TRUE((*loaded)->tls);
  EXPECT_EQ(second.identity()->fingerprint, fingerprint);
  EXPECT_EQ(fs::status(folder.path / "cluster").permissions(), fs::perms::owner_all);

  const auto token = IssueToken(second, true, 1.0);
  ASSERT_TRUE(token.ok()) << token.status().ToString();
  EXPECT_EQ(token->fingerprint, fingerprint);
  EXPECT_TRUE(IssueToken(second, false, 1.0)->fingerprint.empty());
  EXPECT_EQ(JoinLine(place.join, *token), "motley join 10.0.0.7:7600 --token " + token->ToText());
}

TEST(ClusterFolderTest, ADamagedAddressIsRefusedWithItsFile) {
  const Folder folder;
  const ClusterFolder cluster(folder.path / "cluster");
  ASSERT_TRUE(cluster.SavePlace({{"a", 1}, {"a", 1}, true}).ok());
  for (const char* text : {"", "[]", "{\"listen\": 3}", "{\"listen\": \"a:1\", \"join\": \"a:1\"}",
                           "{\"listen\": \"a:x\", \"join\": \"a:1\", \"tls\": true}"}) {
    std::ofstream(folder.path / "cluster/address.json") << text;
    const auto place = cluster.LoadPlace();
    ASSERT_FALSE(place.ok()) << text;
    EXPECT_NE(place.status().message().find("address.json"), std::string::npos);
  }
}

TEST(TokenOfTest, AFlagBeatsTheEnvironment) {
  const Folder folder;
  const auto token = [](char digit) {
    return cluster::JoinToken{std::string(16, digit), std::string(32, digit), ""};
  };
  const Environment environment = {{"MOTLEY_TOKEN", token('1').ToText()}};
  std::ofstream(folder.path / "token") << token('2').ToText() << "\n";
  EXPECT_EQ(TokenOf({}, environment)->id, token('1').id);
  EXPECT_EQ(TokenOf({.token_file = folder.path / "token"}, environment)->id, token('2').id);
  EXPECT_EQ(TokenOf({.token = token('3').ToText()}, environment)->id, token('3').id);
  EXPECT_FALSE(TokenOf({}, {}).ok());
  EXPECT_FALSE(TokenOf({.token_file = folder.path / "nowhere"}, environment).ok());
  const auto damaged = TokenOf({}, {{"MOTLEY_TOKEN", "motley1-abc"}});
  ASSERT_FALSE(damaged.ok());
  EXPECT_EQ(damaged.status().code(), base::Code::kInvalidInput);
  EXPECT_NE(damaged.status().message().find("MOTLEY_TOKEN"), std::string::npos);
}

}  // namespace
}  // namespace motley::app
