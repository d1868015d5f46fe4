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
    std::string tune = "auto";
    std::string objective = "time";
    std::optional<double> deadline_seconds;  // of objective = "energy"
    std::int64_t bn_batch = 0;
    std::int64_t seed = 1;
    bool operator==(const Train&) const = default;
  } train;
  struct Device {
    std::string name = "host";
    std::int64_t count = 1;  // name-0, name-1, … when it is more than one
    std::string kind = "native";
    std::int64_t threads = 0;   // 0: every core this process may use
    std::vector<double> cores;  // instead of threads: these
    double speed = 1.0;         // below 1: emulated
    std::optional<double> watts_idle, watts_busy;
    std::string service = "constant";           // virtual clock only: how its steps vary
    std::optional<double> bandwidth_gbit;       // virtual clock only; see Network
    std::optional<double> fixed_ms, sample_ms;  // virtual clock only: its curve, not measured
    bool streamed = false;     // virtual clock only: public samples come over its link
    std::optional<double> fails_at_seconds;  // virtual clock only: of the job
    std::string private_data;  // "{i}" is the number of one of `count`
    bool operator==(const Device&) const = default;
  };
  // As listed; none: the job speaks of no device, and `motley serve` does not compute itself. See
  // DevicesOf.
  std::vector<Device> devices;
  // What another program does to an emulated device, by script.
  struct Interruption {
    std::string device;
    double at_seconds = 0.0;
    double for_seconds = 30.0;
    double slowdown = 2.0;
    bool operator==(const Interruption&) const = default;
  };
  std::vector<Interruption> interruptions;
  struct Cluster {
    std::int64_t groups = 1;  // that do not wait for each other
    std::int64_t max_staleness = 0;
    bool merged_head = false;
    std::int64_t shards = 1;  // of the model, in several processes
    std::int64_t min_workers = 1;
    bool trusted_network = false;
    double heartbeat_seconds = 1.0;
    bool operator==(const Cluster&) const = default;
  } cluster;
  // For the virtual clock; measured when it is real.
  struct Network {
    double bandwidth_gbit = 1.0;
    double latency_us = 100.0;
    double server_ms = 0.0;
    double joules_per_gigabyte = 0.0;
    bool operator==(const Network&) const = default;
  } network;
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

// The devices of this machine, one by one: those that the job lists, each of `count` with its own
// name and folder of private data; the default one when it lists none.
std::vector<Job::Device> DevicesOf(const Job& job);

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
  // By full key, "device.2.threads" for that of the third [[device]]; a missing one is a default.
  std::map<std::string, Origin> origins;

  Origin origin(const std::string& key) const;
  // "job.toml:4:9: train.batch", or "train.batch (default)": the start of a message about it. The
  // number of a [[device]] is not shown, because the place is.
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
