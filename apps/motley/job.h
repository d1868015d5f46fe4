#ifndef MOTLEY_APPS_MOTLEY_JOB_H_
#define MOTLEY_APPS_MOTLEY_JOB_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "motley/base/status.h"

namespace motley::app {

// Height and width in pixels; 0x0 means "not asked for".
struct ImageSize {
  int height = 0, width = 0;
  bool given() const { return height > 0; }
  bool operator==(const ImageSize&) const = default;
};

// What a job file says. The initial values are the defaults: they train LeNet on MNIST. The table
// in job_keys.cc gives every member its key, its range and its help.
struct Job {
  struct Model {
    std::string zoo = "lenet";
    std::string onnx;     // a file; used instead of the zoo
    std::string weights;  // a safetensors file to start from
    bool operator==(const Model&) const = default;
  } model;
  struct Data {
    std::string train = "mnist";
    std::string test;  // empty: the set's own test part
    ImageSize resize;
    std::int64_t pad = 0;
    ImageSize crop;
    bool flip = false;
    std::vector<double> mean, std;  // empty: measured on the training set
    std::int64_t threads = 1;
    bool operator==(const Data&) const = default;
  } data;
  struct Train {
    std::int64_t batch = 64;
    double learning_rate = 0.02;
    double momentum = 0.9;
    bool nesterov = false;
    double weight_decay = 0.0;
    std::string schedule = "auto";  // see ScheduleText
    std::int64_t warmup_steps = 0;
    std::optional<std::int64_t> epochs;  // see EpochLimit
    std::optional<double> target_accuracy;
    std::optional<double> max_seconds;
    std::int64_t bn_batch = 0;
    std::int64_t seed = 1;
    bool operator==(const Train&) const = default;
  } train;
  struct Device {
    // Whether the job speaks of a device at all: `motley serve` computes itself only then.
    bool listed = false;
    std::string name = "host";
    std::string kind = "native";
    std::int64_t threads = 0;  // 0: every core this process may use
    bool operator==(const Device&) const = default;
  } device;
  struct Cluster {
    std::int64_t min_workers = 1;
    bool trusted_network = false;
    double heartbeat_seconds = 1.0;
    bool operator==(const Cluster&) const = default;
  } cluster;
  struct Checkpoint {
    double every_seconds = 30.0;
    std::int64_t keep = 3;
    bool operator==(const Checkpoint&) const = default;
  } checkpoint;

  bool operator==(const Job&) const = default;
};

inline constexpr std::string_view kAutoSchedule = "auto";

// A job that names no goal at all stops after so many epochs.
inline constexpr std::int64_t kDefaultEpochs = 5;

// train.epochs; kDefaultEpochs when the job names no goal; none when it names another goal.
std::optional<std::int64_t> EpochLimit(const Job& job);

// train.schedule, with "auto" spelled out: a cosine over the epochs when their number is known,
// constant otherwise. A falling rate is worth about 0.2 % of accuracy on MNIST after five epochs.
std::string ScheduleText(const Job& job);

// In rising order of precedence.
enum class Source { kDefault, kFile, kEnvironment, kFlag };
std::string_view SourceName(Source source);

// Where a value came from, in words that a message can begin with: "job.toml:4:9",
// "environment MOTLEY_TRAIN_BATCH", "--set train.batch".
struct Origin {
  Source source = Source::kDefault;
  std::string place;
};

// A job together with where each of its values came from.
struct ResolvedJob {
  Job job;
  std::map<std::string, Origin> origins;  // by full key; a missing one is a default

  Origin origin(const std::string& key) const;
  // "job.toml:4:9: train.batch", or "train.batch (default)": the start of a message about it.
  std::string Place(const std::string& key) const;
};

struct JobSources {
  std::string file;               // empty: no job file
  std::vector<std::string> sets;  // "section.key=value", in the order given; the last one counts
  std::map<std::string, std::string> environment;
};

// Defaults, then the job file, then MOTLEY_SECTION_KEY variables, then --set. Refuses unknown keys
// (with the nearest one), wrong types, values out of range and combinations that cannot work; every
// message begins with the place.
base::Result<ResolvedJob> LoadJob(const JobSources& sources);

// The job file alone, over the defaults; `origin` names it in messages.
base::Result<ResolvedJob> ParseJob(std::string_view toml, const std::string& origin);

// Every value that is set is written out, so that the job can be run again even where the defaults
// of another version differ. A device that is not listed stays so.
std::string ToToml(const Job& job);

}  // namespace motley::app

#endif  // MOTLEY_APPS_MOTLEY_JOB_H_
