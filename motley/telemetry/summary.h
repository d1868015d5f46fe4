#ifndef MOTLEY_TELEMETRY_SUMMARY_H_
#define MOTLEY_TELEMETRY_SUMMARY_H_

#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "motley/base/status.h"

namespace motley::telemetry {

struct DeviceSummary {
  std::string name;
  std::string kind;
  std::int64_t samples = 0;
  double share = 0.0;  // of all samples, in [0, 1]
  double compute_seconds = 0.0;
  double wait_seconds = 0.0;
  std::optional<double> joules_busy, joules_idle;  // none: nobody knows; measured ones are all busy
  std::string energy_source;                       // "estimated", "measured", "unknown"
};

// A change of plan in a running job.
struct Retune {
  double at_seconds = 0.0;
  std::int64_t step = 0;
  std::string reason;
  std::string before, after;  // shares
};

// Bytes of messages by what they carry, all machines of a job together, each byte once.
struct BytesSent {
  std::int64_t gradient = 0, weights = 0, activations = 0, public_data = 0, private_data = 0,
               control = 0;
};

// What moving data costs, as the job states it, and what it moved.
struct Moving {
  double seconds = 0.0;  // in which devices had computed and waited for each other
  double joules_per_gigabyte = 0.0;
  double bandwidth_gbit = 0.0;     // of a link; 0: not stated
  std::int64_t private_bytes = 0;  // of all private samples, which have not been moved
};

// What a run came to: summary.json.
struct Summary {
  std::string version;                   // of the program
  std::string stop;                      // why it ended: epochs, target, time, interrupted
  std::optional<double> accuracy, loss;  // on the test set; null before the first evaluation
  std::int64_t epochs = 0;               // completed
  std::int64_t steps = 0;
  std::int64_t samples = 0;
  double seconds = 0.0;  // of the job, resumes included
  double samples_per_second = 0.0;
  std::int64_t groups = 1;  // of devices that did not wait for each other, at the end
  // Updates by how many others were applied since their group had read the model: from the start,
  // or from the last resume.
  std::vector<std::int64_t> staleness;
  double mean_staleness = 0.0;
  // Between two updates of one group: mean, and sigma of the logarithm.
  double interval_seconds = 0.0, interval_sigma = 0.0;
  double implied_momentum = 0.0;              // what this staleness acts like
  std::optional<double> coordinate_momentum;  // what the weights show; biased, for diagnosis
  std::vector<DeviceSummary> devices;
  BytesSent bytes_sent;
  Moving moving;
  std::vector<Retune> retunes;
  std::int64_t unreachable_samples = 0;  // private ones of devices that were away
};

// {"v":1,"version":…,"stop":…,"accuracy":…,…,"devices":[…],"bytes_sent":{…}}, in the order of the
// fields above.
nlohmann::ordered_json ToJson(const Summary& summary);

// Writes summary.json so that a reader, and a kill at any instant, sees the old one or the new.
base::Status WriteSummary(const std::filesystem::path& file, const Summary& summary);

}  // namespace motley::telemetry

#endif  // MOTLEY_TELEMETRY_SUMMARY_H_
