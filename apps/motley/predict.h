#ifndef MOTLEY_APPS_MOTLEY_PREDICT_H_
#define MOTLEY_APPS_MOTLEY_PREDICT_H_

#include <cstdint>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <optional>
#include <vector>

#include "motley/base/status.h"
#include "motley/graph/graph.h"
#include "motley/plan/update_time.h"
#include "motley/sim/virtual_executor.h"

namespace motley::app {

// What predictions are made from. The closed form takes the devices for equal ones of their mean
// speed; the queueing network has the groups that would be formed of them, and the links between
// them as the virtual clock has them (sim/timeline.h).
struct PredictionInput {
  const graph::Graph& graph;
  const base::Result<graph::Halves>& halves;  // or why it cannot have a merged head
  const std::vector<sim::VirtualDevice>& devices;
  std::int64_t batch = 0;         // of a group's step
  std::int64_t multiple = 1;      // of shares
  plan::SpeedCurve server;        // of the machine that would compute a merged head
  double update_seconds = 0.0;    // of the model server
  double bytes_per_second = 0.0;  // of the servers' link, each way
  double latency_seconds = 0.0;
};

// Seconds per update with so many groups, with the head on the devices and merged.
struct Prediction {
  int groups = 0;
  double closed_form = 0.0, queueing = 0.0;
  std::optional<double> merged_closed_form, merged_queueing;  // none: the net has no head
};

struct Predictions {
  std::vector<Prediction> rows;  // 1, 2, 4, … groups, and one for each device
  // Both ways: weights and gradients of a device's step, with a merged head those of the body, and
  // the activations of a group's step.
  double weight_bytes = 0.0, body_bytes = 0.0, activation_bytes = 0.0;
  base::Status head;  // why there is no merged head; ok when there is
};

// Fails where groups cannot be formed: of devices whose memories are too small.
base::Result<Predictions> Predict(const PredictionInput& input);

void PrintPredictions(const Predictions& predictions, std::FILE* out);
nlohmann::ordered_json PredictionsJson(const Predictions& predictions);

}  // namespace motley::app

#endif  // MOTLEY_APPS_MOTLEY_PREDICT_H_
