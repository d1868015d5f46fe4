#include "motley/run/checkpoint.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "motley/base/file.h"
#include "motley/base/rng.h"
#include "tests/run/linear.h"

namespace motley::run {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

TrainState SampleState(const graph::Graph& graph, std::int64_t step) {
  base::Rng rng(static_cast<std::uint64_t>(step) + 1);
  const auto random = [&rng](std::int64_t count) {
    std::vector<float> values(static_cast<std::size_t>(count));
    for (float& value : values) value = static_cast<float>(rng.Normal());
    return values;
  };
  TrainState state;
  state.step = step;
  state.samples = 1000 + step;
  state.seconds = 12.1;
  state.epoch = 2;
  state.epoch_size = 100;
  state.committed = {{0, 30}, {40, 50}};
  state.epoch_loss_sum = 0.1 + 0.2;  // a double that needs all its digits
  state.epoch_correct = 33;
  state.test = {0.7, 1.0 / 3.0, 40};
  state.weights = random(graph.parameter_count());
  state.velocity = random(graph.parameter_count());
  state.buffers = random(graph.buffer_count());
  state.kernel_choices = {{"fc", "gemm"}};
  state.job = {{"model", "linear \"quoted\" …"}, {"seed", "9"}};
  return state;
}

void ExpectSameManifest(const TrainState& a, const TrainState& b) {
  EXPECT_EQ(a.step, b.step);
  EXPECT_EQ(a.samples, b.samples);
  EXPECT_EQ(a.seconds, b.seconds);
  EXPECT_EQ(a.epoch, b.epoch);
  EXPECT_EQ(a.epoch_size, b.epoch_size);
  EXPECT_EQ(a.committed, b.committed);
  EXPECT_EQ(a.epoch_loss_sum, b.epoch_loss_sum);
  EXPECT_EQ(a.epoch_correct, b.epoch_correct);
  EXPECT_EQ(a.test.loss, b.test.loss);
  EXPECT_EQ(a.test.accuracy, b.test.accuracy);
  EXPECT_EQ(a.test.samples, b.test.samples);
  EXPECT_EQ(a.kernel_choices, b.kernel_choices);
  EXPECT_EQ(a.job, b.job);
}

class CheckpointTest : public testing::Test {
 protected:
  CheckpointTest() : scratch_("checkpoint_test"), folder_(scratch_.path() / "checkpoints") {}

  void Save(std::int64_t step, int keep = 3) { Save(SampleState(graph_, step), keep); }
  void Save(const TrainState& state, int keep = 3) {
    const auto saved = SaveCheckpoint(folder_, graph_, state, keep);
    ASSERT_TRUE(saved.ok()) << saved.ToString();
  }
  std::vector<std::string> Names() const {
    std::vector<std::string> names;
    for (const auto& entry : fs::directory_iterator(folder_)) {
      names.push_back(entry.path().filename().string());
    }
    std::sort(names.begin(), names.end());
    return names;
  }
  // The name of the folder that a resume would take; the message when there is none.
  std::string Found() const {
    const auto found = FindCheckpoint(folder_);
    if (!found.ok()) {
      EXPECT_EQ(found.status().code(), base::Code::kNotFound);
      return found.status().message();
    }
    return found->filename().string();
  }
  // As the link would be, had it been made so long after the checkpoint ckpt-20.
  void LinkLatestTo(const char* target, int seconds_after_ckpt_20) const {
    const fs::path link = folder_ / "latest";
    fs::remove(link);
    fs::create_symlink(target, link);
    struct stat written {};
    ASSERT_EQ(::stat((folder_ / "ckpt-20" / "manifest.json").c_str(), &written), 0);
    written.st_mtim.tv_sec += seconds_after_ckpt_20;
    const timespec times[] = {written.st_mtim, written.st_mtim};
    ASSERT_EQ(::utimensat(AT_FDCWD, link.c_str(), times, AT_SYMLINK_NOFOLLOW), 0);
  }
  static void Overwrite(const fs::path& file, std::string_view content) {
    std::ofstream(file, std::ios::binary | std::ios::trunc) << content;
  }

  ScratchFolder scratch_;
  fs::path folder_;
  graph::Graph graph_ = LinearGraph(/*batch_norm=*/true);
};

TEST_F(CheckpointTest, GivesBackEveryBitOfTheState) {
  const TrainState state = SampleState(graph_, 7);
  Save(state);
  EXPECT_EQ(Names(), (std::vector<std::string>{"ckpt-7", "latest"}));
  const auto loaded = LoadCheckpoint(folder_ / "latest", graph_);
  ASSERT_TRUE(loaded.ok()) << loaded.status().ToString();
  ExpectSameManifest(*loaded, state);
  EXPECT_EQ(loaded->weights, state.weights);
  EXPECT_EQ(loaded->velocity, state.velocity);
  EXPECT_EQ(loaded->buffers, state.buffers);
  const auto manifest = LoadManifest(folder_ / "ckpt-7");
  ASSERT_TRUE(manifest.ok());
  ExpectSameManifest(*manifest, state);
  EXPECT_TRUE(manifest->weights.empty());
}

TEST_F(CheckpointTest, KeepsTheNewestAndPointsToTheLast) {
  for (const std::int64_t step : {9, 10, 100, 101}) Save(step, 2);
  EXPECT_EQ(Names(), (std::vector<std::string>{"ckpt-100", "ckpt-101", "latest"}));
  EXPECT_EQ(fs::read_symlink(folder_ / "latest"), "ckpt-101");
  EXPECT_EQ(Found(), "ckpt-101");
}

TEST_F(CheckpointTest, ReplacesACheckpointOfTheSameStep) {
  Save(7);
  TrainState state = SampleState(graph_, 7);
  state.seconds = 99.0;
  state.weights[0] = 42.0F;
  Save(state);
  EXPECT_EQ(Names(), (std::vector<std::string>{"ckpt-7", "latest"}));
  const auto loaded = LoadCheckpoint(folder_ / "ckpt-7", graph_);
  ASSERT_TRUE(loaded.ok());
  EXPECT_EQ(loaded->seconds, 99.0);
  EXPECT_EQ(loaded->weights[0], 42.0F);
}

TEST_F(CheckpointTest, GoingBackLeavesLaterOnesUntilTheyAreOvertaken) {
  for (const std::int64_t step : {50, 90, 100}) Save(step, 3);
  Save(60, 2);
  EXPECT_EQ(Found(), "ckpt-60");
  EXPECT_EQ(Names(),
            (std::vector<std::string>{"ckpt-100", "ckpt-50", "ckpt-60", "ckpt-90", "latest"}));
  Save(110, 2);
  EXPECT_EQ(Names(), (std::vector<std::string>{"ckpt-100", "ckpt-110", "latest"}));
}

TEST_F(CheckpointTest, EveryTruncationIsRefusedByName) {
  Save(7);
  const fs::path checkpoint = folder_ / "ckpt-7";
  for (const std::string name : {"manifest.json", "state.safetensors"}) {
    const std::string whole = *base::ReadFile(checkpoint / name);
    // The manifest's last byte is a line break, which nothing depends on.
    const std::size_t end = name == "manifest.json" ? whole.size() - 1 : whole.size();
    for (std::size_t size = 0; size < end; ++size) {
      Overwrite(checkpoint / name, std::string_view(whole).substr(0, size));
      const auto loaded = LoadCheckpoint(checkpoint, graph_);
      ASSERT_FALSE(loaded.ok()) << name << " cut to " << size;
      ASSERT_NE(loaded.status().message().find("ckpt-7/" + name), std::string::npos)
          << loaded.status().message();
      ASSERT_FALSE(FindCheckpoint(folder_).ok());
    }
    Overwrite(checkpoint / name, whole);
    ASSERT_TRUE(LoadCheckpoint(checkpoint, graph_).ok());
  }
}

TEST_F(CheckpointTest, AHostileManifestIsRefusedWithTheKey) {
  Save(7);
  const fs::path file = folder_ / "ckpt-7" / "manifest.json";
  const json good = json::parse(*base::ReadFile(file));
  const auto ExpectRefused = [&](const std::string& key, const json& value) {
    json bad = good;
    bad[json::json_pointer("/" + key)] = value;
    Overwrite(file, bad.dump());
    const auto loaded = LoadManifest(folder_ / "ckpt-7");
    ASSERT_FALSE(loaded.ok()) << key << " = " << value;
    const std::string leaf = key.substr(key.rfind('/') + 1);
    if (leaf != "format" && leaf != "0") {
      EXPECT_NE(loaded.status().message().find(leaf), std::string::npos)
          << loaded.status().message();
    }
    EXPECT_NE(loaded.status().message().find("manifest.json"), std::string::npos);
  };
  for (const char* key : {"step", "samples", "epoch", "epoch_size", "epoch_correct", "state_bytes",
                          "test/samples", "version"}) {
    for (const json& value : {json("7"), json(-1), json(1.5), json(nullptr), json(json::array()),
                              json(18446744073709551615ULL)}) {
      ExpectRefused(key, value);
    }
  }
  for (const char* key : {"seconds", "epoch_loss_sum", "test/loss", "test/accuracy"}) {
    for (const json& value : {json("7"), json(nullptr), json(json::object())}) {
      ExpectRefused(key, value);
    }
  }
  ExpectRefused("seconds", -1.0);
  ExpectRefused("test/accuracy", 1.01);
  ExpectRefused("test", 3);
  ExpectRefused("format", "other");
  ExpectRefused("version", 2);
  ExpectRefused("epoch_size", 0);
  ExpectRefused("samples", 39);
  ExpectRefused("epoch_correct", 41);
  ExpectRefused("kernel_choices", json::array());
  ExpectRefused("job", {{"seed", 9}});
  for (const char* ranges :
       {"3", "[3]", "[[1]]", "[[1,2,3]]", "[[1.5,2]]", "[[5,5]]", "[[6,5]]", "[[0,5],[4,9]]",
        "[[5,9],[0,2]]", "[[-1,5]]", "[[0,101]]", "[[0,18446744073709551615]]", "[[\"0\",5]]"}) {
    ExpectRefused("committed", json::parse(ranges));
  }
  for (const auto& [key, unused] : good.items()) {
    json bad = good;
    bad.erase(key);
    Overwrite(file, bad.dump());
    EXPECT_FALSE(LoadManifest(folder_ / "ckpt-7").ok()) << key;
  }
  for (const char* text : {"", "null", "[]", "7", "{", "\xff\xfe", "{\"format\":{}}"}) {
    Overwrite(file, text);
    EXPECT_FALSE(LoadManifest(folder_ / "ckpt-7").ok()) << text;
  }
}

TEST_F(CheckpointTest, TheStateOfAnotherNetIsRefusedWithTheArray) {
  Save(7);
  const auto other = LoadCheckpoint(folder_ / "ckpt-7", LinearGraph(/*batch_norm=*/false));
  ASSERT_FALSE(other.ok());
  EXPECT_NE(other.status().message().find("'bn."), std::string::npos) << other.status().message();
  graph::GraphBuilder builder("wide", {1, kSide, kSide});
  const auto bn = builder.BatchNorm("bn", builder.input());
  const auto fc = builder.FullyConnected("fc", builder.Flatten("flat", bn), {.out_features = 4});
  const auto wide = LoadCheckpoint(folder_ / "ckpt-7", *std::move(builder).Build(fc));
  ASSERT_FALSE(wide.ok());
  EXPECT_NE(wide.status().message().find("'fc.weight' is 3x9"), std::string::npos)
      << wide.status().message();
}

TEST_F(CheckpointTest, NothingThereIsNotFound) {
  EXPECT_NE(Found().find("no such folder"), std::string::npos);
  fs::create_directories(folder_);
  EXPECT_NE(Found().find("holds no checkpoint"), std::string::npos);
  EXPECT_EQ(FindCheckpoint(folder_).status().code(), base::Code::kNotFound);
}

TEST_F(CheckpointTest, OneThatCannotBeReadIsNotTheSameAsNone) {
  Save(10);
  Overwrite(folder_ / "ckpt-10" / "manifest.json", "{}");
  EXPECT_EQ(FindCheckpoint(folder_).status().code(), base::Code::kInvalidInput);
}

// What a kill can leave behind, instant by instant.
TEST_F(CheckpointTest, AKillWhileWritingLeavesThePreviousOne) {
  Save(10);
  const fs::path leftover = folder_ / ".tmp-ckpt-20-1234";
  fs::create_directory(leftover);
  EXPECT_EQ(Found(), "ckpt-10");
  Overwrite(leftover / "state.safetensors", "half");
  EXPECT_EQ(Found(), "ckpt-10");
  fs::remove_all(leftover);
  fs::copy(folder_ / "ckpt-10", leftover, fs::copy_options::recursive);  // whole, not yet renamed
  EXPECT_EQ(Found(), "ckpt-10");
  Save(20);
  EXPECT_EQ(Names(), (std::vector<std::string>{"ckpt-10", "ckpt-20", "latest"}));
}

TEST_F(CheckpointTest, AKillBeforeTheLinkIsReplacedLeavesAUsableOne) {
  Save(10);
  Save(20);
  fs::remove(folder_ / "latest");
  EXPECT_EQ(Found(), "ckpt-20");  // killed before there ever was a link
  LinkLatestTo("ckpt-10", /*seconds_after_ckpt_20=*/-1);
  fs::create_symlink("ckpt-20", folder_ / ".tmp-latest-77");
  EXPECT_EQ(Found(), "ckpt-20");  // killed between the two renames
  Overwrite(folder_ / "ckpt-20" / "manifest.json", "{}");
  EXPECT_EQ(Found(), "ckpt-10");
  Save(30);
  EXPECT_EQ(Names(), (std::vector<std::string>{"ckpt-10", "ckpt-20", "ckpt-30", "latest"}));
}

TEST_F(CheckpointTest, ALinkThatSomebodyPointedBackIsFollowed) {
  Save(10);
  Save(20);
  LinkLatestTo("ckpt-10", /*seconds_after_ckpt_20=*/1);
  EXPECT_EQ(Found(), "ckpt-10");
}

TEST_F(CheckpointTest, ADamagedOneOfTheRightSizeIsPassedOverWithTheReason) {
  Save(10);
  Save(20);
  const fs::path file = folder_ / "ckpt-20" / "state.safetensors";
  const std::string whole = *base::ReadFile(file);
  for (const std::size_t place : {whole.size() - 1, whole.size() / 2}) {
    std::string damaged = whole;
    damaged[place] = static_cast<char>(damaged[place] ^ 1);
    Overwrite(file, damaged);
    std::vector<std::string> passed_over;
    const auto found = FindCheckpoint(folder_, &passed_over);
    ASSERT_TRUE(found.ok()) << found.status().ToString();
    EXPECT_EQ(found->filename(), "ckpt-10");
    ASSERT_EQ(passed_over.size(), 1U);
    EXPECT_NE(passed_over[0].find("ckpt-20/state.safetensors"), std::string::npos);
    EXPECT_FALSE(LoadCheckpoint(folder_ / "ckpt-20", graph_).ok());
  }
}

TEST_F(CheckpointTest, AKillWhilePruningLeavesTheNewest) {
  Save(10);
  Save(20);
  fs::remove(folder_ / "ckpt-10" / "manifest.json");
  fs::remove(folder_ / "latest");
  EXPECT_EQ(Found(), "ckpt-20");
  Save(30, 2);
  EXPECT_EQ(Names(), (std::vector<std::string>{"ckpt-20", "ckpt-30", "latest"}));
}

TEST_F(CheckpointTest, AKillWhileReplacingWithoutExchangeLeavesTheOneSetAside) {
  Save(10);
  fs::rename(folder_ / "ckpt-10", folder_ / ".old-ckpt-10");
  EXPECT_EQ(Found(), ".old-ckpt-10");
  EXPECT_TRUE(LoadCheckpoint(folder_ / ".old-ckpt-10", graph_).ok());
  Save(10);
  EXPECT_EQ(Names(), (std::vector<std::string>{"ckpt-10", "latest"}));
}

TEST_F(CheckpointTest, ABrokenOrForeignLinkIsPassedOver) {
  Save(10);
  Save(20);
  for (const char* target : {"ckpt-99", "nowhere", "/etc", "../checkpoints/ckpt-10", "latest"}) {
    fs::remove(folder_ / "latest");
    fs::create_symlink(target, folder_ / "latest");
    EXPECT_EQ(Found(), "ckpt-20") << target;
  }
  fs::remove(folder_ / "latest");
  Overwrite(folder_ / "latest", "ckpt-10");
  EXPECT_EQ(Found(), "ckpt-20");
}

TEST_F(CheckpointTest, NamesThatOnlyLookLikeCheckpointsArePassedOver) {
  Save(10);
  fs::remove(folder_ / "latest");
  for (const char* name : {"ckpt-", "ckpt-x", "ckpt-20x", "ckpt--5", "ckpt-99999999999999999999"}) {
    fs::copy(folder_ / "ckpt-10", folder_ / name, fs::copy_options::recursive);
  }
  fs::create_directory(folder_ / "ckpt-30");
  Overwrite(folder_ / "ckpt-40", "a file");
  EXPECT_EQ(Found(), "ckpt-10");
}

TEST_F(CheckpointTest, AFailedSaveLeavesThePreviousOneAndNoLitter) {
  Save(10);
  const auto saved =
      SaveCheckpoint(folder_ / "ckpt-10" / "manifest.json", graph_, SampleState(graph_, 20), 3);
  ASSERT_FALSE(saved.ok());
  EXPECT_NE(saved.message().find("manifest.json"), std::string::npos);
  EXPECT_EQ(Found(), "ckpt-10");
  EXPECT_EQ(Names(), (std::vector<std::string>{"ckpt-10", "latest"}));
}

}  // namespace
}  // namespace motley::run
