#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "motley/base/file.h"
#include "motley/graph/onnx.h"
#include "motley/graph/safetensors.h"
#include "motley/graph/zoo.h"
#include "tests/app/process.h"

namespace motley::app {
namespace {

namespace fs = std::filesystem;

// A small job on a small set in the folder `data`: ten steps.
std::vector<std::string> SmallTrain(std::vector<std::string> more = {}) {
  std::vector<std::string> arguments = {
      "train",          "--set", "data.train=idx:data",      "--set", "train.batch=16", "--set",
      "train.epochs=1", "--set", "train.learning_rate=0.001"};
  arguments.insert(arguments.end(), more.begin(), more.end());
  return arguments;
}

class ProgramTest : public testing::Test {
 protected:
  void SetUp() override { WriteSmallIdx(folder() / "data", 160, 40); }
  const fs::path& folder() const { return temporary_.path(); }
  Outcome Run(const std::vector<std::string>& arguments,
              const std::map<std::string, std::string>& environment = {}) const {
    return RunMotley(folder(), arguments, environment);
  }

 private:
  TemporaryFolder temporary_;
};

TEST_F(ProgramTest, HelpAndVersionEndWell) {
  for (const std::vector<std::string>& arguments :
       std::vector<std::vector<std::string>>{{"--help"},
                                             {"--version"},
                                             {"train", "--help"},
                                             {"train", "--help-keys"},
                                             {"export", "--help"},
                                             {"bench", "--help"},
                                             {"data", "get", "--help"}}) {
    const Outcome outcome = Run(arguments);
    EXPECT_EQ(outcome.exit_code, 0) << arguments.front();
    EXPECT_FALSE(outcome.out.empty()) << arguments.front();
  }
  EXPECT_TRUE(Says(Run({"train", "--help-keys"}).out, "learning_rate"));
}

TEST_F(ProgramTest, WrongUsageEndsWithTwoAndAHint) {
  EXPECT_EQ(Run({}).exit_code, 2);
  const Outcome verb = Run({"trian"});
  EXPECT_EQ(verb.exit_code, 2);
  EXPECT_TRUE(Says(verb.err, "did you mean `motley train`?")) << verb.err;
  const Outcome flag = Run({"train", "--jsno"});
  EXPECT_EQ(flag.exit_code, 2);
  EXPECT_TRUE(Says(flag.err, "did you mean --json?")) << flag.err;
  EXPECT_TRUE(Says(Run({"export"}).err, "`motley export --help`"));
  EXPECT_EQ(Run({"train", "--no-such-flag"}).exit_code, 2);
  EXPECT_EQ(Run({"train", "no-such-file.toml"}).exit_code, 2);
  EXPECT_EQ(Run({"train", "--set", "train.batch=0"}).exit_code, 2);
  EXPECT_EQ(Run({"train", "--set", "data.train=idx:nowhere"}).exit_code, 2);
  EXPECT_EQ(Run({"train", "--resume", "nowhere"}).exit_code, 2);
  EXPECT_EQ(Run({"export", "nowhere", "--onnx", "a.onnx"}).exit_code, 2);
  EXPECT_EQ(Run({"data", "get", "no-such-set"}).exit_code, 2);
  EXPECT_EQ(Run({"bench", "--model", "resnet19"}).exit_code, 2);
  EXPECT_FALSE(fs::exists(folder() / "runs")) << "a refused job must not leave files behind";
}

TEST_F(ProgramTest, EveryMistakeOfBenchComesWithAFix) {
  for (const auto& [flag, value] :
       std::vector<std::pair<std::string, std::string>>{{"--batch", "0"},
                                                        {"--batch", "many"},
                                                        {"--classes", "1"},
                                                        {"--classes", "-3"},
                                                        {"--input", "3x2"},
                                                        {"--input", "3x4x4"},
                                                        {"--input", "1000000x1x1"},
                                                        {"--model", "alexnat"},
                                                        {"--seconds", "0"},
                                                        {"--threads", "-1"}}) {
    std::vector<std::string> arguments = {"bench", flag, value};
    if (flag != "--model") arguments.insert(arguments.end(), {"--model", "alexnet"});
    const Outcome outcome = Run(arguments);
    EXPECT_EQ(outcome.exit_code, 2) << flag << " " << value;
    EXPECT_TRUE(Says(outcome.err, "\n  fix: ")) << outcome.err;
  }
}

TEST_F(ProgramTest, DryRunShowsWhereEveryValueCameFromAndWritesNothing) {
  std::ofstream(folder() / "job.toml") << "[data]\ntrain = \"idx:data\"\n[train]\nbatch = 8\n";
  const Outcome outcome = Run({"train", "job.toml", "--dry_run", "--json", "--set", "train.seed=9"},
                              {{"MOTLEY_TRAIN_MOMENTUM", "0.5"}});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  const auto json = nlohmann::json::parse(outcome.out);
  EXPECT_EQ(json["job"]["train.batch"]["value"], 8);
  EXPECT_EQ(json["job"]["train.batch"]["source"], "job file");
  EXPECT_EQ(json["job"]["train.batch"]["place"], "job.toml:4:1");
  EXPECT_EQ(json["job"]["train.momentum"]["source"], "environment");
  EXPECT_EQ(json["job"]["train.seed"]["source"], "flag");
  EXPECT_EQ(json["job"]["model.zoo"]["source"], "default");
  EXPECT_EQ(json["steps_per_epoch"], 20);
  EXPECT_FALSE(fs::exists(folder() / "runs"));
  EXPECT_TRUE(Says(Run({"train", "job.toml", "--dry-run"}).out, "job.toml:4:1"));
}

TEST_F(ProgramTest, AMistakeInTheTestSetNamesItsKey) {
  const Outcome missing = Run(SmallTrain({"--set", "data.test=idx:nowhere"}));
  EXPECT_EQ(missing.exit_code, 2);
  EXPECT_TRUE(Says(missing.err, "motley: --set data.test: data 'idx:nowhere'")) << missing.err;
  const Outcome classes = Run(SmallTrain({"--set", "data.test=glyphs"}));
  EXPECT_EQ(classes.exit_code, 2);
  EXPECT_TRUE(Says(classes.err, "motley: --set data.test: class 'arc'")) << classes.err;
  // The set's own test part has no key but that of the set.
  fs::remove(folder() / "data/t10k-labels-idx1-ubyte");
  EXPECT_TRUE(Says(Run(SmallTrain()).err, "motley: --set data.train: "));
}

TEST_F(ProgramTest, DryRunChecksEverythingElseWhileMnistIsNotHere) {
  const Outcome good = Run({"train", "--dry-run", "--json"});
  ASSERT_EQ(good.exit_code, 0) << good.err;
  const auto json = nlohmann::json::parse(good.out);
  EXPECT_EQ(json["data"]["opened"], false);
  EXPECT_EQ(json["steps_per_epoch"], 938);
  EXPECT_EQ(json["model"]["parameters"], 431080);
  for (const auto& [set, key] : std::vector<std::pair<std::string, std::string>>{
           {"data.test=idx:nowhere", "data.test"},
           {"data.resize=32x32", "data.resize"},
           {"data.crop=40x40", "data.crop"},
           {"data.mean=1,2", "data.mean"},
           {"train.batch=60001", "train.batch"},
           {"model.zoo=lanet", "model.zoo"},
           {"model.onnx=nowhere", "model.onnx"},
           {"model.weights=nowhere", "model.weights"}}) {
    const Outcome outcome = Run({"train", "--dry-run", "--set", set});
    EXPECT_EQ(outcome.exit_code, 2) << set;
    EXPECT_TRUE(Says(outcome.err, "--set " + key)) << outcome.err;
  }
  EXPECT_FALSE(fs::exists(folder() / ".local"));
}

TEST_F(ProgramTest, DryRunOfAResumeChecksWhatTheResumeWould) {
  ASSERT_EQ(Run(SmallTrain({"--out", "run"})).exit_code, 0);
  ASSERT_EQ(Run({"export", "run", "--onnx", "net.onnx"}).exit_code, 0);
  ASSERT_EQ(Run(SmallTrain({"--set", "model.onnx=net.onnx", "--out", "onnx"})).exit_code, 0);
  const Outcome other = Run({"train", "--dry-run", "--resume", "run", "--set", "train.seed=2"});
  EXPECT_EQ(other.exit_code, 2);
  EXPECT_TRUE(Says(other.err, "--set train.seed: the checkpoint was made with")) << other.err;
  EXPECT_EQ(Run({"train", "--dry-run", "--resume", "run"}).exit_code, 0);
  // The copy in the run directory serves, as it does without --dry-run.
  fs::remove(folder() / "net.onnx");
  const Outcome copy = Run({"train", "--dry-run", "--resume", "onnx"});
  EXPECT_EQ(copy.exit_code, 0) << copy.err;
}

TEST_F(ProgramTest, TrainsOnGlyphsAndLeavesAWholeRunDirectory) {
  const Outcome outcome = Run({"train", "--set", "data.train=glyphs", "--set",
                               "train.max_seconds=0.2", "--out", "run", "--json"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  const auto summary = nlohmann::json::parse(outcome.out);
  for (const char* key :
       {"accuracy", "loss", "steps", "samples", "seconds", "samples_per_second"}) {
    EXPECT_TRUE(summary[key].is_number()) << key;
  }
  EXPECT_EQ(summary["devices"].size(), 1U);
  EXPECT_EQ(summary["stop"], "time");
  EXPECT_TRUE(Says(outcome.err, "test acc")) << outcome.err;
  EXPECT_TRUE(Says(outcome.err, "next: motley export run --onnx lenet.onnx")) << outcome.err;
  for (const char* file : {"events.jsonl", "summary.json", "job.toml", "checkpoints/latest"}) {
    EXPECT_TRUE(fs::exists(folder() / "run" / file)) << file;
  }
}

TEST_F(ProgramTest, ARunDirectorysJobCanBeRunAgain) {
  ASSERT_EQ(Run(SmallTrain({"--out", "first"})).exit_code, 0);
  const Outcome again = Run({"train", "first/job.toml", "--out", "second"});
  EXPECT_EQ(again.exit_code, 0) << again.err;
  EXPECT_EQ(Content(folder() / "first/job.toml"), Content(folder() / "second/job.toml"));
}

TEST_F(ProgramTest, AMissedTargetEndsWithFourAndAReachedOneWithZero) {
  const auto target = [](const std::string& accuracy) {
    return SmallTrain({"--set", "train.target_accuracy=" + accuracy});
  };
  EXPECT_EQ(Run(target("0.01")).exit_code, 0);
  auto hopeless = target("1");
  hopeless.insert(hopeless.end(), {"--set", "train.learning_rate=1e-9"});
  const Outcome missed = Run(hopeless);
  EXPECT_EQ(missed.exit_code, 4);
  EXPECT_TRUE(Says(missed.out, "was not reached")) << missed.out;
}

TEST_F(ProgramTest, ARunThatDivergesEndsWithOne) {
  const Outcome outcome = Run(SmallTrain({"--set", "train.learning_rate=1e5"}));
  EXPECT_EQ(outcome.exit_code, 1);
  EXPECT_TRUE(Says(outcome.err, "train.learning_rate")) << outcome.err;
}

TEST_F(ProgramTest, RefusesToOverwriteARunOrSomebodysFiles) {
  ASSERT_EQ(Run(SmallTrain({"--out", "run"})).exit_code, 0);
  const std::string before = Content(folder() / "run/summary.json");
  const Outcome again = Run(SmallTrain({"--out", "run"}));
  EXPECT_EQ(again.exit_code, 2);
  EXPECT_TRUE(Says(again.err, "--resume run")) << again.err;
  EXPECT_EQ(Content(folder() / "run/summary.json"), before);

  std::ofstream(folder() / "job.toml") << "[data]\ntrain = \"idx:data\"\n";
  EXPECT_EQ(Run({"train", "job.toml", "--out", "."}).exit_code, 2);
  EXPECT_EQ(Run({"train", "job.toml", "--out", ".", "--resume", "auto"}).exit_code, 2);
  EXPECT_EQ(Content(folder() / "job.toml"), "[data]\ntrain = \"idx:data\"\n");
}

TEST_F(ProgramTest, AResumeOfAnotherJobNamesTheKeyThatDiffers) {
  ASSERT_EQ(Run(SmallTrain({"--out", "run"})).exit_code, 0);
  WriteSmallIdx(folder() / "other", 170, 40);
  const std::pair<const char*, const char*> differences[] = {
      {"train.seed=2", "train.seed"},         {"train.batch=32", "train.batch"},
      {"data.train=idx:other", "data.train"}, {"data.flip=true", "data.flip"},
      {"model.zoo=cifar_quick", "model.zoo"},
  };
  for (const auto& [set, key] : differences) {
    const Outcome outcome = Run({"train", "--resume", "run", "--set", set});
    EXPECT_EQ(outcome.exit_code, 2) << set;
    EXPECT_TRUE(Says(outcome.err, std::string("--set ") + key)) << outcome.err;
  }
}

TEST_F(ProgramTest, AResumedRunKeepsItsJobAndGoesOnToALaterGoal) {
  ASSERT_EQ(Run(SmallTrain({"--out", "run"})).exit_code, 0);
  const Outcome more = Run({"train", "--resume", "run", "--set", "train.epochs=3", "--json"});
  ASSERT_EQ(more.exit_code, 0) << more.err;
  EXPECT_EQ(nlohmann::json::parse(more.out)["steps"], 30);
  EXPECT_TRUE(Says(more.err, "resuming run at step 10")) << more.err;
  const Outcome other_threads =
      Run({"train", "--resume", "run", "--set", "train.epochs=4", "--set", "device.threads=3"});
  EXPECT_EQ(other_threads.exit_code, 0) << other_threads.err;
  EXPECT_TRUE(Says(other_threads.out, "not bit for bit")) << other_threads.out;
}

TEST_F(ProgramTest, ARunIsResumedFromAnyFolder) {
  ASSERT_EQ(Run(SmallTrain({"--out", "run"})).exit_code, 0);
  ASSERT_EQ(Run({"export", "run", "--onnx", "net.onnx"}).exit_code, 0);
  ASSERT_EQ(Run(SmallTrain({"--set", "data.test=idx:./data", "--set", "model.onnx=net.onnx",
                            "--out", "onnx"}))
                .exit_code,
            0);
  fs::create_directory(folder() / "elsewhere");
  for (const char* run : {"../run", "../onnx"}) {
    const Outcome outcome = RunMotley(
        folder() / "elsewhere", {"train", "--resume", run, "--set", "train.epochs=2", "--json"});
    ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
    EXPECT_EQ(nlohmann::json::parse(outcome.out)["steps"], 20);
  }
  EXPECT_TRUE(Says(Content(folder() / "onnx/job.toml"),
                   "onnx = \"" + (folder() / "net.onnx").string() + "\""));
}

TEST_F(ProgramTest, AResumeOnAnotherCpuChoosesKernelsAnewAndSaysSo) {
  ASSERT_EQ(Run(SmallTrain({"--out", "run"})).exit_code, 0);
  const fs::path file = folder() / "run/checkpoints/latest/manifest.json";
  auto manifest = nlohmann::json::parse(Content(file));
  EXPECT_FALSE(manifest["job"]["device.cpu"].get<std::string>().empty());
  const Outcome same = Run({"train", "--resume", "run", "--dry-run"});
  EXPECT_FALSE(Says(same.out, "another CPU")) << same.out;
  manifest["job"]["device.cpu"] = "Elbrus 2000";
  ASSERT_TRUE(base::ReplaceFile(file, manifest.dump()).ok());
  const Outcome other = Run({"train", "--resume", "run", "--set", "train.epochs=2"});
  EXPECT_EQ(other.exit_code, 0) << other.err;
  EXPECT_TRUE(Says(other.out, "another CPU (Elbrus 2000)")) << other.out;
}

TEST_F(ProgramTest, ResumeAutoTakesTheNewestRunOrBeginsOne) {
  ASSERT_EQ(Run(SmallTrain({"--resume", "auto"})).exit_code, 0);
  const Outcome more = Run(SmallTrain({"--resume", "auto", "--set", "train.epochs=2", "--json"}));
  ASSERT_EQ(more.exit_code, 0) << more.err;
  EXPECT_EQ(nlohmann::json::parse(more.out)["steps"], 20);
  EXPECT_EQ(std::distance(fs::directory_iterator(folder() / "runs"), {}), 1);
}

TEST_F(ProgramTest, ResumeAutoNeverOverwritesCheckpointsThatItCannotRead) {
  ASSERT_EQ(Run(SmallTrain({"--out", "run"})).exit_code, 0);
  for (const auto& entry : fs::directory_iterator(folder() / "run" / "checkpoints")) {
    if (!entry.is_directory() || entry.is_symlink()) continue;
    ASSERT_TRUE(base::ReplaceFile(entry.path() / "manifest.json", "{}").ok());
  }
  const Outcome outcome = Run(SmallTrain({"--out", "run", "--resume", "auto"}));
  EXPECT_EQ(outcome.exit_code, 2);
  EXPECT_TRUE(Says(outcome.err, "no usable checkpoint")) << outcome.err;
  EXPECT_EQ(*base::ReadFile(folder() / "run" / "checkpoints" / "latest" / "manifest.json"), "{}");
}

TEST_F(ProgramTest, AResumePassesOverADamagedCheckpointWithAWarning) {
  ASSERT_EQ(Run(SmallTrain({"--set", "train.epochs=2", "--out", "run"})).exit_code, 0);
  const fs::path file = folder() / "run/checkpoints/ckpt-20/state.safetensors";
  std::string state = Content(file);
  state.back() = static_cast<char>(state.back() ^ 1);
  ASSERT_TRUE(base::ReplaceFile(file, state).ok());
  const Outcome exported = Run({"export", "run", "--safetensors", "net.safetensors", "--json"});
  EXPECT_EQ(nlohmann::json::parse(exported.out)["step"], 10);
  EXPECT_TRUE(Says(exported.err, "warning: passed over: ")) << exported.err;
  for (const std::string resume : {"auto", "run"}) {
    const Outcome outcome = Run({"train", "--resume", resume, "--out", "run", "--dry-run"});
    ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
    EXPECT_TRUE(Says(outcome.out, "warning: passed over: run/checkpoints/ckpt-20/")) << outcome.out;
  }
  const Outcome outcome = Run({"train", "--resume", "auto", "--out", "run", "--json"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_TRUE(Says(outcome.err, "resuming run at step 10")) << outcome.err;
  EXPECT_EQ(nlohmann::json::parse(outcome.out)["steps"], 20);
}

TEST_F(ProgramTest, ExportLeavesLinksAloneAndWantsTwoNamesForTwoFiles) {
  ASSERT_EQ(Run(SmallTrain({"--out", "run"})).exit_code, 0);
  fs::create_symlink("elsewhere", folder() / "link");
  EXPECT_EQ(Run({"export", "run", "--onnx", "link"}).exit_code, 2);
  EXPECT_TRUE(fs::is_symlink(folder() / "link"));
  EXPECT_EQ(Run({"export", "run", "--onnx", "same", "--safetensors", "same"}).exit_code, 2);
  EXPECT_FALSE(fs::exists(folder() / "same"));
}

TEST_F(ProgramTest, ExportedWeightsStartAnotherRunAndReadBack) {
  ASSERT_EQ(Run(SmallTrain({"--out", "run"})).exit_code, 0);
  const Outcome exported =
      Run({"export", "run", "--safetensors", "net.safetensors", "--onnx", "net.onnx", "--json"});
  ASSERT_EQ(exported.exit_code, 0) << exported.err;
  EXPECT_EQ(nlohmann::json::parse(exported.out)["step"], 10);

  auto graph = graph::BuildZoo("lenet", {1, 28, 28}, 4);
  ASSERT_TRUE(graph.ok());
  graph::Model model = graph::InitialModel(std::move(graph).value(), 1);
  const auto fresh = model.weights;
  ASSERT_TRUE(graph::LoadWeights(folder() / "net.safetensors", model).ok());
  EXPECT_NE(model.weights, fresh);
  const auto from_onnx = graph::ReadOnnx(folder() / "net.onnx");
  ASSERT_TRUE(from_onnx.ok()) << from_onnx.status().ToString();
  EXPECT_EQ(from_onnx->weights, model.weights);

  EXPECT_EQ(Run(SmallTrain({"--set", "model.weights=net.safetensors"})).exit_code, 0);
  ASSERT_EQ(Run(SmallTrain({"--set", "model.onnx=net.onnx", "--out", "from-onnx"})).exit_code, 0);
  EXPECT_EQ(Content(folder() / "from-onnx/model.onnx"), Content(folder() / "net.onnx"));
  fs::remove(folder() / "net.onnx");
  EXPECT_EQ(Run({"export", "from-onnx", "--onnx", "again.onnx"}).exit_code, 0);
}

TEST_F(ProgramTest, ANetThatDoesNotFitTheDataIsRefusedWithTheKey) {
  ASSERT_EQ(Run(SmallTrain({"--out", "run"})).exit_code, 0);
  ASSERT_EQ(Run({"export", "run", "--onnx", "net.onnx"}).exit_code, 0);
  const Outcome classes =
      Run({"train", "--set", "data.train=glyphs", "--set", "model.onnx=net.onnx"});
  EXPECT_EQ(classes.exit_code, 2);
  EXPECT_TRUE(Says(classes.err, "--set model.onnx: net.onnx tells 4 classes apart")) << classes.err;
  const Outcome shape =
      Run(SmallTrain({"--set", "model.onnx=net.onnx", "--set", "data.crop=20x20"}));
  EXPECT_EQ(shape.exit_code, 2);
  EXPECT_TRUE(Says(shape.err, "takes 1x28x28")) << shape.err;
  const Outcome small = Run(SmallTrain({"--set", "data.crop=4x4"}));
  EXPECT_EQ(small.exit_code, 2);
  EXPECT_TRUE(Says(small.err, "model.zoo")) << small.err;
}

TEST_F(ProgramTest, AnAnswerThatCannotBeWrittenIsAFailure) {
  const std::vector<std::vector<std::string>> asking = {
      {"--help"},
      {"models"},
      {"models", "--json"},
      {"doctor"},
      {"bench", "--model", "lenet", "--batch", "8", "--seconds", "0.2", "--threads", "1", "--json"},
      SmallTrain({"--dry-run"}),
      SmallTrain({"--json"}),
      SmallTrain()};
  for (const std::vector<std::string>& arguments : asking) {
    const Outcome outcome = Child(folder(), arguments, {}, "/dev/full").Wait(60.0);
    EXPECT_EQ(outcome.exit_code, 1) << arguments.front();
    EXPECT_TRUE(Says(outcome.err, "motley: standard output: cannot write")) << outcome.err;
    EXPECT_FALSE(Says(outcome.err, "unexpected")) << outcome.err;
  }
}

TEST_F(ProgramTest, AFullStandardOutputDoesNotEndTheTraining) {
  // More lines than any buffer of the stream holds.
  auto arguments = SmallTrain({"--set", "train.epochs=100", "--out", "run"});
  EXPECT_EQ(Child(folder(), arguments, {}, "/dev/full").Wait(60.0).exit_code, 1);
  const auto summary = nlohmann::json::parse(Content(folder() / "run/summary.json"));
  EXPECT_EQ(summary["stop"], "epochs");
}

TEST_F(ProgramTest, BenchSavesWhatAnotherProgramNeedsToTakeTheSameSteps) {
  const Outcome bench = Run({"bench", "--model", "lenet", "--batch", "8", "--seconds", "0.2",
                             "--threads", "1", "--json", "--save", "new/start"});
  ASSERT_EQ(bench.exit_code, 0) << bench.err;
  const auto zoo = graph::BuildZoo("lenet", {1, 28, 28}, 10);
  ASSERT_TRUE(zoo.ok());
  const graph::Model initial = graph::InitialModel(*zoo, 1);
  graph::Model saved = graph::InitialModel(*zoo, 2);
  const base::Status loaded = graph::LoadWeights(folder() / "new/start/weights.safetensors", saved);
  ASSERT_TRUE(loaded.ok()) << loaded.ToString();
  EXPECT_EQ(saved.weights, initial.weights);
  const auto arrays =
      graph::ParseSafetensors(Content(folder() / "new/start/batch.safetensors"), "batch");
  ASSERT_TRUE(arrays.ok()) << arrays.status().ToString();
  EXPECT_EQ(arrays->at("images").shape, (graph::Shape{8, 1, 28, 28}));
  EXPECT_EQ(arrays->at("labels").shape, (graph::Shape{8}));
  for (const float label : arrays->at("labels").values) {
    EXPECT_TRUE(label >= 0.0F && label < 10.0F && label == static_cast<float>(int(label)));
  }
}

TEST_F(ProgramTest, BenchRefusesToSaveIntoAFile) {
  std::ofstream(folder() / "file") << "not a folder";
  const Outcome outcome = Run({"bench", "--model", "lenet", "--save", "file"});
  EXPECT_EQ(outcome.exit_code, 2);
  EXPECT_TRUE(Says(outcome.err, "--save file")) << outcome.err;
  EXPECT_TRUE(Says(outcome.err, "\n  fix: ")) << outcome.err;
}

TEST_F(ProgramTest, BenchReportsTheSameLossesWheneverItStartsAnew) {
  const auto losses = [this](std::vector<std::string> more) {
    std::vector<std::string> arguments = {
        "bench",     "--model", "squeezenet", "--input", "3x32x32",   "--batch", "4",
        "--classes", "10",      "--seconds",  "0.1",     "--threads", "1",       "--json"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    const Outcome outcome = Run(arguments);
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    const auto answer = nlohmann::json::parse(outcome.out);
    EXPECT_GT(answer["learning_rate"], 0.0);
    EXPECT_GT(answer["momentum"], 0.0);
    return answer["losses"].get<std::vector<double>>();
  };
  const std::vector<double> with = losses({});
  const std::vector<double> without = losses({"--no-dropout"});
  ASSERT_EQ(without.size(), 5U);
  EXPECT_LT(without.back(), without.front()) << "steps on one batch lower its loss";
  EXPECT_NE(with.front(), without.front());
  const std::vector<double> again = losses({"--no-dropout"});
  for (std::size_t i = 0; i < again.size(); ++i) EXPECT_NEAR(again[i], without[i], 1e-4) << i;
}

TEST_F(ProgramTest, AnsweringVerbsAnswerInJson) {
  const auto models = nlohmann::json::parse(Run({"models", "--json"}).out);
  EXPECT_EQ(models[0]["name"], "lenet");
  EXPECT_EQ(models[0]["parameters"], 431080);
  const auto doctor = nlohmann::json::parse(Run({"doctor", "--json"}).out);
  EXPECT_GE(doctor.size(), 8U);
  const Outcome bench = Run({"bench", "--model", "lenet", "--batch", "8", "--seconds", "0.2",
                             "--threads", "1", "--json"});
  ASSERT_EQ(bench.exit_code, 0) << bench.err;
  const auto speed = nlohmann::json::parse(bench.out);
  for (const char* key :
       {"images_per_second", "gflops", "gemm_gflops", "fraction_of_gemm_peak", "peak_rss_mb"}) {
    EXPECT_GT(speed[key], 0.0) << key;
  }
}

TEST_F(ProgramTest, BenchShowsWhereTheTimeGoesAndWhyEachKernelWasChosen) {
  const std::vector<std::string> arguments = {"bench", "--model",   "lenet",    "--batch",
                                              "4",     "--seconds", "0.1",      "--threads",
                                              "1",     "--profile", "--explain"};
  const Outcome text = Run(arguments);
  ASSERT_EQ(text.exit_code, 0) << text.err;
  for (const char* word : {"conv2", "max pool", "backward", "GB/s", "milliseconds", "all "}) {
    EXPECT_NE(text.out.find(word), std::string::npos) << word;
  }
  std::vector<std::string> as_json = arguments;
  as_json.emplace_back("--json");
  const Outcome outcome = Run(as_json);
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  const auto answer = nlohmann::json::parse(outcome.out);
  double flops = 0.0;
  for (const auto& layer : answer["layers"]) {
    EXPECT_GT(layer["forward"]["seconds"], 0.0) << layer;
    EXPECT_GT(layer["forward"]["bytes"], 0.0) << layer;
    flops += layer["forward"]["flops"].get<double>() + layer["backward"]["flops"].get<double>();
  }
  EXPECT_GT(flops, 0.0);
  ASSERT_EQ(answer["kernels"].size(), 2U);
  for (const auto& kernel : answer["kernels"]) {
    // The second run found the measurements of the first.
    EXPECT_TRUE(kernel["seconds"].contains(kernel["kernel"])) << kernel;
  }
}

}  // namespace
}  // namespace motley::app
